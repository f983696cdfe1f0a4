"""Tables of a measurement over two dimensions, as colours."""

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from icllab.core.errors import expected, require_known
from icllab.figures import layout, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_TICKS = 24
_CELL, _LEAST, _MOST = 0.16, 1.6, 7.0  # inches of a cell, and of a panel


def heat_map(dataset: xr.Dataset, variable: str, *, labels: str | None = None, text: str | None = None) -> "Figure":
    """A variable over two dimensions, or one panel for each value of a third dimension, its first.

    The vertical axis is the first of the last two dimensions, upwards. Colours are white at 0 and, if there are
    negative values, equally strong at equal distances from it.

    Args:
        dataset: Result of a diagnostic, such as ``diagnostics.patch``.
        variable: Name of the variable.
        labels: Coordinate along the horizontal axis whose values are written below it, such as ``"token"``; None:
            ``"token"`` if there is one, else the dimension's own.
        text: Variable of the same shape that is written into the cells; None: nothing.

    Raises:
        InputError: The variable is unknown, or has not two or three dimensions.
    """
    require_known("variable", variable, map(str, dataset.data_vars))
    values = dataset[variable]
    if values.ndim not in (2, 3):
        hint = f"choose one value: dataset.sel({values.dims[0]}=...)" if values.ndim > 3 else ""
        raise expected("variable", "a variable over two or three dimensions", values.dims, hint)
    parts = [values] if values.ndim == 2 else [values.isel({values.dims[0]: i}) for i in range(len(values))]
    high = float(np.nanmax(np.abs(values.to_numpy()), initial=0.0)) or 1.0
    low, colours = (-high, "RdBu_r") if float(np.nanmin(values)) < -0.02 * high else (0.0, "Reds")
    rows, columns = parts[0].shape
    y, x = (str(dim) for dim in parts[0].dims)
    cell = 4 * _CELL if text else _CELL
    width, height = (float(np.clip(cell * n, _LEAST, 2 * _MOST)) for n in (columns, rows * (0.4 if text else 1)))
    from icllab.figures.output import Drawing

    with style.context():
        figure = Drawing(width=(width + 0.5) * len(parts) + 0.9, height=height + 0.9)
        grid: list[Any] = list(figure.subplots(1, len(parts), sharey=True, squeeze=False).flat)
        images: list[Any] = []
        for axes, part in zip(grid, parts, strict=True):
            images.append(axes.imshow(part, cmap=colours, vmin=low, vmax=high, origin="lower", aspect="auto"))
            axes.grid(False)
            axes.set_xlabel(x)
            _name_ticks(axes.xaxis, _names(part, x, labels or "token"), rotated=True)
            _name_ticks(axes.yaxis, _names(part, y, y), rotated=False)
            if values.ndim == 3:
                layout.title(axes, str(part[values.dims[0]].item()), "right")
            if text is not None:
                _write(axes, part, dataset[text].sel({dim: part[dim] for dim in values.dims[:-2]}), high)
        grid[0].set_ylabel(y)
        figure.colorbar(
            images[0], ax=grid, label=values.attrs.get("long_name", variable.replace("_", " ")), aspect=30, pad=0.02
        )
    return figure


def _names(part: xr.DataArray, dim: str, labels: str) -> list[str]:
    """The texts of a coordinate along a dimension, or its values; spaces at an end are shown."""
    coordinate = part[labels] if labels in part.coords and part[labels].dims == (dim,) else part[dim]
    return [_visible(str(value)) for value in coordinate.values]


def _visible(text: str) -> str:
    text = text.replace("\n", "↵").replace("$", r"\$")
    return "␣" + text[1:] if text[:1] == " " else text


def _name_ticks(ruler: Any, names: list[str], *, rotated: bool) -> None:
    """Write all names, or every second and so on of many numbers."""
    numbers = all(name.lstrip("-").isdigit() for name in names)
    every = max(1, -(-len(names) // _MOST_TICKS)) if numbers else 1
    places = np.arange(0, len(names), every)
    turn = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if rotated and not numbers else {}
    ruler.set_ticks(places, [names[i] for i in places], **turn)


def _write(axes: Any, part: xr.DataArray, text: xr.DataArray, high: float) -> None:
    for (i, j), value in np.ndenumerate(part.to_numpy()):
        colour = "white" if abs(value) > 0.6 * high else style.INK
        axes.text(j, i, _visible(str(text.values[i, j])), ha="center", va="center", color=colour, fontsize=5.5)
