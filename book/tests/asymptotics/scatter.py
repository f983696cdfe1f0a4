"""Made-up results of fits: clean errors, with corrections of a finite size and noise around them."""

import json

import numpy as np
import xarray as xr


def scattered(clean, *, fixed, noise, seeds, converged=1.0):
    """Every error (name -> array over dim and more) times 1 + 2/d + 5/d^2 and log-normal noise, one draw a seed."""
    rng = np.random.default_rng(0)
    variables = {}
    for name, error in clean.items():
        means = (error * (1 + 2 / error.dim + 5 / error.dim**2)).transpose(*error.dims)
        draws = np.exp(noise * rng.normal(size=(*means.shape, seeds)))
        variables[name] = ((*means.dims, "seed"), means.values[..., None] * draws)
    first = next(iter(clean.values()))
    variables["converged"] = ((*first.dims, "seed"), np.full((*first.shape, seeds), converged))
    coordinates = {**first.coords, "seed": np.arange(seeds)}
    return xr.Dataset(variables, coordinates, attrs={"configuration": json.dumps({"fixed": fixed})})
