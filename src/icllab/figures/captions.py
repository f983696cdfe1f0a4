"""The caption of a figure: the quantities of its panels, their axes, and the meaning of points and lines."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import xarray as xr

from icllab.core.errors import InputError
from icllab.figures.labels import named, shown

if TYPE_CHECKING:
    from icllab.figures.panel import Panel


def caption(
    dataset: xr.Dataset, rows: "Sequence[Panel]", *, over: str, line_name: str, vertical: float | None = None
) -> str:
    """Sentences on panels whose horizontal axis and hue are set; formulas stand between dollars.

    Args:
        dataset: Results with the variables of the panels.
        rows: The panels.
        over: The dimension of repetitions, whose mean and error are drawn.
        line_name: Name of the lines.
        vertical: Place of a vertical line; None: there is no line.
    """
    quantities: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        quantities.setdefault((str(row.x), row.hue or ""), []).append(_words(dataset, row.shown))
    sentences = []
    for (x, hue), names in quantities.items():
        colours = f", coloured by {_words(dataset, hue)}" if hue and hue not in ("seed", "member") else ""
        sentences.append(_capital(f"{_listed(names)} against {_words(dataset, x)}{colours}."))
    points = [dataset[row.y] for row in rows if row.y]
    repeated = [values for values in points if over in values.dims and values.sizes[over] > 1]
    if repeated and any(row.hue != over for row in rows):
        repetitions = "seeds" if over == "seed" else f"values of {_words(dataset, over)}"
        sentences.append(f"Points: means over {repetitions} with standard errors.")
    elif points:
        errors = " with standard errors" if any(f"{row.y}_error" in dataset for row in rows) else ""
        sentences.append(f"Points: measured values{errors}.")
    sentences += [f"Hollow points: {_words(dataset, name)} above 0." for name in _distinct(row.hollow for row in rows)]
    if any(row.line for row in rows):
        sentences.append(f"Lines: {line_name}.")
    if vertical is not None:
        sentences.append(f"Dashed: ${named(dataset, str(rows[0].x)).symbol} = {vertical:g}$.")
    return " ".join(sentences)


def _words(dataset: xr.Dataset, name: str) -> str:
    """The meaning and the symbol of a variable; a dimension that only the figure has is its name."""
    try:
        quantity = named(dataset, name)
    except InputError:
        return shown(name)
    symbol = "" if quantity.symbol in (name, rf"\mathrm{{{name}}}") and len(name) > 1 else f" ${quantity.symbol}$"
    return f"{quantity.meaning or shown(name)}{symbol}"


def _distinct(names: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name))


def _listed(names: Sequence[str]) -> str:
    *first, last = _distinct(names)
    return f"{', '.join(first)} and {last}" if first else last


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
