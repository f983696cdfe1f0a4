"""A claim of one's own from a template, and the badge of one that conforms."""

import html
import re
from pathlib import Path

import icllab
from icllab.core.errors import InputError, expected, require_known
from icllab.core.files import disk_faults, write_atomically

TEMPLATES = Path(icllab.__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9_]*/[a-z][a-z0-9_]*")
_README = """# {name}

A claim for icl-lab, begun from the template `{template}`: `claim.py` says what should be true and judges it,
`measure.py` measures it.

    icl run {name} --claims {claim} --size smoke    # a regression test
    icl run {name} --claims {claim}                 # at small: a verdict
    icl conform {claim}                             # what is missing
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
        raise expected("name", "subject/finding in small letters, digits and _", name, "icl new my_subject/my_finding")
    require_known("template", template, templates())
    claim = folder / name
    if claim.exists():
        raise InputError(f"icl new: expected a name that is free, got {claim}, which is there; nothing was written")
    with disk_faults(f"cannot make {claim}", "nothing was written"):
        claim.mkdir(parents=True)
    finding, files = claim.name, []
    sources = {"claim": TEMPLATES / template / "claim.py", "measure": TEMPLATES / template / "measure.py"}
    for target, source in {**sources, f"test_{finding}": TEMPLATES / "test_claim.py"}.items():
        files.append(claim / f"{target}.py")
        write_atomically(files[-1], source.read_bytes())
    files.append(claim / "README.md")
    write_atomically(files[-1], _README.format(name=name, template=template, claim=claim.as_posix()).encode())
    return files


def badge(met: int, total: int) -> str:
    """An SVG of one line: ``icl-lab | conforms, no verdict``, or of how many items are met."""
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
