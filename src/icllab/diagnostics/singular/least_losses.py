"""How far below a point the loss goes: what an estimate at a point that is no minimum is short of."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from scipy.optimize import minimize

from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.posteriors import Vector
from icllab.diagnostics.sampling.sampled_losses import at_point

EVALUATIONS = 100  # of a loss and its gradient, in a descent
BEARABLE = 10.0  # nominal seconds of a descent
PRECISION = 1e-4  # of nbeta times the loss, that a step of the descent gains at least
OUTSIDE = 1e12  # of nbeta times the loss, where that is not finite: the search turns back
TOLD = 0.02  # of an estimate, that it may be short of without a word


class Lowest(NamedTuple):
    """The least loss that was seen, and where."""

    level: float  # the loss at the point
    loss: float
    place: Vector


def lowest_near(here: LocalLoss, nbeta: float) -> Lowest:
    """By a quasi-Newton descent from the point; the point itself where none is lower or a gradient is expensive."""
    centre = np.asarray(here.centre, np.float64)
    level = float(here.known.baseline.sum())
    best = Lowest(level, level, here.centre)

    if here.seconds * EVALUATIONS > BEARABLE:
        return best

    def both(w: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        found = at_point(here.loss, jnp.asarray(w, here.centre.dtype), batch=here.block)
        loss, slope = float(found.baseline.sum()), np.asarray(found.slope, np.float64)
        if not (math.isfinite(loss) and np.isfinite(slope).all()):
            return OUTSIDE, np.zeros_like(w)
        if loss < best.loss:
            best = Lowest(level, loss, jnp.asarray(w, here.centre.dtype))
        return nbeta * (loss - level), nbeta * slope

    how = {"maxfun": EVALUATIONS, "ftol": PRECISION, "gtol": 0.0}
    minimize(both, centre, jac=True, method="L-BFGS-B", options=how)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return best


def with_descent(found: xr.Dataset, lowest: Lowest, nbeta: float) -> xr.Dataset:
    """An estimate with ``descent``, nbeta times what that has lowered the loss by, and a word where it is much."""
    short = nbeta * (lowest.level - lowest.loss)
    said = list(found.attrs["warnings"])
    if short > max(2 * float(found["mcse"]), TOLD * abs(float(found["estimate"]))):
        said.append(
            f"the point is no minimum of this loss: a descent from it lowers the loss by {short:.2g}/nbeta, and what "
            "is measured from the point is too low by as much"
        )
    return found.assign(descent=short).assign_attrs(warnings=said)
