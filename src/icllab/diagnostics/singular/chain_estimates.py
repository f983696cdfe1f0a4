r"""A learning coefficient from Markov chains: their mean :math:`n\beta(L - L(w^*))` and what it is worth."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

from icllab.diagnostics.sampling.chain_statistics import statistics
from icllab.diagnostics.sampling.chains import Chains
from icllab.diagnostics.sampling.sampled_losses import Batches
from icllab.diagnostics.sampling.sampler_choice import chosen_mode
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.sampling.sampling_warnings import MOST_PULL, chain_warnings
from icllab.diagnostics.singular.neighbourhoods import Neighbourhood, largest_curvature

PULLS = (0.25, 4.0)  # times the localization, where it is varied


@dataclass(frozen=True)
class ChainEstimator:
    """A sampler of chains with all that is settled once for every point and temperature.

    Attributes:
        sampler: Runs the chains.
        reason: Why this one.
        mode: ``"map"`` or ``"vmap"``.
        mode_reason: Why.
        sensitivity: Whether the localization is varied too.
    """

    sampler: ChainSampler
    reason: str
    mode: str
    mode_reason: str
    sensitivity: bool

    @classmethod
    def settled(
        cls,
        sampler: ChainSampler,
        reason: str,
        here: Neighbourhood,
        *,
        sensitivity: bool,
        key: PRNGKeyArray,
    ) -> "ChainEstimator":
        """With a mode, by what a gradient costs.

        Args:
            sampler: Runs the chains.
            reason: Why this one.
            here: Where the cost is found.
            sensitivity: Whether the localization is varied too.
            key: Of the timing.
        """
        target = sampler.target(here.posterior(1.0, 1.0), here.known)
        if sampler.mode != "auto":
            return cls(sampler, reason, sampler.mode, sampler.mode_reason, sensitivity)
        share = target.size / len(here.known.terms) if isinstance(target, Batches) else 1.0
        starts = jnp.broadcast_to(here.centre, (sampler.chains, here.centre.size))
        return cls(sampler, reason, *chosen_mode(target, starts, share * here.seconds, key), sensitivity)

    def __call__(self, here: Neighbourhood, nbeta: float, key: PRNGKeyArray) -> xr.Dataset:
        """The estimate at one point and one temperature."""
        sampler, gamma, keys = self.sampler, here.localization, jax.random.split(key, 7)
        seen = here.posterior(nbeta, gamma, curved=True)
        curvature = float(largest_curvature(seen, here.centre, keys[1]))
        target = sampler.target(here.posterior(nbeta, gamma), here.known)
        far = np.arange(sampler.chains) >= sampler.chains // 2
        inside = not isinstance(target, Batches)
        starts = here.starts(gamma, far, keys[0], dispersion=sampler.dispersion, inside=inside)
        size = sampler.step_size
        if size is None:
            # A step that is kept must do where the chains start too.
            there = 0.0 if sampler.tested else float(largest_curvature(seen, starts[-1], keys[1]))
            size = sampler.first_step / max(curvature, there, gamma)
        chains = _Chains(sampler, self.mode, here, nbeta, starts, far)
        drawn = chains(size, keys[3])
        rows = chains.said(drawn)
        rows["slope"] = nbeta**2 * float(jnp.sum(here.known.slope**2)) / max(curvature, gamma)
        rows["hessian_share"] = here.hessian_share(nbeta, gamma, rows["estimate"], keys[4])
        # Of the parameters' directions the localization holds so many, gamma E|w - w*|^2, if the loss is quadratic or
        # any other: where few, it does not decide, whatever the curvature.
        held = gamma * rows["distance"] ** 2 / here.centre.size
        narrow = here.narrowness(seen, drawn.last, curvature, keys[1]) if held > MOST_PULL else held
        rows["localization_share"] = min(held, narrow)
        warm_up, draws = sampler.steps
        chosen: dict[str, Any] = {"sampler": sampler.name, "settings": repr(sampler), "reason": self.reason}
        chosen |= {"mode": self.mode, "mode_reason": self.mode_reason}
        chosen |= {"nbeta": nbeta, "localization": gamma, "parameters": int(here.centre.size)}
        chosen |= {"dispersion": float(sampler.dispersion), "warm_up": warm_up, "draws": draws}
        if not sampler.tested:
            rows |= chains.at_half_the_step(size, rows, keys[5])
        if isinstance(target, Batches):
            rows["noise_bias"] = size * nbeta**2 * here.noise / 8
            chosen |= {"batch": target.size, "control_variate": target.slope is not None}
        if self.sensitivity:
            rows |= chains.at_other_pulls(size, keys[6])
        coordinates = {"localization_factor": list(PULLS)} if self.sensitivity else {}
        dataset = xr.Dataset(rows, coords=coordinates, attrs=chosen)
        return dataset.assign_attrs(warnings=chain_warnings(dataset))


@dataclass(frozen=True)
class _Chains:
    """Chains of one sampler at one point and one temperature, from the same starts, at any step size."""

    sampler: ChainSampler
    mode: str
    here: Neighbourhood
    nbeta: float
    starts: Array
    far: np.ndarray

    def __call__(self, size: float, key: PRNGKeyArray, *, pull: float = 1.0, longer: bool = False) -> Chains:
        """Draw; ``pull``: times the localization; ``longer``: twice as many steps, at no other program."""
        posterior = self.here.posterior(self.nbeta, pull * self.here.localization)
        target = self.sampler.target(posterior, self.here.known)

        def go(starts: Array, warm_up: int, key: PRNGKeyArray) -> Chains:
            return self.sampler.draw(target, starts, step_size=size, warm_up=warm_up, mode=self.mode, key=key)

        warm_up, _ = self.sampler.steps
        if not longer:
            return go(self.starts, warm_up, key)
        one, two = jax.random.split(key)
        first = go(self.starts, 2 * warm_up, one)
        second = go(first.last, 0, two)
        return second._replace(
            terms=jnp.concatenate([first.terms, second.terms], axis=1),
            distance=jnp.concatenate([first.distance, second.distance], axis=1),
        )

    def said(self, drawn: Chains) -> dict[str, Any]:
        """The estimate and what tells whether to believe it."""
        return statistics(drawn, self.here.known.baseline, self.nbeta, self.far)

    def at_half_the_step(self, size: float, rows: dict[str, Any], key: PRNGKeyArray) -> dict[str, float]:
        """What the estimate changes at half the step, in twice as many."""
        halved = self.said(self(size / 2, key, longer=True))
        return {
            "halved_gap": halved["estimate"] - rows["estimate"],
            "halved_gap_error": math.hypot(halved["mcse"], rows["mcse"]),
        }

    def at_other_pulls(self, size: float, key: PRNGKeyArray) -> dict[str, Any]:
        """Estimates at a quarter of the localization and at four times, and how much they differ."""
        keys = jax.random.split(key)
        low, high = (self.said(self(size, key, pull=pull)) for pull, key in zip(PULLS, keys, strict=True))
        return {
            "localization_estimate": ("localization_factor", np.array([low["estimate"], high["estimate"]])),
            "localization_mcse": ("localization_factor", np.array([low["mcse"], high["mcse"]])),
            "localization_gap": low["estimate"] - high["estimate"],
            "localization_gap_error": math.hypot(low["mcse"], high["mcse"]),
        }
