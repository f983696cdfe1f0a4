"""Sphinx configuration; `make docs` builds with warnings as errors."""

import ast
import functools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# The pages' kernels share what they compile, and keep it for the next build.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / "_build" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS", "0")

import make_api
import make_equations
import make_explorers
import make_gallery
import make_notebooks
import make_papers
import make_peers
import make_power
import make_statements

import icllab

HERE = Path(__file__).parent
make_api.write(HERE)
make_equations.write(HERE)
make_explorers.write(HERE)
make_gallery.write(HERE)
make_papers.write(HERE)
make_peers.write(HERE)
make_power.write(HERE)
make_statements.write(HERE)
make_notebooks.write(HERE)

project = "icl-lab"
author = "The icl-lab founders"
copyright = "the icl-lab founders"
version = release = icllab.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "jupyter_execute", "notebooks", "peers", "tour.ipynb"]
language = "en"

html_theme = "furo"
html_title = "icl-lab"
html_theme_options = {"navigation_with_keys": True}
html_show_sourcelink = False
# Cards of claims are those of the page, and lie with their figures where its addresses say.
html_static_path = ["_static", "../book/src/iclbook/figures", "../src/icllab/page/static/cards.css"]
html_css_files = ["cards.css", "style.css"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

# Signatures are shown as written, so a type name that two modules share is ambiguous.
suppress_warnings = ["ref.python"]

# Every example is run at every build: one that fails fails the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 900
nb_merge_streams = True
nb_render_markdown_format = "myst"

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True


@functools.cache
def written_signatures(file: Path) -> dict[str, tuple[str, str]]:
    """Map qualified names to arguments and result as written in a source file."""
    found = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                arguments = node.args
                if prefix and not any(ast.unparse(d) == "staticmethod" for d in node.decorator_list):
                    (arguments.posonlyargs or arguments.args).pop(0)
                returned = ast.unparse(node.returns).strip("'") if node.returns else ""
                found[prefix + node.name] = (f"({ast.unparse(arguments)})", returned)

    visit(Bare().visit(ast.parse(file.read_text("utf-8"))).body, "")
    return found


class Bare(ast.NodeTransformer):
    """Replace ``Annotated[kind, ...]`` by ``kind``."""

    def visit_Subscript(self, node):
        if isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[0]
        return node


def as_written(app, what, name, obj, options, signature, returned):
    """Show types by their names in the source, not by their expansions."""
    if what == "class" and signature:
        return signature.replace("jaxlib._jax.Array", "Array"), returned
    if what not in ("function", "method"):
        return None
    parts = name.split(".")
    for i in range(2, len(parts)):
        file = Path(icllab.__file__).parent.joinpath(*parts[1:i]).with_suffix(".py")
        if file.is_file():
            return written_signatures(file).get(".".join(parts[i:]))
    return None


def of_others(app, what, name, obj, skip, options):
    """Skip members that a base class of another library adds."""
    return True if (getattr(obj, "__module__", None) or "").startswith("matplotlib.") else None


def with_notebook(app, page, source):
    """Link a page's notebook from the page."""
    source[0] = make_notebooks.linked(page, source[0])


def setup(app):
    app.connect("autodoc-skip-member", of_others)
    app.connect("source-read", with_notebook)
    app.connect("autodoc-process-signature", as_written)
