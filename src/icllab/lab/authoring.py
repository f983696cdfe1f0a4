"""Write claims and books from templates, and the badge of a claim that conforms."""

import html
import importlib.util
import keyword
import re
from collections.abc import Mapping
from pathlib import Path

import icllab
from icllab.core.errors import InputError, expected, require_known
from icllab.core.files import disk_faults, write_atomically
from icllab.lab import registry

TEMPLATES = Path(icllab.__file__).parent / "templates"
EXAMPLE, EXAMPLE_TEMPLATE = "random_matrices/resolvent", "theory"
"""The claim of a new book, and its template, unless others are named."""
_NAME = re.compile(r"[a-z][a-z0-9_]*/[a-z][a-z0-9_]*")
_PACKAGE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")  # with - for _ the name of a distribution
_README = """# {name}

A claim for icl-lab, begun from the template `{template}`: `claim.py` says what should be true and judges it,
`measure.py` measures it.

    icl run {name} --claims {claim} --size smoke    # a regression test
    icl run {name} --claims {claim}                 # at small: a verdict
    icl claim conform {claim}                       # what is missing
    pytest {claim}
"""


def templates() -> list[str]:
    """The names of the templates."""
    return sorted(path.parent.name for path in TEMPLATES.glob("*/claim.py"))


def new(name: str, template: str, folder: Path = Path()) -> list[Path]:
    """Write a claim from a template into ``folder/<subject>/<finding>``, which must be free; its files are returned.

    The code of a template has no name in it: its name is that of its folder.
    """
    if not _NAME.fullmatch(name):
        raise expected(
            "name", "subject/finding in small letters, digits and _", name, "icl claim new my_subject/my_finding"
        )
    require_known("template", template, templates())
    return _write(folder / name, _claim(name, template, (folder / name).as_posix()))


def new_book(name: str, template: str, folder: Path = Path()) -> list[Path]:
    """Write a distribution of claims into ``folder/<package>``, which must be free; its files are returned.

    Args:
        name: ``package`` or ``package/subject/finding``; without the latter the claim is ``EXAMPLE``, of ``theory``.
        template: The template of its claim.
        folder: Where the folder of the distribution is made.
    """
    require_known("template", template, templates())
    package, slash, claim = name.partition("/")
    if not slash and template == EXAMPLE_TEMPLATE:
        claim = EXAMPLE
    if not (_PACKAGE.fullmatch(package) and _NAME.fullmatch(claim)) or keyword.iskeyword(package):
        form = "a package's name in small letters, digits and _, or package/subject/finding"
        raise expected("name", form, name, f"icl claim new my_claims/my_subject/my_finding --book --from {template}")
    if package in registry.PACKAGES or importlib.util.find_spec(package) is not None:
        raise expected("name", "a package's name that is free", package, "an installed package has it")
    place = f"src/{package}/{claim}"
    texts = _claim(claim, template, place)
    controls = re.findall(r'"(\w+)": Control\(', texts["claim.py"])
    names = {"my_claims": package, "my-claims": package.replace("_", "-"), EXAMPLE: claim}
    names |= {f"`{EXAMPLE_TEMPLATE}`": f"`{template}`", "heavy_rows": " ".join(controls)}

    def named(text: str) -> str:
        return re.sub("|".join(names), lambda match: names[match[0]], text)

    texts = {f"{place}/{file}": text for file, text in texts.items()}
    for path in sorted((TEMPLATES / "book").rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            texts[named(path.relative_to(TEMPLATES / "book").as_posix())] = named(path.read_text("utf-8"))
    return _write(folder / package, texts)


def _claim(name: str, template: str, place: str) -> dict[str, str]:
    """Map each file of a claim to its text; ``place`` is the claim's folder in the commands of its README."""
    sources = {f"{part}.py": TEMPLATES / template / f"{part}.py" for part in ("claim", "measure")}
    sources[f"test_{name.partition('/')[2]}.py"] = TEMPLATES / "test_claim.py"
    texts = {file: source.read_text("utf-8") for file, source in sources.items()}
    return {**texts, "README.md": _README.format(name=name, template=template, claim=place)}


def _write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write the files of a new folder; raise if it exists."""
    if folder.exists():
        raise InputError(
            f"icl claim new: expected a name that is free, got {folder}, which is there; nothing was written"
        )
    for file, text in texts.items():
        path = folder / file
        with disk_faults(f"cannot make {path.parent}", "nothing more was written"):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    return [folder / file for file in texts]


def badge(met: int, total: int) -> str:
    """An SVG of one line: ``icl-lab | conforms, no verdict``, or the number of items that are met."""
    right, colour = ("conforms, no verdict", "#00734f") if met == total else (f"{met} of {total}", "#b3401a")
    left, letter, height = "icl-lab", 6.6, 20
    widths = [round(len(text) * letter) + 14 for text in (left, right)]
    label = html.escape(f"{left}: {right}")
    texts = "".join(
        f'<text x="{x}" y="14" text-anchor="middle">{html.escape(text)}</text>'
        for text, x in ((left, widths[0] / 2), (right, widths[0] + widths[1] / 2))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{sum(widths)}" height="{height}" role="img" '
        f'aria-label="{label}"><title>{label}</title>'
        f'<rect width="{widths[0]}" height="{height}" fill="#1c1e21"/>'
        f'<rect x="{widths[0]}" width="{widths[1]}" height="{height}" fill="{colour}"/>'
        f'<g fill="#fff" font-family="ui-monospace, DejaVu Sans Mono, monospace" font-size="11">{texts}</g></svg>\n'
    )
