"""Differences between the two phases of a posterior."""

import xarray as xr

from icllab.lab import Estimate, estimates


def between(dataset: xr.Dataset, name: str, first: str, second: str, *dims: str) -> Estimate:
    """``name`` in the phase ``first`` minus its value in ``second``, over ``dims``; exact if it has no ``_error``."""
    whole = estimates.stored(dataset, name)
    value, error = (
        [part.sel(phase=phase, drop=True) for phase in (first, second)] for part in (whole.value, whole.error)
    )
    return Estimate((value[0] - value[1]).transpose(*dims), ((error[0] ** 2 + error[1] ** 2) ** 0.5).transpose(*dims))
