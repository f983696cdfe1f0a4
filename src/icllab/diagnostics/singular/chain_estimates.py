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
from icllab.diagnostics.sampling.local_loss import MOST_PULL, LocalLoss, largest_curvature
from icllab.diagnostics.sampling.sampled_losses import Batches
from icllab.diagnostics.sampling.sampler_choice import chosen_mode
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.sampling.sampling_warnings import chain_warnings

PULLS = (0.25, 4.0)  # times the localization, where it is varied


@dataclass(frozen=True)
class ChainEstimator:
    """A sampler of chains with all that is settled once for every point and temperature."""

    sampler: ChainSampler
    reason: str
    mode: str  # "map" or "vmap"
    mode_reason: str
    sensitivity: bool  # whether the localization is varied too

    @classmethod
    def settled(cls, sampler: ChainSampler, reason: str, here: LocalLoss, *, sensitivity: bool) -> "ChainEstimator":
        """With a mode, by what a gradient costs at a point."""
        target = sampler.target(here.posterior(1.0, 1.0), here.known)
        if sampler.mode != "auto":
            return cls(sampler, reason, sampler.mode, sampler.mode_reason, sensitivity)
        share = target.size / len(here.known.terms) if isinstance(target, Batches) else 1.0
        return cls(sampler, reason, *chosen_mode(share * here.seconds), sensitivity)

    def __call__(self, here: LocalLoss, nbeta: float, key: PRNGKeyArray) -> xr.Dataset:
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
        warm_up, draws = sampler.steps

        def drawn_from(starts: Array, size: float, warm_up: int, key: PRNGKeyArray, *, pull: float = 1.0) -> Chains:
            target = sampler.target(here.posterior(nbeta, pull * gamma), here.known)
            return sampler.draw(target, starts, step_size=size, warm_up=warm_up, mode=self.mode, key=key)

        def said(chains: Chains) -> dict[str, Any]:
            return statistics(chains, here.known.baseline, nbeta, far)

        drawn = drawn_from(starts, size, warm_up, keys[3])
        rows = said(drawn)
        rows["slope"] = nbeta**2 * float(jnp.sum(here.known.slope**2)) / max(curvature, gamma)
        rows["hessian_share"] = here.hessian_share(nbeta, gamma, rows["estimate"], keys[4])
        # Of the parameters' directions the localization holds so many, gamma E|w - w*|^2, if the loss is quadratic or
        # any other: where few, it does not decide, whatever the curvature.
        held = gamma * rows["distance"] ** 2 / here.centre.size
        narrow = here.narrowness(seen, drawn.last, curvature, keys[1]) if held > MOST_PULL else held
        rows["localization_share"] = min(held, narrow)
        chosen: dict[str, Any] = {"sampler": sampler.name, "settings": repr(sampler), "reason": self.reason}
        chosen |= {"mode": self.mode, "mode_reason": self.mode_reason}
        chosen |= {"nbeta": nbeta, "localization": gamma, "parameters": int(here.centre.size)}
        chosen |= {"dispersion": float(sampler.dispersion), "warm_up": warm_up, "draws": draws}
        if not sampler.tested:
            # Twice as many steps of half the size: continued, so that the program is the same.
            one, two = jax.random.split(keys[5])
            first = drawn_from(starts, size / 2, 2 * warm_up, one)
            halved = said(first.continued(drawn_from(first.last, size / 2, 0, two)))
            rows |= _gap("halved", halved, rows)
        if isinstance(target, Batches):
            rows["noise_bias"] = size * nbeta**2 * here.noise / 8
            chosen |= {"batch": target.size, "control_variate": target.slope is not None}
        if self.sensitivity:
            both = zip(PULLS, jax.random.split(keys[6]), strict=True)
            low, high = (said(drawn_from(starts, size, warm_up, own, pull=pull)) for pull, own in both)
            for name in ("estimate", "mcse"):
                rows[f"localization_{name}"] = ("localization_factor", np.array([low[name], high[name]]))
            rows |= _gap("localization", low, high)
        coordinates = {"localization_factor": list(PULLS)} if self.sensitivity else {}
        dataset = xr.Dataset(rows, coords=coordinates, attrs=chosen)
        return dataset.assign_attrs(warnings=chain_warnings(dataset))


def _gap(name: str, one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """How much one estimate is above another, with its error."""
    error = math.hypot(one["mcse"], other["mcse"])
    return {f"{name}_gap": one["estimate"] - other["estimate"], f"{name}_gap_error": error}
