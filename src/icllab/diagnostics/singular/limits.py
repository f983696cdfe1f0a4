r"""The limit of :math:`n\beta\,(E[L]-L(w^*))`: the extrapolation of an annealed curve over some decades."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.progress import part
from icllab.core.result_warnings import collected
from icllab.core.statistics import mean_and_error
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior
from icllab.diagnostics.sampling.samplers import ChainSampler, sample_chains
from icllab.diagnostics.sampling.sampling_warnings import ERRORS, LOCALIZED, RARELY, mixing_warnings, no_minimum
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.estimate_checks import FEWEST, Lowest, lowest_near, with_descent, with_rise
from icllab.diagnostics.singular.extrapolation import extrapolated
from icllab.diagnostics.singular.free_energies import free_energy_of_populations
from icllab.diagnostics.singular.minimum_geometry import SURE, Geometry, geometries
from icllab.diagnostics.singular.temperature_estimates import checked, with_prior_share

DECADES = 2.5  # of inverse temperature that a curve has
POINTS = 13
POINTS_OF_CHAINS = 6
SHORTEST = 8  # of chains, in draws
WIDTH = 0.1  # of log t, of an interval that stands for a point
POPULATIONS = SMC(particles=250, repeats=16)  # enough of them for a covariance of the curve
SINGLE = 1e-3  # nominal seconds of a gradient above which populations are not used
GRADIENTS = 3000  # of all particles, that an annealing takes about
BEARABLE = 60.0  # nominal seconds of an annealing
WITH_ERRORS = ("level", "level_error", "left", "left_error", "curve", "curve_error")
OF_LIMIT = ("estimate", "mcse", "interval", "multiplicity_probability", "regular_probability", *WITH_ERRORS)
TOLD = 0.03  # of an estimate, above which a difference of chains and populations is a warning
APART = 0.1  # of an estimate that is half a rank, beyond which the curve says something else
RAYS = 16  # particles of a repeat, along whose rays the growth of the loss is looked at
NEAR = 0.1  # of a ray, where the order of the loss is seen
CURVED = 3.0  # order below which the point has curvatures
UNEVEN = 0.5, 0.05  # of an order, and the share of rays that are as far below it, and above it
RECOGNISED = 0.9  # probability above which a limit is half the rank of a Hessian
UNSEEN = 3.0  # times the localization, below which nbeta times a curvature adds little to a curve
PROBES = 1  # folded into the key of populations for the geometry of the minimum


def populations_are_cheap(local: LocalLoss) -> bool:
    """True if an annealing nominally takes at most a minute, by the operations of a gradient."""
    particles = POPULATIONS.particles * POPULATIONS.repeats
    return local.seconds <= SINGLE and GRADIENTS * particles * local.seconds <= BEARABLE


def annealed_limit(local: LocalLoss, nbeta: float, *, lowest: Lowest, key: PRNGKeyArray, sampler: SMC) -> xr.Dataset:
    """A free energy over the decades below ``nbeta``, and the limit of its slope above the ``lowest`` loss."""
    least = lowest.loss
    grid = np.geomspace(nbeta / 10**DECADES, nbeta, POINTS)
    posterior = LocalPosterior(local.loss, local.centre, nbeta=grid, localization=local.localization)
    populations = sampler.sample(posterior, key=key)
    energies = free_energy_of_populations(populations)
    log_t, above = np.log(grid), energies["repeat_free_energy"].transpose("repeat", "nbeta").values - least * grid
    intervals = np.stack([log_t[:-1], log_t[1:]], axis=1)
    limit = _limit(local, lowest, intervals, np.diff(above, axis=1) / np.diff(log_t), key)
    means = energies["repeat_mean_loss"].transpose("nbeta", "repeat").values
    curve, curve_error = mean_and_error(grid[:, None] * (means - least))
    lower = nbeta * (least - float(energies["least_loss"]))
    sentences = list(energies.attrs["warnings"])
    if lower > max(1.0, abs(float(limit["level"])) / 2):
        sentences.append(no_minimum(lower))
    sentences += _growth_warnings(local, populations.last)
    dataset = energies.merge(limit).assign(curve=("nbeta", curve), curve_error=("nbeta", curve_error), baseline=least)
    return dataset.assign_attrs(warnings=[*sentences, *limit.attrs["warnings"]])


def _growth_warnings(local: LocalLoss, particles: np.ndarray) -> list[str]:
    r"""A sentence if the loss above a point without curvatures is not a sum of products of powers.

    The order of such a sum along a ray, :math:`(w-w^*)\cdot\nabla K/K`, is at least that near the point, and that of a
    function that saturates is at most that. Where both occur, no curve that is considered need have the limit.
    """
    level = float(local.known.baseline.sum())
    rays = jnp.asarray(particles[:, :RAYS].reshape(-1, local.centre.size), local.centre.dtype)
    of_loss = jax.jit(jax.vmap(jax.value_and_grad(lambda w: jnp.sum(local.loss(w)))))

    def orders(parts: jax.Array) -> np.ndarray:
        losses, slopes = of_loss(local.centre[None] + parts)
        above = np.asarray(losses, np.float64) - level
        kept = above > 1e3 * local.rounding
        return np.asarray(jnp.sum(parts * slopes, 1), np.float64)[kept] / above[kept]

    near = orders(NEAR * rays)
    if 2 * len(near) < len(rays) or (order := float(np.median(near))) < CURVED:
        return []
    farther = orders(rays)
    below, above = (float(np.mean(side > UNEVEN[0])) for side in (order - farther, farther - order))
    if min(below, above) < UNEVEN[1]:
        return []
    low, high = np.quantile(farther, [0.05, 0.95])
    return [
        f"along rays from the point the loss grows with powers from {low:.2g} to {high:.2g}: it is not a sum of "
        "products of powers, and the limit may be another"
    ]


def chain_limit(
    estimate: xr.Dataset, local: LocalLoss, nbeta: float, *, lowest: Lowest, key: PRNGKeyArray, sampler: ChainSampler
) -> xr.Dataset:
    """Chains over the decades below ``nbeta``, beside those of the ``estimate`` there, and the limit of their curve.

    They are half as long.
    """
    grid = np.geomspace(nbeta / 10**DECADES, nbeta, POINTS_OF_CHAINS)
    warm_up, draws = (max(count // 2, SHORTEST) for count in sampler.steps)
    sampler = replace(sampler, warm_up=warm_up, draws=draws)
    rows = []
    for i, t in enumerate(grid[:-1]):
        with part("limit, temperature", i, len(grid) - 1), collected():
            draws = sample_chains(sampler, local, t, key=jax.random.fold_in(key, i))
        rows.append(draws.statistics["chain_estimate"][1])
    slopes = np.stack([*rows, estimate["chain_estimate"].values], axis=1) + float(estimate["descent"]) * grid / nbeta
    slopes = slopes[np.isfinite(slopes).all(1)]
    if len(slopes) <= FEWEST:  # too few for a covariance
        return with_rise(estimate)
    intervals = np.log(grid)[:, None] + np.array([-WIDTH, WIDTH]) / 2
    limit = _limit(local, lowest, intervals, slopes, jax.random.fold_in(key, POINTS_OF_CHAINS))
    curve, curve_error = mean_and_error(slopes.T)
    limit = limit.assign(curve=("nbeta", curve), curve_error=("nbeta", curve_error)).assign_coords(nbeta=grid)
    return with_limit(estimate, limit)


def _limit(
    local: LocalLoss, lowest: Lowest, intervals: np.ndarray, slopes: np.ndarray, key: PRNGKeyArray
) -> xr.Dataset:
    """The limit of a curve, with a warning if no curve fits, or if that of a regular point ends elsewhere."""
    nbeta = math.exp(intervals[-1].mean())
    hypotheses = geometries(local, lowest.place, nbeta, jax.random.fold_in(key, PROBES))
    options: Any = {"parameters": local.centre.size, "localization": local.localization, "hypotheses": hypotheses}
    limit = extrapolated(intervals, slopes, **options)
    apart = abs(limit.seen - limit.level) > max(ERRORS * limit.level_error, APART * limit.value)
    misfits = limit.misfit < RARELY and (limit.regular <= RECOGNISED or apart)
    sentence = "no curve that is considered fits: the temperatures may be too high: take a larger n"
    if limit.regular > RECOGNISED:
        sentence = (
            f"the curve ends at {limit.seen:.3g}, and half the rank of the Hessian is {limit.value:.3g}: the prior "
            "holds other minima, or the temperatures are too high"
        )
    sentences = [sentence] if misfits else []
    sentences += _regular_warnings(
        hypotheses[0], limit.value, limit.error, local.centre.size, nbeta / local.localization
    )
    return xr.Dataset(
        {
            "estimate": limit.value,
            "mcse": limit.error,
            "interval": ("bound", np.array(limit.interval)),
            "level": limit.level,
            "level_error": limit.level_error,
            "left": limit.left,
            "left_error": limit.left_error,
            "regular_probability": limit.regular,
            "multiplicity_probability": ("multiplicity", limit.multiplicities),
        },
        coords={"bound": ["low", "high"], "multiplicity": 1 + np.arange(len(limit.multiplicities))},
        attrs={"warnings": sentences},
    )


def _regular_warnings(geometry: Geometry, value: float, error: float, size: int, scale: float) -> list[str]:
    """A sentence if a point is regular and the limit of the curve is another than half the rank of its Hessian.

    Curvatures of data may be those of noise, and a limit below half the rank is right then. It is told if ``scale``,
    nbeta over the localization, is too small for a curvature to have added to the curve.
    """
    h = geometry.curvatures
    if len(h) < size and geometry.regular < SURE:
        return []
    half, unseen = len(h) / 2, len(h) > 0 and scale * float(h.min()) < UNSEEN
    beyond = max(ERRORS * error, APART * half)
    if not (value - half > beyond or (unseen and half - value > beyond)):
        return []
    return [
        f"the point is regular, with half the rank of the Hessian, {half:.3g}, as the limit, and the curve fits "
        f"{value:.3g}: the temperatures are too high: take a larger n"
    ]


def limit_of_populations(posterior: LocalPosterior, *, key: PRNGKeyArray, sampler: SMC) -> xr.Dataset:
    """The limit by populations alone, without chains."""
    nbeta = posterior.temperature
    local = posterior.local_loss(sampler.block).localized(nbeta)
    lowest = lowest_near(local, nbeta)
    limit = annealed_limit(local, nbeta, lowest=lowest, key=key, sampler=sampler)
    limit = with_prior_share(limit, local, nbeta, key)
    settings = {"sampler": sampler.name, "settings": repr(sampler), "reason": "asked for", "nbeta": nbeta}
    settings |= {} if posterior.count is None else {"n": float(posterior.count)}
    return with_descent(limit.assign_attrs(settings), lowest, nbeta)


def with_limit(chains: xr.Dataset, annealed: xr.Dataset) -> xr.Dataset:
    """The estimate of chains at the last temperature, with the limit of a curve as the estimate.

    Warnings are those of the point and of the curve. If the curve is one of populations, and not of these chains,
    theirs are ``chain_warnings``; what the localization does at one temperature is part of every curve.
    """
    mean, error = float(chains["estimate"]), float(chains["mcse"])
    level = mean + float(chains["descent"])
    gap = level - float(annealed["level"])
    of_chains = mixing_warnings(chains)
    unmixed = [text for text in of_chains if LOCALIZED not in text]
    of_curve = [] if "free_energy" in annealed else unmixed
    of_point = [text for text in chains.attrs["warnings"] if text not in of_chains and LOCALIZED not in text]
    of_chains = [text for text in chains.attrs["warnings"] if text not in of_point]
    sentences = list(dict.fromkeys([*of_point, *of_curve, *annealed.attrs["warnings"]]))
    beyond = max(ERRORS * float(np.hypot(error, annealed["level_error"])), TOLD * abs(mean))
    if "free_energy" in annealed and abs(gap) > beyond and not (unmixed or _is_recognised(annealed)):
        sentences.append(
            f"chains have {level:.3g} where annealed populations have {float(annealed['level']):.3g}: one of "
            "them has not reached all, or the other has gone elsewhere"
        )
    dataset = chains.drop_vars(["estimate", "mcse"]).merge(annealed[list(OF_LIMIT)])
    dataset = dataset.assign(mean_estimate=mean, mean_estimate_error=error)
    settings: dict[str, Any] = {"annealing": repr(POPULATIONS)} if "free_energy" in annealed else {}
    settings |= {"warnings": sentences, "chain_warnings": of_chains}
    return checked(dataset.assign_attrs(chains.attrs | settings), "limit")


def _is_recognised(limit: xr.Dataset) -> bool:
    """True if the point is regular, so that the limit is half the rank of the Hessian and does not use the curve."""
    return float(limit["regular_probability"]) > RECOGNISED
