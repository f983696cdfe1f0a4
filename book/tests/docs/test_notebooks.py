"""Every page with code can be had as a notebook with the same code, complete in itself."""

import base64
import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

DOCS = Path(__file__).parents[3] / "docs"
_spec = importlib.util.spec_from_file_location("make_notebooks", DOCS / "make_notebooks.py")
make_notebooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_notebooks)

PAGES = [path for path in sorted(DOCS.glob("*.md")) if make_notebooks.has_notebook(path.read_text("utf-8"))]
PAGE = """---
file_format: mystnb
kernelspec:
  name: python3
---

# Title

A {py:func}`fit <icllab.training.fitting.fit>` of [Models](models.md#attention), [below](#end).

```{code-cell} python
:tags: [remove-output]

x = 1
```

```{figure} figures/a.png
:width: 10px
:alt: A point.

Its *caption*.
```

```python
not_run
```
"""


@pytest.fixture
def made(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.png").write_bytes(b"bytes")
    return make_notebooks.notebook(PAGE, tmp_path)


def test_a_page_becomes_a_valid_notebook_with_its_code(made):
    nbformat.validate(made)
    assert [(cell.cell_type, cell.source) for cell in made.cells if cell.cell_type == "code"] == [("code", "x = 1")]
    assert made.cells[0].source == "# Title\n\nA `fit` of Models, below."
    assert "```python\nnot_run\n```" in made.cells[2].source


def test_figures_are_inside(made):
    assert made.cells[2].source.startswith("![](attachment:a.png)\n\nIts *caption*.")
    assert base64.b64decode(made.cells[2].attachments["a.png"]["image/png"]) == b"bytes"


def test_a_page_with_cells_has_a_link_below_its_title():
    assert "# Title\n\n{download}`Download as a notebook <notebooks/it.ipynb>`\n" in make_notebooks.linked("it", PAGE)
    assert make_notebooks.linked("it", "# Title\n\nWords.\n") == "# Title\n\nWords.\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_every_page_is_in_its_notebook(page):
    text = page.read_text("utf-8")
    made = make_notebooks.notebook(text, DOCS)
    nbformat.validate(made)
    cells = [cell for cell in made.cells if cell.cell_type == "code"]
    assert len(cells) == text.count("\n```{code-cell}")
    for cell in cells:
        compile(re.sub(r"\A%%writefile .*\n", "", cell.source), page.name, "exec")
    words = "\n".join(cell.source for cell in made.cells if cell.cell_type == "markdown")
    assert not re.search(r"\{py:\w+\}|\]\([\w/-]+\.(?:md|png)", words)
    assert words.count("](attachment:") == len(re.findall(r"(?:\]\(|\{figure\} )(?:[\w.]+/)*figures/", text))


def test_notebooks_of_pages_that_are_gone_go_too(tmp_path):
    (tmp_path / "page.md").write_text(PAGE.replace("figures/a.png", "figures.png"))
    make_notebooks.write(tmp_path)
    assert [path.name for path in (tmp_path / "notebooks").iterdir()] == ["page.ipynb"]
    (tmp_path / "page.md").unlink()
    make_notebooks.write(tmp_path)
    assert not list((tmp_path / "notebooks").iterdir())
