"""Labels of axes and quantities, from the results or from the shared names."""

import numpy as np
import xarray as xr

from icllab.core.axes import AXES, QUANTITIES, Quantity, derived
from icllab.core.errors import InputError, unknown
from icllab.core.files import parse_json

_GREEK = ("alpha", "beta", "gamma", "eta", "kappa", "lambda", "rho", "sigma", "tau", "xi")


def named(dataset: xr.Dataset, name: str) -> Quantity:
    """The symbol, meaning and unit of a variable of results.

    Results carry those of a claim's own names as an attribute ``names``; of these and of the shared names, standard
    errors, closed forms and lines are derived by their suffix.
    """
    names = parse_json(dataset.attrs.get("names", "{}"), "names")
    claim_names = {key: Quantity(key, *row) for key, row in names.items()}
    quantities: dict[str, Quantity] = {**AXES, **QUANTITIES, **claim_names}
    quantity = derived(name, quantities)
    if quantity is None:
        raise unknown("axis or quantity", name, quantities)
    return quantity


def valued(dataset: xr.Dataset, name: str, value: float | str) -> str:
    """``$d = 40$`` for a number; a name unchanged."""
    return f"${named(dataset, name).symbol} = {value:g}$" if isinstance(value, int | float) else shown(value)


def shown(name: str) -> str:
    """A name as figures show it: without underscores, with Greek letters as symbols."""
    return rf"$\{name}$" if name in _GREEK else name if "$" in name else name.replace("_", " ")


def told_apart(dataset: xr.Dataset, dim: str, index: int) -> str:
    """Label of one position along a dimension: its value or, for members of a run, the swept values.

    Members are numbered; beside each number stand its seed and every swept value. Repetitions, which differ in their
    seeds alone, need no names.
    """
    value = dataset[dim].values[index].item()
    if dim != "member":
        return "" if dim == "seed" else valued(dataset, dim, value)
    beside = [coordinate for name, coordinate in dataset.coords.items() if coordinate.dims == (dim,) and name != dim]
    differ = [
        coordinate for coordinate in beside if coordinate.name != "seed" and len(np.unique(coordinate.values)) > 1
    ]
    if beside and not differ:
        return ""
    swept = {str(coordinate.name): coordinate.values[index].item() for coordinate in differ}
    return ", ".join(_swept(dataset, name, number) for name, number in (swept or {dim: value}).items())


def _swept(dataset: xr.Dataset, name: str, value: float | str) -> str:
    """A value with its symbol or, for quantities without a symbol such as a user's argument, with its name."""
    try:
        return valued(dataset, name.rpartition(".")[2], value)
    except InputError:
        return f"{name} = {value:g}"
