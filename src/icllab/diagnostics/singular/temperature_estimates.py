r"""Estimates of a learning coefficient at given temperatures, from draws of chains or of annealed populations.

.. math:: \hat\lambda = n\beta\,\bigl(E[L] - L(w^*)\bigr), \qquad
          w \sim \exp\Bigl(-n\beta\,L(w) - \frac\gamma2\lVert w - w^*\rVert^2\Bigr)

It estimates :math:`\lambda - (m-1)/\log n\beta`, if :math:`w^*` is a minimum and :math:`n\beta` is large: see
:meth:`LearningCoefficient.at <icllab.theory.learning_coefficients.LearningCoefficient.at>`. At a finite
:math:`n\beta` it counts the directions that this resolution distinguishes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_known
from icllab.core.progress import part
from icllab.diagnostics.sampling.chain_statistics import statistics
from icllab.diagnostics.sampling.chains import Chains
from icllab.diagnostics.sampling.local_loss import MOST_PULL, LocalLoss
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior
from icllab.diagnostics.sampling.sampled_losses import Batches
from icllab.diagnostics.sampling.sampler_choice import chosen_sampler
from icllab.diagnostics.sampling.samplers import (
    CURVATURE,
    HALF_STEPS,
    HESSIAN,
    ChainSampler,
    Draws,
    Sampler,
    sample_chains,
)
from icllab.diagnostics.sampling.sampling_warnings import chain_warnings, pulled, too_narrow
from icllab.diagnostics.sampling.sgnht import SGNHT
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.free_energies import annealed_slope

CHECKS = ("minimum", "hessian", "step_size", "data", "limit")
OF_HESSIAN = 0.25  # nominal seconds of the Hessian over those of the chains, if checks are shortened
OF_LOSSES = ("estimate", "mcse", "rhat", "ess", "drift", "drift_error", "chain_estimate", "chain_mcse", "loss_trace")
OF_LOSSES += ("baseline", "least_loss")  # what losses alone tell
PLACES = 8  # one and seven draws of the prior, where the curvature of a loss that is annealed is computed


@dataclass(frozen=True)
class Checks:
    """The checks of an estimate, in all lengths that they can have or together no longer than the estimate."""

    names: tuple[str, ...] = CHECKS
    complete: bool = False

    @classmethod
    def parse(cls, names: Any) -> "Checks":
        """The named checks, complete; None: all, shortened; checks as they are.

        Raises:
            InputError: A name is unknown.
        """
        if names is None:
            return cls()
        if isinstance(names, cls):
            return names
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise expected("checks", f"a tuple of names, of {', '.join(CHECKS)}", names, "() is none")
        for name in (names := tuple(names)):
            require_known("check", name, CHECKS)
        return cls(tuple(name for name in CHECKS if name in names), True)

    def __contains__(self, name: str) -> bool:
        return name in self.names


ALL, NONE = Checks(), Checks((), True)


def estimate_at_temperature(
    posterior: LocalPosterior, *, key: PRNGKeyArray, sampler: Sampler | str = "auto", checks: Checks = ALL
) -> xr.Dataset:
    """The estimate at the posterior's temperature, by chains or by populations that are annealed to it."""
    nbeta = posterior.temperature
    local, sampler, reason = chosen(posterior, sampler)
    local = local.localized(nbeta)
    key = jax.random.fold_in(key, 0)
    with part("estimate"):
        if isinstance(sampler, ChainSampler):
            estimate = _by_chains(local, nbeta, sampler, reason, key, checks)
        else:
            estimate = _by_populations(local, nbeta, sampler, reason, key)
    if posterior.localization is None:
        estimate = with_chosen_localization(estimate)
    return estimate if posterior.count is None else estimate.assign_attrs(n=float(posterior.count))


def chosen(posterior: LocalPosterior, sampler: Any) -> tuple[LocalLoss, ChainSampler | SMC, str]:
    """The loss at the point, the sampler, chosen by the cost of a gradient if it is ``"auto"``, and the reason."""
    if sampler == "auto":
        local = posterior.local_loss()
        return local, *chosen_sampler(local.seconds, local.samples)
    if not isinstance(sampler, ChainSampler | SMC):
        raise expected("sampler", "'auto', HMC(), MALA(), SGLD(), RMSpropSGLD(), SGNHT(), NUTS() or SMC()", sampler)
    return posterior.local_loss(sampler.block), sampler, "asked for"


def _by_chains(
    local: LocalLoss, nbeta: float, sampler: ChainSampler, reason: str, key: PRNGKeyArray, checks: Checks
) -> xr.Dataset:
    """The estimate of chains, without a Metropolis test also at half the step size."""
    draws = sample_chains(sampler, local, nbeta, key=key)
    estimate = estimate_from_draws(draws, reason, checks)
    if sampler.tested or "step_size" not in checks:
        return estimate
    with part("check of the step size"):
        if checks.complete:
            statistics = draws.at_half_steps(draws.part(HALF_STEPS)).statistics
            value, mcse = statistics["estimate"], statistics["mcse"]
        else:
            value, mcse = draws.briefly_at_half_steps(draws.part(HALF_STEPS))
    error = math.hypot(mcse, draws.statistics["mcse"])
    gap = {"halved_gap": value - draws.statistics["estimate"], "halved_gap_error": error}
    estimate = checked(estimate.assign(gap), "step_size")
    return estimate.assign_attrs(warnings=chain_warnings(estimate))


def _by_populations(local: LocalLoss, nbeta: float, sampler: SMC, reason: str, key: PRNGKeyArray) -> xr.Dataset:
    """The slope of the free energy on log nbeta."""
    posterior = LocalPosterior(local.loss, local.centre, nbeta=nbeta, localization=local.localization)
    estimate = with_prior_share(annealed_slope(posterior, key=key, sampler=sampler), local, nbeta, key)
    settings = {"sampler": sampler.name, "settings": repr(sampler), "reason": reason}
    settings |= {"nbeta": nbeta, "parameters": int(local.centre.size)}
    return estimate.assign_attrs(settings | estimate.attrs)


def estimate_from_draws(draws: Draws, reason: str = "asked for", checks: Checks = ALL) -> xr.Dataset:
    """The estimate of chains at one point and one temperature, with what tells whether they have converged."""
    local, sampler, gamma = draws.local, draws.sampler, draws.localization
    rows = dict(draws.statistics)
    if "hessian" in checks:
        budget = math.inf if checks.complete else OF_HESSIAN * draws.seconds
        options: Any = {"key": draws.part(HESSIAN), "budget": budget}
        with part("check of the Hessian"):
            rows["hessian_share"] = local.hessian_share(draws.nbeta, gamma, rows["estimate"], **options)
    # The localization holds gamma E|w - w*|^2 of the directions, if the loss is quadratic or not: if these are few, it
    # does not decide, whatever the curvature.
    share = gamma * rows["distance"] ** 2 / local.centre.size
    smooth, last = local.posterior(draws.nbeta, gamma, curved=True), draws.chains.last
    narrowness = local.narrowness(smooth, last, draws.curvature, draws.part(CURVATURE)) if share > MOST_PULL else share
    rows["localization_share"] = min(share, narrowness)
    settings: dict[str, Any] = {"sampler": sampler.name, "settings": repr(sampler), "reason": reason}
    settings |= {"mode": draws.mode, "mode_reason": draws.mode_reason}
    settings |= {"nbeta": draws.nbeta, "localization": gamma, "parameters": int(local.centre.size)}
    settings |= {"noise_level": getattr(sampler, "noise_level", 1.0)}
    settings |= {"dispersion": float(sampler.dispersion), "warm_up": sampler.steps[0], "draws": sampler.steps[1]}
    target = sampler.target(local.posterior(draws.nbeta, gamma), local.known)
    if isinstance(target, Batches):
        if not isinstance(sampler, SGNHT):
            rows["noise_bias"] = draws.first_step * draws.nbeta**2 * local.noise / 8 * sampler.scale
        settings |= {"batch": target.size, "control_variate": target.slope is not None}
    made = [name for name in ("hessian",) if name in checks and math.isfinite(rows["hessian_share"])]
    dataset = xr.Dataset(rows, attrs=settings | {"checks": ", ".join(made)})
    return dataset.assign_attrs(warnings=chain_warnings(dataset))


def estimate_from_losses(draws: xr.Dataset) -> xr.Dataset:
    """The estimate of another program's chains, from losses of samples at their draws and at the point."""
    for name in ("sample_loss", "baseline"):
        if name not in draws:
            raise expected("draws", f"a Dataset with {name}", sorted(map(str, draws.data_vars)))
    if "nbeta" not in draws.attrs:
        raise expected("draws", "a Dataset with the attribute nbeta", sorted(draws.attrs))
    nbeta, baseline = float(draws.attrs["nbeta"]), draws["baseline"].astype(np.float64)
    above = (draws["sample_loss"].astype(np.float64) - baseline).mean("sample").transpose("chain", "draw").values
    still = np.zeros(above.shape)  # distances from the point, which are not known
    parts: Any = above[..., None], still, still[:, 0], 0.0, still[:, :0]
    rows = statistics(Chains(*parts), np.array([float(baseline.mean())]), nbeta, still[:, 0] > 0) | {"slope": 0.0}
    dataset = xr.Dataset(rows, attrs={"nbeta": nbeta, "checks": ""})
    return dataset[list(OF_LOSSES)].assign_attrs(warnings=chain_warnings(dataset))


def checked(estimate: xr.Dataset, name: str) -> xr.Dataset:
    """An estimate whose attribute ``checks`` names one more."""
    return estimate.assign_attrs(checks=", ".join(filter(None, [estimate.attrs.get("checks", ""), name])))


def with_prior_share(dataset: xr.Dataset, local: LocalLoss, nbeta: float, key: PRNGKeyArray) -> xr.Dataset:
    """An estimate of populations with ``localization_share``, and a warning if that is large."""
    smooth = local.posterior(nbeta, local.localization, curved=True)
    of_places, of_curvatures = jax.random.split(jax.random.fold_in(key, 1))  # apart from those of the populations
    places = local.starts(local.localization, np.arange(PLACES) > 0, of_places, dispersion=1.0, inside=True)
    share = local.narrowness(smooth, places, 0.0, of_curvatures)
    sentences = [*dataset.attrs["warnings"], *([too_narrow(share)] if share > MOST_PULL else [])]
    return dataset.assign(localization_share=share).assign_attrs(warnings=sentences)


def with_chosen_localization(estimate: xr.Dataset) -> xr.Dataset:
    """An estimate at the default localization, whose choice is part of the error; of populations as it is."""
    if "localization_slope" not in estimate:
        return estimate
    names = ("estimate", "mcse", "localization_slope", "localization_slope_error")
    value, mcse, slope, error = (float(estimate[name]) for name in names)
    sentences = [*estimate.attrs["warnings"], *pulled(value, slope, error)]
    return estimate.assign(mcse=math.hypot(mcse, slope)).assign_attrs(warnings=sentences)
