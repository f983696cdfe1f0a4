"""When programs are learned: times of half the loss, their order by frequency, and what is censored."""

import numpy as np
import xarray as xr

from icllab.diagnostics import transitions

OF_PROGRAMS = ("transitioned", "transition_time", "observed_time")


def times(losses: xr.DataArray, *, plateau: float, level: float = 0.5) -> xr.Dataset:
    """:data:`OF_PROGRAMS` of losses over seed, program and step: when a share ``level`` of the plateau is gone.

    A program that is not learned is censored at the last step.
    """
    parts = [
        transitions(losses.sel(seed=seed, drop=True), plateau=plateau, end=0.0, level=level, scale="log")
        for seed in losses.seed.values
    ]
    parts = [part.rename(crossed="transitioned")[list(OF_PROGRAMS)].drop_attrs() for part in parts]
    return xr.concat(parts, dim=losses.seed)


def concordance(times: xr.Dataset, frequency: xr.DataArray) -> xr.DataArray:
    """Of the pairs of programs of which one is known to come first, the fraction where it is the more frequent one.

    A censored program comes after those that were learned by then; two of them are no pair, nor are two that are
    equally frequent. NaN of a seed without any pair.
    """
    first = times["transitioned"] & (times["observed_time"] < times["observed_time"].rename(program="other"))
    frequent = frequency > frequency.rename(program="other")
    unequal = frequency != frequency.rename(program="other")
    return (first & frequent).sum(("program", "other")) / (first & unequal).sum(("program", "other")).where(
        lambda n: n > 0
    )


def slope(times: xr.Dataset, frequency: xr.DataArray) -> xr.Dataset:
    r"""The line :math:`\ln T = a + b \ln \pi` by least squares for each seed, over the programs that are learned."""
    x, y = xr.broadcast(*(xr.DataArray(np.log(values)) for values in (frequency, times["transition_time"])))
    x = x.where(y.notnull())
    away = x - x.mean("program")
    b = (away * y).sum("program") / (away**2).sum("program")
    return xr.Dataset({"slope": b, "intercept": (y - b * x).mean("program")})
