r"""The limit of :math:`n\beta\,(E[L]-L(w^*))`: the extrapolation of an annealed curve over some decades."""

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.statistics import mean_and_error
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.sampled_losses import sample_count
from icllab.diagnostics.sampling.sampling_warnings import ERRORS, RARELY, no_minimum
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.coefficient_curves import inverse_temperatures
from icllab.diagnostics.singular.estimate_checks import lowest_near, with_descent
from icllab.diagnostics.singular.extrapolation import extrapolated
from icllab.diagnostics.singular.free_energies import free_energy
from icllab.diagnostics.singular.temperature_estimates import estimator, with_prior_share

DECADES = 2.5  # of inverse temperature that a curve has
POINTS = 13
POPULATIONS = SMC(particles=250, repeats=16)  # enough of them for a covariance of the curve
SINGLE = 1e-3  # nominal seconds of a gradient above which populations are not used
GRADIENTS = 3000  # of all particles, that an annealing takes about
BEARABLE = 60.0  # nominal seconds of an annealing
WITH_ERRORS = ("level", "level_error", "left", "left_error", "curve", "curve_error")
OF_LIMIT = ("estimate", "mcse", "interval", "multiplicity_probability", *WITH_ERRORS)
TOLD = 0.03  # of an estimate, above which the rest of a curve is a warning


def populations_are_cheap(local: LocalLoss) -> bool:
    """Whether an annealing nominally takes at most a minute, by the operations of a gradient."""
    particles = POPULATIONS.particles * POPULATIONS.repeats
    return local.seconds <= SINGLE and GRADIENTS * particles * local.seconds <= BEARABLE


def annealed_limit(local: LocalLoss, nbeta: float, *, least: float, key: PRNGKeyArray, sampler: SMC) -> xr.Dataset:
    """A free energy over the decades below ``nbeta``, and the limit of its slope; ``least`` is the loss's minimum."""
    grid = np.geomspace(nbeta / 10**DECADES, nbeta, POINTS)
    energies = free_energy(
        local.loss, local.centre, nbeta=grid, key=key, localization=local.localization, sampler=sampler
    )
    log_t, above = np.log(grid), energies["repeat_free_energy"].transpose("repeat", "nbeta").values - least * grid
    limit = extrapolated(log_t, np.diff(above, axis=1) / np.diff(log_t), parameters=local.centre.size)
    means = energies["repeat_mean_loss"].transpose("nbeta", "repeat").values
    curve, curve_error = mean_and_error(grid[:, None] * (means - least))
    lower = nbeta * (least - float(energies["least_loss"]))
    sentences = list(energies.attrs["warnings"])
    if lower > max(1.0, abs(limit.level) / 2):
        sentences.append(no_minimum(lower))
    if abs(limit.left) > TOLD * abs(limit.value):
        sentences.append(
            f"the curve has not settled: at its end it is {limit.level:.3g}, and has {limit.left:+.2g} "
            f"± {limit.left_error:.1g} to go"
        )
    if limit.misfit < RARELY:
        sentences.append("no curve that is considered fits: the temperatures may be too high: take a larger n")
    return (
        energies.assign(
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
        .assign_attrs(warnings=sentences)
    )


def limit_of_populations(
    loss: Any,
    at: Any,
    *,
    key: PRNGKeyArray,
    sampler: SMC,
    data: Any,
    n: float | None,
    nbeta: Any,
    localization: float | None,
    sensitivity: bool,
) -> xr.Dataset:
    """The limit by populations alone, without chains."""
    estimate = estimator(sampler, loss, at, data, sensitivity=sensitivity)
    count = sample_count(data) if n is None and data is not None else n
    values, is_curve = inverse_temperatures(count, nbeta)
    if is_curve:
        raise expected("nbeta", "one number with SMC", values, "free_energy has a grid of its own")
    local = LocalLoss.from_loss(loss, at, data, block=sampler.block, pull=localization)
    lowest = lowest_near(local, values[0])
    limit = annealed_limit(local, values[0], least=lowest.loss, key=key, sampler=sampler)
    limit = with_prior_share(limit, local, values[0], key)
    settings = {"sampler": sampler.name, "settings": repr(sampler), "reason": estimate.reason, "nbeta": values[0]}
    settings |= {} if count is None else {"n": float(count)}
    return with_descent(limit.assign_attrs(settings), lowest, values[0])


def with_limit(chains: xr.Dataset, annealed: xr.Dataset) -> xr.Dataset:
    """The estimate of chains at the last temperature, with the limit of the annealed curve as the estimate."""
    mean, error = float(chains["estimate"]), float(chains["mcse"])
    level = mean + float(chains["descent"])
    gap = level - float(annealed["level"])
    sentences = list(dict.fromkeys([*chains.attrs["warnings"], *annealed.attrs["warnings"]]))
    if abs(gap) > max(ERRORS * float(np.hypot(error, annealed["level_error"])), TOLD * abs(mean)):
        sentences.append(
            f"chains have {level:.3g} where annealed populations have {float(annealed['level']):.3g}: one of "
            "them has not reached all, or the other has gone elsewhere"
        )
    dataset = chains.drop_vars(["estimate", "mcse"]).merge(annealed[list(OF_LIMIT)])
    dataset = dataset.assign(mean_estimate=mean, mean_estimate_error=error)
    return dataset.assign_attrs(chains.attrs | {"annealing": repr(POPULATIONS), "warnings": sentences})
