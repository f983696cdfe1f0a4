"""Draw the laboratory's subpackages and the book from the imports in their sources."""

import ast
from pathlib import Path

import iclbook
import icllab

PACKAGE, BOOK = Path(icllab.__file__).parent, Path(iclbook.__file__).parent
# The layers, from the bottom; a subpackage calls only lower ones.
LAYERS = (
    ("core",),
    ("tasks",),
    ("algorithms", "models", "theory"),
    ("constructions", "training"),
    ("diagnostics", "figures"),
    ("posteriors",),
    ("lab",),
    ("arena", "page", "testing"),
    ("cli",),
)
WITH_JAX = ("tasks", "algorithms", "models", "constructions", "training", "diagnostics", "posteriors")


def imports() -> set[tuple[str, str]]:
    """Return all pairs (importer, subpackage), also inside functions, without ``core``, which all import.

    An importer is a subpackage, or ``iclbook``.
    """
    edges = set()
    files = {path: path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    files |= dict.fromkeys(BOOK.rglob("*.py"), BOOK.name)
    for path, package in files.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            edges |= {(package, name.split(".")[1]) for name in names if name.startswith("icllab.")}
    packages = {package for layer in LAYERS for package in layer} | {BOOK.name}
    return {(a, b) for a, b in edges if a != b and {a, b} <= packages and b != "core"}


def purposes() -> dict[str, str]:
    """Map each subpackage to the first paragraph of its docstring."""
    found = {}
    for layer in LAYERS:
        for package in layer:
            file = PACKAGE / package / "__init__.py"
            file = file if file.is_file() else PACKAGE / f"{package}.py"
            docstring = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
            found[package] = " ".join(docstring.split("\n\n")[0].split())
    return found


def picture():
    """Draw subpackages by layer, and the book beside them; arrows point to the importers, in the direction of the data.

    Of the subpackages that the book imports, only `lab` and `arena` have an arrow to it.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    from icllab.figures import style

    columns = {"algorithms": 1.3, "models": 4.6, "theory": 8.0, "constructions": 2.9, "training": 6.1}
    columns |= {
        "diagnostics": 1.3,
        "figures": 8.7,
        "arena": 1.3,
        "testing": 5.0,
        "page": 8.7,
        "cli": 6.8,
        BOOK.name: 2.2,
    }
    with style.context():
        figure = Figure(figsize=(6.2, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(0, 10), ylim=(-0.3, len(LAYERS) - 0.7))
        boxes = {}
        for layer, packages in enumerate([*LAYERS[:-1], (*LAYERS[-1], BOOK.name)]):
            for package in packages:
                x = columns.get(package, 5.0)
                half = 4.85 if package == "core" else 1.15
                look = {"edgecolor": style.INK, "linewidth": 0.7, "linestyle": "--" if package == BOOK.name else "-"}
                look |= {"boxstyle": "round,pad=0,rounding_size=0.08"}
                box = FancyBboxPatch(
                    (x - half, layer - 0.2),
                    2 * half,
                    0.4,
                    facecolor="#dfe8f5" if package in WITH_JAX else "white",
                    **look,
                )
                axes.add_patch(box)
                axes.text(x, layer, package, ha="center", va="center", fontsize=9, family="monospace")
                boxes[package] = (x, layer, box)
        for user, used in sorted(imports()):
            if user == BOOK.name and used not in ("lab", "arena"):
                continue
            x0, y0, start = boxes[used]
            x1, y1, end = boxes[user]
            axes.add_patch(
                FancyArrowPatch(
                    (x0, y0),
                    (x1, y1),
                    patchA=start,
                    patchB=end,
                    arrowstyle="-|>",
                    mutation_scale=9,
                    shrinkA=1,
                    shrinkB=1,
                    color=style.FAINT,
                    linewidth=0.9,
                    zorder=0.5,  # behind the boxes it passes
                )
            )
    return figure
