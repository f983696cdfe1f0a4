r"""What :math:`n\beta\,(E[L]-L(w^*))` tends to: an annealed curve over some decades, or what one temperature tells."""

import math

import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.statistics import mean_and_error
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.sampling_warnings import ERRORS, RARELY, errors_of_few, no_minimum
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.extrapolation import extrapolated
from icllab.diagnostics.singular.free_energies import free_energy

DECADES = 2.5  # of inverse temperature that a curve has
POINTS = 13
POPULATIONS = SMC(particles=250, repeats=16)  # enough of them for a covariance of the curve
SINGLE = 1e-3  # nominal seconds of a gradient above which populations are not thought of
GRADIENTS = 3000  # of all particles, that an annealing takes about
TRIES = 5
BEARABLE = 60.0  # nominal seconds of an annealing
FEWEST = 4  # chains that an error is found of
WITH_ERRORS = ("level", "level_error", "left", "left_error", "curve", "curve_error")
OF_LIMIT = ("estimate", "mcse", "interval", "multiplicity_probability", *WITH_ERRORS)
TOLD = 0.03  # of an estimate, that a curve may have left without a word


def populations_are_cheap(here: LocalLoss) -> bool:
    """Whether an annealing nominally takes at most a minute, by the operations of a gradient."""
    particles = POPULATIONS.particles * POPULATIONS.repeats
    return here.seconds <= SINGLE and GRADIENTS * particles * here.seconds <= BEARABLE


def annealed_limit(here: LocalLoss, nbeta: float, *, least: float, key: PRNGKeyArray, sampler: SMC) -> xr.Dataset:
    """A free energy over the decades below ``nbeta``, and the limit of its slope; ``least`` is the loss's minimum."""
    grid = np.geomspace(nbeta / 10**DECADES, nbeta, POINTS)
    found = free_energy(here.loss, here.centre, nbeta=grid, key=key, localization=here.localization, sampler=sampler)
    log_t, above = np.log(grid), found["repeat_free_energy"].transpose("repeat", "nbeta").values - least * grid
    limit = extrapolated(log_t, np.diff(above, axis=1) / np.diff(log_t), parameters=here.centre.size)
    means = found["repeat_mean_loss"].transpose("nbeta", "repeat").values
    curve, curve_error = mean_and_error(grid[:, None] * (means - least))
    lower = nbeta * (least - float(found["least_loss"]))
    said = list(found.attrs["warnings"])
    if lower > max(1.0, abs(limit.level) / 2):
        said.append(no_minimum(lower))
    if abs(limit.left) > TOLD * abs(limit.value):
        said.append(
            f"the curve has not settled: at its end it is {limit.level:.3g}, and has {limit.left:+.2g} "
            f"± {limit.left_error:.1g} to go"
        )
    if limit.misfit < RARELY:
        said.append("no curve that is considered fits: the temperatures may be too high yet, and n is to be larger")
    return (
        found.assign(
            estimate=limit.value,
            mcse=limit.error,
            interval=("bound", np.array(limit.interval)),
            level=limit.level,
            level_error=limit.level_error,
            left=limit.left,
            left_error=limit.left_error,
            multiplicity_probability=("multiplicity", limit.multiplicities),
            curve=("nbeta", curve),
            curve_error=("nbeta", curve_error),
            baseline=least,
        )
        .assign_coords(bound=["low", "high"], multiplicity=1 + np.arange(len(limit.multiplicities)))
        .assign_attrs(warnings=said)
    )


def with_limit(chains: xr.Dataset, annealed: xr.Dataset) -> xr.Dataset:
    """What chains at the last temperature say, with the limit of the annealed curve for the estimate."""
    mean, error = float(chains["estimate"]), float(chains["mcse"])
    short = float(chains["descent"])
    gap = mean + short - float(annealed["level"])
    said = [
        *chains.attrs["warnings"],
        *(one for one in annealed.attrs["warnings"] if one not in chains.attrs["warnings"]),
    ]
    if abs(gap) > max(ERRORS * float(np.hypot(error, annealed["level_error"])), TOLD * abs(mean)):
        said.append(
            f"chains have {mean + short:.3g} where annealed populations have {float(annealed['level']):.3g}: one of "
            "them has not reached all, or the other has gone elsewhere"
        )
    found = chains.drop_vars(["estimate", "mcse"]).merge(annealed[list(OF_LIMIT)])
    numbers = {"mean_estimate": mean, "mean_estimate_error": error}
    attributes = {"annealing": repr(POPULATIONS), "warnings": said}
    return found.assign(numbers).assign_attrs(chains.attrs | attributes)


def with_rise(found: xr.Dataset) -> xr.Dataset:
    r"""What one temperature tells of the curve: its slope, :math:`E[n\beta K] - \operatorname{Var}[n\beta K]`."""
    above = found.attrs["nbeta"] * (found["loss_trace"] - found["baseline"]).transpose("chain", "draw").values
    above = above[np.isfinite(above).all(1)]
    count = len(above)
    if count < FEWEST:
        return found

    def rise(some: np.ndarray) -> float:
        return float(some.mean() - some.var())

    value = rise(above)
    without = np.array([rise(np.delete(above, i, axis=0)) for i in range(count)])
    error = float(np.sqrt((1 - 1 / count) * ((without - without.mean()) ** 2).sum()))
    said, limit = list(found.attrs["warnings"]), math.sqrt(abs(value))
    if abs(value) > errors_of_few(count) * error and limit > TOLD * abs(float(found["estimate"])):
        said.append(
            f"nbeta E[K] changes by {value:+.2g} an e-fold of nbeta: the learning coefficient may be {limit:.2g} "
            f"{'above' if value > 0 else 'below'} it"
        )
    return found.assign(rise=value, rise_error=error).assign_attrs(warnings=said)
