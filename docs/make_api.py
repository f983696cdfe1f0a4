"""Write docs/api/: a page for each subpackage, with every module of it. Made anew at each build."""

from pathlib import Path

import icllab

PACKAGE = Path(icllab.__file__).parent


def modules(subpackage: str) -> list[str]:
    """The modules of a subpackage by dotted name; of a claim, what it says."""
    names = []
    for path in sorted((PACKAGE / subpackage).rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if subpackage == "claims" and path.name != "claim.py" and not path.name.startswith("_"):
            continue
        if path.name != "__init__.py":
            names.append(".".join(parts))
    return names


def subpackages() -> list[str]:
    """The subpackages by name."""
    return sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def page(subpackage: str) -> str:
    """The page of one subpackage."""
    whole = f"icllab.{subpackage}"
    parts = [f"# `{whole}`", f"```{{eval-rst}}\n.. automodule:: {whole}\n   :no-members:\n```"]
    for name in modules(subpackage):
        # A claim's module has its finding; the functions that judge it are for its tests.
        only = "\n   :no-members:" if subpackage == "claims" else ""
        parts.append(f"## `{name.removeprefix('icllab.')}`\n\n```{{eval-rst}}\n.. automodule:: {name}{only}\n```")
    return "\n\n".join(parts) + "\n"


def write(docs: Path) -> None:
    """Write all pages into ``docs/api``, and remove those of subpackages that are gone."""
    folder = docs / "api"
    folder.mkdir(exist_ok=True)
    wanted = {f"{name}.md": page(name) for name in subpackages()}
    for path in folder.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, "utf-8")
