"""Posterior expectations by Markov chains that write down what is observed."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected
from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.chain_statistics import statistics
from icllab.diagnostics.sampling.local_loss import LocalLoss, largest_curvature
from icllab.diagnostics.sampling.sampled_losses import BLOCK, vector_loss
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.sampling.sampling_warnings import chain_warnings
from icllab.diagnostics.singular.chain_estimates import ChainEstimator
from icllab.diagnostics.susceptibilities.expectations import Draws, Observables, observed_at


class Watched(eqx.Module):
    """A loss as terms whose sum it is, of which all but the first are what is observed.

    What is observed has no gradient here, so that the first term's gradient is the loss's: the chains are the same.
    """

    loss: Any
    observables: Any
    at_point: Float[Array, " observable"]

    def __call__(self, w: Any) -> Float[Array, " term"]:
        """The loss less the sum of the others, and the others."""
        seen = jax.lax.stop_gradient(self.observables(w)) - self.at_point
        return jnp.concatenate([(jnp.sum(self.loss(w)) - jnp.sum(seen))[None], seen])


@dataclass(frozen=True)
class ObservedChains:
    """Chains of a sampler with a Metropolis test, on all of the loss."""

    sampler: ChainSampler

    def __post_init__(self) -> None:
        if not (isinstance(self.sampler, ChainSampler) and self.sampler.tested):
            hint = "without one, and on batches, covariances are those of the noise too"
            raise expected("route", "Quadrature(), LinearResponse(), or chains with a test: HMC()", self.sampler, hint)

    def expectations(
        self, loss: Any, observables: Observables, at: Any, *, nbeta: float, localization: float, key: PRNGKeyArray
    ) -> Draws:
        """Values at all draws, and what is wrong with the chains in sentences."""
        flat, centre = vector_loss(loss, at, None)
        seen = vector_loss(observables, at, None)[0]
        at_point = observed_at(seen, centre)
        watched = Watched(flat, seen, jnp.asarray(at_point, centre.dtype))
        here = LocalLoss.from_loss(watched, centre, None, block=BLOCK, pull=localization)
        of_starts, of_size, of_chains, _ = jax.random.split(key, 4)
        sampler = self.sampler
        made = ChainEstimator.settled(sampler, "asked for", here, sensitivity=False)
        far = np.arange(sampler.chains) >= sampler.chains // 2
        starts = here.starts(localization, far, of_starts, dispersion=sampler.dispersion, inside=True)
        target = here.posterior(nbeta, localization)
        curvature = max(float(largest_curvature(target, here.centre, of_size)), localization)
        size = sampler.first_step / curvature if sampler.step_size is None else sampler.step_size
        chains = sampler.draw(target, starts, step_size=size, warm_up=sampler.steps[0], mode=made.mode, key=of_chains)
        terms = np.asarray(chains.terms, np.float64)
        if not np.isfinite(terms).all():
            raise expected("route", "chains that stay where all is finite", "a draw that is not", "take a smaller step")
        whole = chains._replace(terms=chains.terms.sum(2, keepdims=True))
        level = float(here.known.baseline.sum())
        rows = statistics(whole, np.array([level]), nbeta, far)
        rows["slope"] = nbeta**2 * float(jnp.sum(here.known.slope**2)) / curvature
        said = chain_warnings(xr.Dataset(rows, attrs={"nbeta": nbeta}))
        return Draws(terms[:, :, 1:], at_point, [*said, *_unmixed(terms[:, :, 1:])])


def _unmixed(values: np.ndarray) -> list[str]:
    """That chains disagree on what is observed."""
    found = [convergence.rhat(values[:, :, i]) for i in range(values.shape[2]) if np.ptp(values[:, :, i]) > 0]
    worst = max(found, default=1.0)
    return [] if worst <= 1.01 else [f"chains disagree: R-hat of what is observed is up to {worst:.3f}, above 1.01"]
