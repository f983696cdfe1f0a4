r"""Estimates of a learning coefficient at given temperatures, from draws of chains or of annealed populations.

.. math:: \hat\lambda = n\beta\,\bigl(E[L] - L(w^*)\bigr), \qquad
          w \sim \exp\Bigl(-n\beta\,L(w) - \frac\gamma2\lVert w - w^*\rVert^2\Bigr)

It estimates :math:`\lambda - (m-1)/\log n\beta`, if :math:`w^*` is a minimum and :math:`n\beta` is large: see
:meth:`LearningCoefficient.at <icllab.theory.learning_coefficients.LearningCoefficient.at>`. At a finite
:math:`n\beta` it counts the directions that this resolution distinguishes.
"""

import math
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.domains import Domain
from icllab.core.errors import expected, require_known
from icllab.core.progress import keep, part
from icllab.core.result_warnings import collected
from icllab.diagnostics.sampling.draws import CURVATURE, HALF_STEPS, HESSIAN, PULLS, Draws, chain_mode, sample_chains
from icllab.diagnostics.sampling.local_loss import MOST_PULL, LocalLoss
from icllab.diagnostics.sampling.priors import Prior
from icllab.diagnostics.sampling.sampled_losses import BLOCK, Batches, require_mean, sample_count, vector_loss
from icllab.diagnostics.sampling.sampler_choice import chosen_sampler
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.sampling.sampling_warnings import chain_warnings, pulled, too_narrow
from icllab.diagnostics.sampling.sgnht import SGNHT
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.coefficient_curves import inverse_temperatures, stacked, with_growth
from icllab.diagnostics.singular.free_energies import annealed_slope
from icllab.diagnostics.singular.run_losses import prompts_for, requested_steps, run_loss
from icllab.training.runs import Run

CHECKS = ("minimum", "hessian", "step_size", "data", "limit")
OF_HESSIAN = 0.25  # nominal seconds of the Hessian over those of the chains, if checks are shortened
PLACES = 8  # one and seven draws of the prior, where the curvature of a loss that is annealed is computed
FACTORS = (0.25, 4.0)  # times the localization, if it is varied


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


ALL = Checks()


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


@dataclass(frozen=True)
class ChainEstimator:
    """A sampler of chains, with the mode that all points and temperatures share."""

    sampler: ChainSampler
    reason: str
    mode: str  # "map" or "vmap"
    mode_reason: str
    sensitivity: bool  # whether the localization is varied too
    checks: Checks = ALL

    def __call__(self, local: LocalLoss, nbeta: float, key: PRNGKeyArray) -> xr.Dataset:
        """The estimate at one point and one temperature, with that at half the step size if there is no test."""
        draws = sample_chains(self.sampler, local, nbeta, key=key, mode=(self.mode, self.mode_reason))
        dataset = estimate_from_draws(draws, self.reason, self.checks)
        if not self.sampler.tested and "step_size" in self.checks:
            with part("check of the step size"):
                if self.checks.complete:
                    at_half_step = draws.at_half_steps(draws.part(HALF_STEPS)).statistics
                else:
                    value, mcse = draws.briefly_at_half_steps(draws.part(HALF_STEPS))
                    at_half_step = {"estimate": value, "mcse": mcse}
            dataset = checked(dataset.assign(_gap("halved", at_half_step, draws.statistics)), "step_size")
        if self.sensitivity:
            keys = jax.random.split(draws.part(PULLS))
            low, high = (draws.again(k, pull=pull).statistics for pull, k in zip(FACTORS, keys, strict=True))
            axis = ("localization_factor", list(FACTORS))
            for name in ("estimate", "mcse"):
                dataset[f"localization_{name}"] = xr.DataArray([low[name], high[name]], coords=[axis])
            dataset = dataset.assign(_gap("localization", low, high))
        return dataset.assign_attrs(warnings=chain_warnings(dataset))


def checked(estimate: xr.Dataset, name: str) -> xr.Dataset:
    """An estimate whose attribute ``checks`` names one more."""
    return estimate.assign_attrs(checks=", ".join(filter(None, [estimate.attrs.get("checks", ""), name])))


def _gap(name: str, statistics: dict[str, Any], reference: dict[str, Any]) -> dict[str, float]:
    """The difference of two estimates, with its error."""
    error = math.hypot(statistics["mcse"], reference["mcse"])
    return {f"{name}_gap": statistics["estimate"] - reference["estimate"], f"{name}_gap_error": error}


@dataclass(frozen=True)
class SlopeEstimator:
    """Populations that are annealed to the one temperature of each point."""

    sampler: SMC
    reason: str

    def __call__(self, local: LocalLoss, nbeta: float, key: PRNGKeyArray) -> xr.Dataset:
        """The slope of the free energy on log nbeta, at one point."""
        gamma = local.localization
        slope = annealed_slope(local.loss, local.centre, nbeta=nbeta, localization=gamma, key=key, sampler=self.sampler)
        dataset = with_prior_share(slope, local, nbeta, key)
        settings = {"sampler": self.sampler.name, "settings": repr(self.sampler), "reason": self.reason}
        settings |= {"nbeta": nbeta, "parameters": int(local.centre.size)}
        return dataset.assign_attrs(settings | dataset.attrs)


def with_prior_share(dataset: xr.Dataset, local: LocalLoss, nbeta: float, key: PRNGKeyArray) -> xr.Dataset:
    """An estimate of populations with ``localization_share``, and a warning if that is large."""
    smooth = local.posterior(nbeta, local.localization, curved=True)
    of_places, of_curvatures = jax.random.split(jax.random.fold_in(key, 1))  # apart from those of the populations
    places = local.starts(local.localization, np.arange(PLACES) > 0, of_places, dispersion=1.0, inside=True)
    share = local.narrowness(smooth, places, 0.0, of_curvatures)
    sentences = [*dataset.attrs["warnings"], *([too_narrow(share)] if share > MOST_PULL else [])]
    return dataset.assign(localization_share=share).assign_attrs(warnings=sentences)


Estimator: TypeAlias = ChainEstimator | SlopeEstimator


def estimator(
    sampler: ChainSampler | SMC | None,
    loss: Any,
    at: Any,
    data: Any,
    *,
    sensitivity: bool = False,
    checks: Checks = ALL,
) -> Estimator:
    """What makes the estimates at all points and temperatures; None: a sampler by the cost of a gradient.

    Raises:
        InputError: The localization is to be varied and there are no chains, or the loss is no mean over samples.
    """
    require_mean(*vector_loss(loss, at, data))
    local = LocalLoss.from_loss(loss, at, data, block=BLOCK if sampler is None else sampler.block)
    reason = "asked for"
    if sampler is None:
        sampler, reason = chosen_sampler(local.seconds, local.samples)
    if isinstance(sampler, ChainSampler):
        return ChainEstimator(sampler, reason, *chain_mode(sampler, local), sensitivity, checks)
    if sensitivity:
        raise expected("sensitivity", "False with SMC, which has no chains", True, "HMC() has them")
    return SlopeEstimator(sampler, reason)


def estimates(
    estimate: Estimator,
    loss: Any,
    at: Any,
    data: Any,
    *,
    n: float | None,
    nbeta: Any,
    localization: float | None,
    key: PRNGKeyArray,
    prior: Prior | None = None,
) -> xr.Dataset:
    """One estimate, or a curve of them if ``nbeta`` has several values, or is None as ``n`` is."""
    values, is_curve = inverse_temperatures(n, nbeta)
    if is_curve and isinstance(estimate, SlopeEstimator):
        raise expected("nbeta", "one number with SMC", values, "free_energy has a grid of its own")
    block = estimate.sampler.block
    local = LocalLoss.from_loss(loss, at, data, block=block, pull=localization, prior=prior).localized(values[-1])
    rows = []
    for i, value in enumerate(values):
        with part("estimate", i, len(values)), collected() if is_curve else nullcontext():
            row = estimate(local, value, jax.random.fold_in(key, i))
        rows.append(row if localization is not None else _with_localization(row))
        if is_curve:
            keep(rows[-1].assign_coords(nbeta=value))
    if n is not None:
        rows = [row.assign_attrs(n=float(n)) for row in rows]
    return with_growth(stacked(rows, "nbeta", values)) if is_curve else rows[0]


def _with_localization(estimate: xr.Dataset) -> xr.Dataset:
    """An estimate at the default localization, whose choice is part of the error; of populations as it is."""
    if "localization_slope" not in estimate:
        return estimate
    names = ("estimate", "mcse", "localization_slope", "localization_slope_error")
    value, mcse, slope, error = (float(estimate[name]) for name in names)
    sentences = [*estimate.attrs["warnings"], *pulled(value, slope, error)]
    return estimate.assign(mcse=math.hypot(mcse, slope)).assign_attrs(warnings=sentences)


def estimate_at_temperature(
    loss: Any,
    at: Any = None,
    *,
    n: float | None = None,
    key: PRNGKeyArray,
    sampler: Any = "auto",
    data: Any = None,
    nbeta: Any = None,
    localization: float | None = None,
    sensitivity: bool = False,
    prior: Prior | None = None,
    task: Any = None,
    positions: Any = None,
    per_position: bool = False,
    checks: Any = None,
) -> xr.Dataset:
    r"""Estimate at the given temperatures, or at :math:`n/\log n`; arguments are those of ``learning_coefficient``."""
    require_numbers(n, localization)
    sampler, checks = None if sampler == "auto" else sampler, Checks.parse(checks)
    if not isinstance(loss, Run):
        require_no_run(task, positions, per_position)
        estimate = estimator(sampler, loss, at, data, sensitivity=sensitivity, checks=checks)
        count = sample_count(data) if n is None and data is not None else n
        options: Any = {"nbeta": nbeta, "localization": localization, "prior": prior}
        return estimates(estimate, loss, at, data, n=count, key=key, **options)
    of_prompts, key = jax.random.split(key)
    prompts = prompts_for(task, data, key=of_prompts)
    count = sample_count(prompts) if n is None and not (data is None or isinstance(data, int)) else n
    shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), prompts)
    positions = "every" if positions is None else positions

    def member_at(member: int, step: int | None) -> tuple[Any, Any]:
        options: Any = {"positions": positions, "per_position": per_position}
        return run_loss(loss, step, member, task, prompt=shape, data=prompts, **options)

    steps, members = requested_steps(loss, at), []
    estimate = estimator(sampler, *member_at(0, steps[0]), prompts, sensitivity=sensitivity, checks=checks)
    if per_position and not isinstance(estimate.sampler, ChainSampler):
        raise expected("per_position", f"False with {estimate.sampler.name}, which has no terms", True)
    for member in range(loss.size):
        options: Any = {
            "n": count,
            "nbeta": nbeta,
            "localization": localization,
            "prior": prior,
            "key": jax.random.fold_in(key, member),
        }
        rows = []
        for i, step in enumerate(steps):
            with part("state", member * len(steps) + i, loss.size * len(steps)), collected():
                rows.append(estimates(estimate, *member_at(member, step), prompts, **options))
            keep(rows[-1].assign_attrs(member=member, step=step))
        members.append(rows[0] if at is None or isinstance(at, int | np.integer) else stacked(rows, "step", steps))
    return stacked(members, "member", range(loss.size))


def require_numbers(n: Any, localization: Any) -> None:
    """Raise unless both are in their range, or None."""
    for name, value, least in (("n", n, 1.0), ("localization", localization, 0.0)):
        if value is not None:
            Domain(above=least).require(name, value)


def require_no_run(task: Any, positions: Any, per_position: bool) -> None:
    """Raise if an argument is given that is only valid for a training run."""
    for name, value in (("task", task), ("positions", positions), ("per_position", per_position or None)):
        if value is not None:
            raise expected(name, "a training run as the loss", value, "leave it out")
