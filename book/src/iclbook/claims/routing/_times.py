"""Learning times of programs: times of half the loss, their order by frequency, and censoring."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.diagnostics import transitions
from icllab.lab import Finding, checks, estimates

PROGRAM = Axis("program", "c", "program")
PROGRAM_LOSS = Quantity("program_loss", "L_c", "loss of the program's answers above their entropy", "nats")
LEARNED = 0.95  # of the programs
OF_PROGRAMS = ("transitioned", "transition_time", "observed_time")


def times(losses: xr.DataArray, *, plateau: float, level: float = 0.5) -> xr.Dataset:
    """:data:`OF_PROGRAMS` of losses over seed, program and step: times at which ``level`` of the plateau is gone.

    A program that is not learned is censored at the last step.
    """
    options = {"plateau": plateau, "end": 0.0, "level": level, "scale": "log"}
    parts = [transitions(losses.sel(seed=seed, drop=True), **options) for seed in losses.seed.values]
    selected: list[xr.Dataset] = [part.rename(crossed="transitioned")[list(OF_PROGRAMS)].drop_attrs() for part in parts]
    return xr.concat(selected, dim=losses.seed)


def concordance(times: xr.Dataset, frequency: xr.DataArray) -> xr.DataArray:
    """Fraction of ordered pairs of programs in which the more frequent program is learned first.

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


def mostly_learned(transitioned: xr.DataArray) -> list[Finding]:
    """Condition: nearly all programs are learned, by the lower end of the 95 % interval of their fraction over seeds.

    Those that are not are censored; none of them decides whether the claim is judged.
    """
    share = estimates.mean(transitioned.mean([name for name in transitioned.dims if name != "seed"]))
    lowest = float(share.value) - checks.reach(float(share.error), float(share.freedom), sigmas=1.96)
    quantity = f"more than {LEARNED:.0%} of the programs are learned, by the lower end of the 95 % interval"
    return checks.complete("learned", quantity, lowest > LEARNED)


def geometric(values: xr.DataArray, dim: str) -> xr.DataArray:
    """Geometric mean over a dimension."""
    return xr.apply_ufunc(np.exp, xr.apply_ufunc(np.log, values).mean(dim))


def frequencies(programs: xr.DataArray, order: Sequence[str], exponent: float) -> xr.DataArray:
    """Power law of the ranks that programs have in ``order``; results list programs in the order of their names."""
    ranks = [1.0 + order.index(name) for name in programs.values]
    law = xr.DataArray(ranks, coords={"program": programs}) ** -exponent
    return law / law.sum("program")
