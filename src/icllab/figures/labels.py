"""What a figure calls an axis or a quantity: what the results say of it, else the shared names."""

import json

import xarray as xr

from icllab.core.axes import AXES, QUANTITIES, Quantity, derived
from icllab.core.errors import unknown


def named(dataset: xr.Dataset, name: str) -> Quantity:
    """The symbol, meaning and unit of a variable of results.

    Results carry those of a claim's own names as an attribute ``names``; of these and of the shared names, standard
    errors, closed forms and lines are derived by their suffix.
    """
    own = {key: Quantity(key, *row) for key, row in json.loads(dataset.attrs.get("names", "{}")).items()}
    known: dict[str, Quantity] = {**AXES, **QUANTITIES, **own}
    found = derived(name, known)
    if found is None:
        raise unknown("axis or quantity", name, known)
    return found


def valued(dataset: xr.Dataset, name: str, value: float | str) -> str:
    """``$d = 40$`` for a number; a name speaks for itself."""
    return f"${named(dataset, name).symbol} = {value:g}$" if isinstance(value, int | float) else str(value)
