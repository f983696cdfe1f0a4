"""Write docs/notebooks/: every page with code cells as a notebook. Each build writes them again."""

import base64
import re
from pathlib import Path

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook

_CELL = re.compile(r"^```\{code-cell\}", re.MULTILINE)
_OF_THE_BUILD = re.compile(r"^(?:import|from) (?:layers|make_\w+)", re.MULTILINE)  # modules beside this one
_TEXT = r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]"  # of a link; it may have brackets of its own
_ROLE = re.compile(r"\{py:\w+\}`([^`<]*?)\s*(?:<[^`]*>)?`")
_PAGE = re.compile(_TEXT + r"\([\w/-]*\.md(?:#[^)]*)?\)")
_SECTION = re.compile(_TEXT + r"\(#[^)]*\)")
_FIGURE = re.compile(r"^```\{figure\} (\S+)\n(?::[^\n]*\n)*\s*(.*?)\s*^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r"^# .*\n", re.MULTILINE)


def notebook(text: str, folder: Path) -> nbformat.NotebookNode:
    """Convert a page to a notebook: roles and links to pages become plain text, figures of ``folder`` are embedded."""
    made = read_myst_markdown_notebook(text)
    made.metadata = nbformat.from_dict({"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
        if cell.cell_type != "markdown":
            continue
        source = _ROLE.sub(r"`\1`", _FIGURE.sub(r"![](\1)\n\n\2", cell.source))
        cell.source = _SECTION.sub(r"\1", _PAGE.sub(r"\1", source))
        for name in re.findall(r"\]\(((?:[\w.]+/)*figures/[\w.-]+)\)", cell.source):
            image = base64.b64encode((folder / name).read_bytes()).decode()
            cell.setdefault("attachments", {})[Path(name).name] = {"image/png": image}
            cell.source = cell.source.replace(f"]({name})", f"](attachment:{Path(name).name})")
    return made


def has_notebook(text: str) -> bool:
    """Return True if a page has code cells that also run outside a build of the documentation."""
    return bool(_CELL.search(text)) and not _OF_THE_BUILD.search(text)


def linked(name: str, text: str) -> str:
    """Add a link to the notebook below the title, if the page has a notebook."""
    if not has_notebook(text):
        return text
    return _TITLE.sub(rf"\g<0>\n{{download}}`Download as a notebook <notebooks/{name}.ipynb>`\n", text, count=1)


def write(docs: Path) -> None:
    """Write all notebooks into ``docs/notebooks``, and remove the notebooks of removed pages."""
    folder = docs / "notebooks"
    folder.mkdir(exist_ok=True)
    pages = {path.stem: path.read_text("utf-8") for path in sorted(docs.glob("*.md"))}
    wanted = {name: text for name, text in pages.items() if has_notebook(text)}
    for path in folder.glob("*.ipynb"):
        if path.stem not in wanted:
            path.unlink()
    for name, text in wanted.items():
        nbformat.write(notebook(text, docs), folder / f"{name}.ipynb")
