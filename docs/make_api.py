"""Write docs/api/: the public names in one table, and a page for each subpackage with every module of it.

Made anew at each build.
"""

import importlib
import inspect
from pathlib import Path

import iclbook
import icllab

PACKAGE, BOOK = Path(icllab.__file__).parent, Path(iclbook.__file__).parent


def modules(package: Path) -> list[str]:
    """Return the modules of a subpackage by dotted name; for a claim, only `claim.py`."""
    names = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parents[1]).with_suffix("").parts
        if package.name == "claims" and path.name != "claim.py" and not path.name.startswith("_"):
            continue
        if path.name != "__init__.py":
            names.append(".".join(parts))
    return names


def subpackages() -> dict[str, Path]:
    """Map each subpackage of the laboratory, and the claims of the book, to its folder."""
    paths = [*PACKAGE.glob("*/__init__.py"), BOOK / "claims/__init__.py"]
    return {path.parent.name: path.parent for path in sorted(paths, key=lambda path: path.parent.name)}


def page(package: Path) -> str:
    """Return the page of one subpackage."""
    whole = f"{package.parent.name}.{package.name}"
    parts = [f"# `{whole}`", f"```{{eval-rst}}\n.. automodule:: {whole}\n   :no-members:\n```"]
    for name in modules(package):
        # A claim's module has its finding; the functions that judge it are for its tests.
        only = "\n   :no-members:" if package.name == "claims" else ""
        parts.append(f"## `{name.partition('.')[2]}`\n\n```{{eval-rst}}\n.. automodule:: {name}{only}\n```")
    return "\n\n".join(parts) + "\n"


def face() -> str:
    """Return the page of all public names, each with the first sentence of its docstring."""
    rooms = [name for name in subpackages() if name in icllab.__all__]
    rows = []
    for package in ("icllab", *(f"icllab.{name}" for name in rooms)):
        module = importlib.import_module(package)
        for name in sorted(set(module.__all__) - set(rooms)):
            text = (inspect.getdoc(getattr(module, name)) or "").split("\n\n")[0].replace("|", r"\|")
            rows.append(f"| `{package}.{name}` | {' '.join(text.split())} |")
    return FACE + "\n".join(["| Name | What it is |", "| --- | --- |", *rows]) + "\n"


FACE = """# The public names

The names that a first week needs. A module outside this table is private: it can be imported, the pages below describe
it, and it may change in any version.

"""


def write(docs: Path) -> None:
    """Write all pages into ``docs/api``, and remove those of subpackages that are gone."""
    folder = docs / "api"
    folder.mkdir(exist_ok=True)
    pages = {"names.md": face()} | {f"{name}.md": page(package) for name, package in subpackages().items()}
    for path in folder.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, "utf-8")
