r"""Estimates of a learning coefficient at a point: which sampler makes them, and at which temperatures."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected
from icllab.diagnostics.sampling.local_loss import MOST_PULL, LocalLoss
from icllab.diagnostics.sampling.sampled_losses import BLOCK, require_mean, vector_loss
from icllab.diagnostics.sampling.sampler_choice import chosen_sampler
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.sampling.sampling_warnings import too_narrow
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.chain_estimates import ChainEstimator
from icllab.diagnostics.singular.coefficient_curves import inverse_temperatures, stacked, with_growth
from icllab.diagnostics.singular.free_energies import annealed_coefficient

PLACES = 8  # one and seven draws of the prior, where the curvature of a loss that is annealed is looked at


@dataclass(frozen=True)
class SlopeEstimator:
    """Populations that are annealed to each point's one temperature."""

    sampler: SMC
    reason: str

    def __call__(self, here: LocalLoss, nbeta: float, key: PRNGKeyArray) -> xr.Dataset:
        """The slope of the free energy on log nbeta, at one point."""
        gamma = here.localization
        how: dict[str, Any] = {"nbeta": nbeta, "localization": gamma, "key": key, "sampler": self.sampler}
        found = annealed_coefficient(here.loss, here.centre, **how)
        seen, far = here.posterior(nbeta, gamma, curved=True), np.arange(PLACES) > 0
        places = here.starts(gamma, far, key, dispersion=1.0, inside=True)
        share = here.narrowness(seen, places, 0.0, key)
        said = [*found.attrs["warnings"], *([too_narrow(share)] if share > MOST_PULL else [])]
        chosen = {"sampler": self.sampler.name, "settings": repr(self.sampler), "reason": self.reason}
        chosen |= {"nbeta": nbeta, "parameters": int(here.centre.size)}
        return found.assign(localization_share=share).assign_attrs(chosen | found.attrs | {"warnings": said})


Estimator: TypeAlias = ChainEstimator | SlopeEstimator


def estimator(
    sampler: ChainSampler | SMC | None, loss: Any, at: Any, data: Any, *, sensitivity: bool, key: PRNGKeyArray
) -> Estimator:
    """What makes every estimate, with what is settled once at the point: the sampler, and how its chains run.

    Without a sampler one is chosen by what gradients cost.

    Raises:
        InputError: The localization is to be varied and there are no chains, or the loss is no mean over samples.
    """
    flat, centre = vector_loss(loss, at, data)
    require_mean(flat, centre)
    block = BLOCK if sampler is None else sampler.block
    here, reason = LocalLoss.from_loss(loss, at, data, block=block), "asked for"
    if sampler is None:
        samples = 0 if data is None else len(here.known.terms)
        sampler, reason = chosen_sampler(here.seconds, centre.size, samples)
    if isinstance(sampler, ChainSampler):
        return ChainEstimator.settled(sampler, reason, here, sensitivity=sensitivity)
    if sensitivity:
        raise expected("sensitivity", "False with SMC, which has no chains", True, "HMC() has them")
    return SlopeEstimator(sampler, reason)


def estimates(
    found_by: Estimator,
    loss: Any,
    at: Any,
    data: Any,
    *,
    n: float | None,
    nbeta: Any,
    localization: float | None,
    key: PRNGKeyArray,
) -> xr.Dataset:
    """One estimate, or a curve of them where ``nbeta`` has several values, or is None as ``n`` is."""
    values, is_curve = inverse_temperatures(n, nbeta)
    if is_curve and isinstance(found_by, SlopeEstimator):
        raise expected("nbeta", "one number with SMC", values, "free_energy has a grid of its own")
    here = LocalLoss.from_loss(loss, at, data, block=found_by.sampler.block, pull=localization)
    found = [found_by(here, value, jax.random.fold_in(key, i)) for i, value in enumerate(values)]
    if n is not None:
        found = [one.assign_attrs(n=float(n)) for one in found]
    return with_growth(stacked(found, "nbeta", values)) if is_curve else found[0]
