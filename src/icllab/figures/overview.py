"""Plot measurements against their axes, for results whose own figure must not be drawn."""

from typing import TYPE_CHECKING

import xarray as xr

from icllab.core.errors import expected
from icllab.figures.curves import Panel, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANELS, _COLOURS = 4, 8


def measured(dataset: xr.Dataset) -> "Figure":
    """Up to four quantities, means over seeds with standard errors, against the axis with the most values.

    The next axis of at most eight values is told apart by colour; on all others the first value is shown.

    Raises:
        InputError: No quantity has an axis.
    """
    axes = {
        str(name): tuple(str(dim) for dim in values.dims if dim != "seed")
        for name, values in dataset.data_vars.items()
        if values.dtype.kind in "biuf" and not (str(name).endswith("_error") and str(name)[:-6] in dataset)
    }
    dims = next((dims for dims in axes.values() if dims), ())
    if not dims:
        raise expected("results", "a quantity with an axis besides the seed", list(axes))
    x, *others = sorted(dims, key=lambda dim: -dataset.sizes[dim])
    hue = next((dim for dim in others if dataset.sizes[dim] <= _COLOURS), None)
    point = {dim: dataset[dim].values[0].item() for dim in others if dim != hue}
    rows = [Panel(name, at=point) for name, quantity_dims in axes.items() if quantity_dims == dims]
    return panels(dataset, rows[:_PANELS], x=x, hue=hue)
