"""What claims about two phases share: a quantity of one phase less that of the other."""

import xarray as xr

from icllab.lab import Estimate, estimates


def between(dataset: xr.Dataset, name: str, one: str, other: str, *dims: str) -> Estimate:
    """``name`` in the phase ``one`` less in the phase ``other``, over ``dims``; what has no ``_error`` is exact."""
    whole = estimates.stored(dataset, name)
    value, error = ([part.sel(phase=phase, drop=True) for phase in (one, other)] for part in (whole.value, whole.error))
    return Estimate((value[0] - value[1]).transpose(*dims), ((error[0] ** 2 + error[1] ** 2) ** 0.5).transpose(*dims))
