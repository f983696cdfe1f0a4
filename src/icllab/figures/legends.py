"""Legends: one above all panels if their marks agree, else one in each panel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from icllab.figures import style
from icllab.figures.panel import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D

Marks: TypeAlias = dict[str, dict[str, Any]]
"""Name -> colour, marker and line style."""

MANY = 8
"""Number of values of a numeric hue above which a colour bar stands for its legend."""
_TICKS = 6
_LINE = 0.16  # height of a line of a legend, in inches on a screen


def marks(points: Sequence[Curve], lines: Sequence[Curve], line_name: str) -> Marks:
    """The names to explain in a panel's legend: its points, and its lines unless they belong to points."""
    named: Marks = {c.name: {"color": c.colour, "marker": c.marker, "linestyle": "none"} for c in points if c.name}
    if len(lines) == 1 or named or not any(line.name for line in lines):
        colours = [line.colour for line in lines]
        colour = colours[0] if colours and colours.count(colours[0]) == len(colours) else style.INK
        ink = {"color": colour, "marker": "", "linestyle": "-"}
        return named | ({line_name: ink} if lines and (points or len(lines) == 1) else {})
    for line in lines:
        level = line.dashes == "none"
        named[line.name] = {"color": line.colour, "marker": "_" if level else "", "linestyle": line.dashes}
    return named


def merged(panels: Sequence[Marks]) -> Marks | None:
    """The marks of all panels together; None if a name has two colours or a colour has two names."""
    union: Marks = {}
    for panel in panels:
        for name, mark in panel.items():
            entry = union.setdefault(name, dict(mark))
            if entry["color"] != mark["color"]:
                return None
            entry["marker"] = entry["marker"] or mark["marker"]
            entry["linestyle"] = mark["linestyle"] if entry["linestyle"] == "none" else entry["linestyle"]
    colours = [mark["color"] for mark in union.values()]
    return union if all(colours.count(colour) == 1 for colour in colours) or len(panels) == 1 else None


def _handles(named: Marks) -> "list[Line2D]":
    from matplotlib.lines import Line2D

    edge = {"markeredgecolor": "white", "markeredgewidth": 0.35 * style.look().scale}
    looks = [mark | ({} if mark["marker"] == "_" else edge) for mark in named.values()]
    return [Line2D([], [], label=name, **look) for name, look in zip(named, looks, strict=True)]


def draw_above(figure: "Figure", named: Marks, title: str | None) -> None:
    """Draw one legend above the panels, where it cannot cover data; ``title`` is the legend's."""
    handles, scale = _handles(named), style.look().scale
    if not (handles or title):
        return
    columns = max(len(handles) if len(handles) <= 4 else -(-len(handles) // 2), 1)
    location: Any = {"loc": "outside upper left", "alignment": "left"}
    legend = figure.legend(handles=handles, ncols=columns, **location)
    while columns > 1 and legend.get_window_extent().width > figure.bbox.width:  # as many as fit
        legend.remove()
        columns -= 1
        legend = figure.legend(handles=handles, ncols=columns, **location)
    if title:
        legend.set_title(title)
        legend.get_title().set_fontsize(style.look().font or 8.0)
    extra_lines = -(-len(handles) // columns) - 2  # two are counted in the figure's height
    if hasattr(figure, "set_figheight"):  # a part of a figure has no height of its own
        figure.set_figheight(figure.get_figheight() + _LINE * scale * max(extra_lines, 0))


def draw_bar(figure: "Figure", axes: "Sequence[Axes]", values: Sequence[float], label: str) -> None:
    """Draw a colour bar beside all panels, with the colours of a numeric hue in the order of its values."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    values = sorted(values)
    norm = BoundaryNorm(np.arange(len(values) + 1) - 0.5, len(values))
    ticks = np.unique(np.linspace(0, len(values) - 1, _TICKS).round().astype(int))
    scale = ScalarMappable(norm, ListedColormap(style.colours(values)))
    bar = figure.colorbar(scale, ax=list(axes), label=label, aspect=40, pad=0.02, ticks=ticks, spacing="uniform")
    bar.ax.set_yticklabels([f"{values[tick]:.4g}" for tick in ticks])
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def draw_inside(axes: "Axes", named: Marks) -> None:
    """Draw the legend of one panel inside it."""
    if named:
        columns = -(-len(named) // 4)
        axes.legend(handles=_handles(named), loc="best", ncols=columns, alignment="left")


def covers_data(axes: "Axes", legend: "Legend") -> bool:
    """True if a legend inside a panel covers points, lines or bars."""
    box = legend.get_window_extent()
    for line in axes.lines:
        path = line.get_path().transformed(line.get_transform()).cleaned(remove_nans=True)
        if line.get_linestyle() == "None":
            if np.size(path.vertices) and box.count_contains(path.vertices):
                return True
        elif path.intersects_bbox(box, filled=False):
            return True
    return any(
        path.transformed(bars.get_transform()).intersects_bbox(box, filled=False)
        for bars in axes.collections
        for path in bars.get_paths()
        if np.size(path.vertices)
    )
