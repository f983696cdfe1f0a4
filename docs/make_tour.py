"""Run the commands of docs/tour.md again and write their outputs on the page, and the page as docs/tour.ipynb.

.venv/bin/python docs/make_tour.py
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat

import iclbook

PAGE = Path(__file__).parent / "tour.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
SETUP = """\
# Needs icl-lab and its book: in a clone, `python -m pip install -e . -e book`. Commands run where Python does.
import os
import sys

os.environ |= {"PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"], "COLUMNS": "100"}"""
_BLOCK = re.compile(r"```console\n\$ (icl .*)\n((?:.*\n)*?)```\n")


def commands(text: str) -> list[tuple[str, str]]:
    """Return each command of the page with the output below it."""
    return _BLOCK.findall(text)


def typed(command: str, folder: Path) -> str:
    """Run a command in a folder, on a terminal of 100 columns; return its output, and an exit status that is not 0."""
    words = [sys.executable, "-m", "icllab", *command.split()[1:]]
    process = subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": "", "HOME": str(folder), "COLUMNS": "100", "JAX_PLATFORMS": "cpu"},
    )
    lines = process.stdout.splitlines() + [f"exit status {process.returncode}"] * (process.returncode != 0)
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    return text.replace(f"{folder.resolve()}/", "").replace(str(Path(iclbook.__file__).parent), "iclbook")


def notebook(text: str) -> nbformat.NotebookNode:
    """Convert the page to a notebook: each command is a cell, with its output."""
    introduction, *parts = _BLOCK.split(text)
    cells = [nbformat.v4.new_markdown_cell(introduction.strip()), nbformat.v4.new_code_cell(SETUP)]
    for command, printed, words in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        output = nbformat.v4.new_output("stream", name="stdout", text=printed)
        cells.append(nbformat.v4.new_code_cell(f"!{command}", outputs=[output]))
        if words.strip():
            cells.append(nbformat.v4.new_markdown_cell(words.strip()))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=kernel)


def main() -> None:
    """Run all commands in one folder, one after the other, and write page and notebook."""
    with tempfile.TemporaryDirectory() as folder:
        again = _BLOCK.sub(
            lambda match: f"```console\n$ {match[1]}\n{typed(match[1], Path(folder))}```\n", PAGE.read_text("utf-8")
        )
    PAGE.write_text(again, "utf-8")
    nbformat.write(notebook(again), NOTEBOOK)


if __name__ == "__main__":
    main()
