"""Layout of panels: their grid, texts that fit their panel, and several figures side by side."""

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from icllab.core.errors import InputError
from icllab.figures import style
from icllab.figures.legends import covers_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# Inches on a screen.
_NARROWEST, _NARROW, _WIDEST = 1.5, 2.2, 4.2  # widths of a panel: the second unless a page would be too short
_LOWEST, _LOW, _HIGH = 0.85, 1.2, 1.65  # heights of a panel: the first without its labels
_PAGE = 9.0

_WORDS = re.compile(r"(?:\$[^$]*\$|[^\s$])+")


class StandsAlone(InputError):
    """A figure that :func:`icllab.figures.panels` did not draw cannot be part of another figure."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}: expected a figure of icllab.figures.panels, to join it with others, got another; draw it alone"
        )


def arranged(count: int, columns: int) -> int:
    """Number of columns for ``count`` panels: the stated number, unless panels would be too narrow or too wide."""
    look = style.look()
    if look.width is None:
        return columns
    width = look.width / look.scale
    columns = count if look.wide else max(columns, -int(-width // _WIDEST))
    for narrowest in (_NARROW, _NARROWEST):
        most = max(1, min(columns, int(width / narrowest), count))
        if -(-count // most) * _HIGH < _PAGE and not look.wide:
            break
    return -(-count // -(-count // most))  # rows of equal lengths


def canvas(count: int, columns: int, *, alike: bool) -> "Figure":
    """An empty figure for ``count`` panels, or the part of a larger figure that is to be drawn in."""
    from icllab.figures.output import Drawing

    look, rows = style.look(), -(-count // columns)
    if look.place is not None:
        return look.place
    if look.width is None:
        height = 2.4 if rows == 1 else 0.65 + (_HIGH if alike else 1.9) * rows
        return Drawing(width=columns * style.COLUMN, height=height)
    panel = min(max(0.75 * look.width / look.scale / columns, _LOW), _HIGH)
    return Drawing(width=look.width, height=look.scale * (0.65 + (panel + (not alike) * 0.25) * rows))


def letter(panels: "Sequence[Axes]") -> None:
    """Letter the panels of a figure if it has several or is part of a larger figure."""
    look = style.look()
    if look.letters and (len(panels) > 1 or look.place is not None):
        for index, axes in enumerate(panels, look.first):
            text = string.ascii_lowercase[index % 26] * (1 + index // 26)
            title(axes, text, "left")


def title(axes: "Axes", text: str, side: Literal["left", "right"], pad: float | None = None) -> "Text":
    """Write above a panel: its letter at the left, or its coordinates at the right."""
    weight = "bold" if side == "left" else "normal"
    return axes.set_title(text, loc=side, pad=pad, fontsize="medium", fontweight=weight)


def fit(figure: "Figure") -> None:
    """Wrap texts to the lengths of their panels, rotate names that do not fit, and move legends off the data."""
    for _ in range(2):  # a label of more lines leaves less room for the others
        figure.draw_without_rendering()
        for axes in figure.axes:
            _keep_names(axes)
            _wrap(axes.yaxis.label, axes.bbox.height)
            _wrap(axes.xaxis.label, axes.bbox.width)
            right, left = (title(axes, axes.get_title(loc=side), side) for side in ("right", "left"))
            _wrap(right, axes.bbox.width - left.get_window_extent().width)
        for part in (figure, *figure.subfigs):
            for legend in part.legends:
                _wrap(legend.get_title(), part.bbox.width)
    figure.draw_without_rendering()
    _grow(figure)


def _grow(figure: "Figure") -> None:
    """Add the height that panels lack, and the height of legends that must stand above them."""
    scale, dpi = style.look().scale, figure.dpi
    missing: dict[float, float] = {}  # lower end of a part -> height
    for part in figure.subfigs or (figure,):
        rows: dict[int, float] = {}
        for axes in part.axes:
            place, legend = axes.get_subplotspec(), axes.get_legend()
            height = max(_LOWEST * scale - axes.bbox.height / dpi, 0.0)
            if legend is not None and covers_data(axes, legend):
                above = legend.get_window_extent().height / dpi
                legend.set_loc("lower left")
                legend.set_bbox_to_anchor((0.0, 1.0))
                for side in ("left", "right"):
                    title(axes, axes.get_title(loc=side), side, pad=72 * above)
                height += above
            row = place.rowspan.start if place else 0
            rows[row] = max(rows.get(row, 0.0), height)
        missing[part.bbox.y0] = max(missing.get(part.bbox.y0, 0.0), sum(rows.values()))
    figure.set_figheight(figure.get_figheight() + sum(missing.values()))


def _keep_names(axes: "Axes") -> None:
    """Wrap the names below a panel if they overlap, and rotate them if that is not enough."""
    from matplotlib.ticker import FixedLocator

    labels, ticks = axes.get_xticklabels(), axes.get_xticks()
    if not isinstance(axes.xaxis.get_major_locator(), FixedLocator) or len(ticks) < 2:
        return
    places = axes.transData.transform([(tick, axes.get_ylim()[0]) for tick in ticks])[:, 0]
    width = 0.95 * float(np.diff(places).min())
    names = [label.get_text() for label in labels]
    if all(label.get_rotation() or label.get_window_extent().width <= width for label in labels):
        return
    for label in labels:
        _wrap(label, width)
    broken = [label.get_text() for label in labels]
    if all(label.get_window_extent().width <= width and label.get_text().count("\n") < 3 for label in labels):
        axes.set_xticks(ticks, broken)
    else:
        axes.set_xticks(ticks, names, rotation=30, ha="right")


def _wrap(text: "Text", length: float) -> None:
    """Wrap a text into lines of at most ``length`` pixels, between words; formulas stay whole."""
    upright = text.get_rotation() == 90

    def measured(line: str) -> float:
        text.set_text(line)
        box = text.get_window_extent()
        return box.height if upright else box.width

    lines: list[str] = []
    for word in _WORDS.findall(text.get_text()):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and measured(longer) <= length:
            lines[-1] = longer
        else:
            lines.append(word)
    text.set_text("\n".join(lines))


def sized(figure: "Figure") -> "Figure":
    """Set a figure to the width of the current look; a figure that a claim draws by itself is scaled."""
    from icllab.figures.output import Drawing

    look = style.look()
    if not isinstance(figure, Drawing) and look.width is not None:
        figure.set_size_inches(look.width, figure.get_figheight() * look.width / figure.get_figwidth())
        figure.suptitle("")
    return figure


def side_by_side(figures: Sequence[tuple[str, Callable[[], Any]]]) -> "Figure":
    """Join figures of several names in one figure, with one sequence of panel letters.

    Raises:
        StandsAlone: One is not drawn by :func:`icllab.figures.panels`.
    """
    from icllab.figures.output import Drawing

    look = style.look()
    across = max(1, min(len(figures), int(look.page / look.scale / (1.25 * _NARROWEST))))
    part, heights, first = replace(look, width=look.page / across, letters=True), [], [look.first]
    for name, draw in figures:
        with style.drawn_as(part):
            figure = draw()
        if not isinstance(figure, Drawing):
            raise StandsAlone(name)
        heights.append(figure.get_figheight())
        first.append(first[-1] + len(figure.axes))
    rows = [max(heights[start : start + across]) for start in range(0, len(heights), across)]
    whole = Drawing(width=look.page, height=sum(rows))
    with style.context():
        places: Any = whole.subfigures(len(rows), across, squeeze=False, height_ratios=rows)
        for (name, draw), place, begin in zip(figures, places.flat, first, strict=False):
            with style.drawn_as(replace(part, place=place, first=begin)):
                if draw() is not place:
                    raise StandsAlone(name)
        fit(whole)
    return whole
