r"""Draws of a posterior near a point by Markov chains: what a sampler returns, and what estimates are functions of.

.. math:: w \sim \exp\Bigl(-n\beta\,L(w) - \frac\gamma2\lVert w - w^*\rVert^2\Bigr)
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Key, PRNGKeyArray

from icllab.core.errors import expected, kind_of
from icllab.core.result_warnings import warn_at_once
from icllab.core.views import html_fields, one_line
from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.chain_statistics import statistics
from icllab.diagnostics.sampling.chains import Chains
from icllab.diagnostics.sampling.costs import chosen_mode
from icllab.diagnostics.sampling.local_loss import LocalLoss, largest_curvature
from icllab.diagnostics.sampling.sampled_losses import Batches, VectorLoss, shape_of
from icllab.diagnostics.sampling.sampling_warnings import NO_STATIONARY_POINT, chain_warnings
from icllab.diagnostics.stretches import map_in_stretches

if TYPE_CHECKING:
    from icllab.diagnostics.sampling.samplers import ChainSampler

# The same key serves the draws and what is computed from them; each purpose has an index of its own.
STARTS, CURVATURE, CHAINS, HESSIAN, HALF_STEPS, PULLS = 0, 1, 3, 4, 5, 6


@dataclass(frozen=True, repr=False)
class Draws:
    r"""Draws of chains, with the loss, the temperature and the localization that they are of.

    Attributes:
        local: The loss and its point :math:`w^*`.
        sampler: Sampler of the chains.
        nbeta: :math:`n\beta`.
        localization: :math:`\gamma`.
        key: Key of the chains.
        mode: ``"map"`` or ``"vmap"``.
        mode_reason: Why this mode.
        curvature: Largest curvature of the potential at the point.
        first_step: Step size that the chains start with.
        chains: Losses, distances and, if they are kept, parameters or observables of every draw.
    """

    local: LocalLoss
    sampler: "ChainSampler"
    nbeta: float
    localization: float
    key: PRNGKeyArray
    mode: str
    mode_reason: str
    curvature: float
    first_step: float
    chains: Chains

    def __repr__(self) -> str:
        return one_line("Draws", self._summary())

    def _repr_html_(self) -> str:
        return html_fields("Draws", self._summary())

    def _summary(self) -> dict[str, object]:
        chains, draws = self.losses.shape
        parts = self.chains.parameters
        kept = "losses alone" if parts is None else ", ".join(parts) if isinstance(parts, dict) else "parameters"
        return {
            "sampler": type(self.sampler).__name__,
            "chains": chains,
            "draws": draws,
            "n beta": f"{self.nbeta:.4g}",
            "localization": f"{self.localization:.4g}",
            "kept": kept,
        }

    def part(self, purpose: int) -> PRNGKeyArray:
        """The key of one purpose."""
        return purposes(self.key)[purpose]

    @property
    def far(self) -> np.ndarray:
        """Which chains start away from the point."""
        return dispersed(self.sampler)

    @property
    def losses(self) -> np.ndarray:
        """:math:`L(w) - L(w^*)` of every draw, [chain, draw]."""
        return np.asarray(self.chains.terms, np.float64).sum(2)

    @property
    def parameters(self) -> Array:
        """Parameters of every draw as vectors, [chain, draw, parameter].

        Raises:
            InputError: They were not kept.
        """
        if not isinstance(self.chains.parameters, jax.Array):
            came = "losses or observables alone"
            raise expected("draws", "draws with their parameters", came, "sampler.sample(...) keeps them")
        return self.chains.parameters

    @property
    def tree(self) -> Any:
        """Parameters of every draw as a tree of arrays with leading axes (chain, draw), None for arrays that are held.

        Raises:
            InputError: They were not kept.
        """
        held, unravel = self.local.loss.held, self.local.loss.unravel
        return jax.vmap(jax.vmap(unravel if held is None else lambda w: held.arrays(unravel(w))))(self.parameters)

    @property
    def observed(self) -> dict[str, Array]:
        """Observables of every draw, by name, with leading axes (chain, draw).

        Raises:
            InputError: None were kept.
        """
        if not isinstance(self.chains.parameters, dict):
            raise expected("draws", "draws with observables", "none", "observables={...} of a sampler keeps them")
        return self.chains.parameters

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """Variables of a dataset: the mean of the loss, its error, and whether chains agree."""
        rows = statistics(self.chains, self.local.known.baseline, self.nbeta, self.far, self.localization)
        rows |= {"slope": self.local.gradient_share(self.nbeta, max(self.curvature, self.localization))}
        return rows | {"rounding": self.nbeta * self.local.rounding}

    def again(
        self, key: PRNGKeyArray, *, first_step: float | None = None, warm_up: int | None = None, pull: float = 1.0
    ) -> "Draws":
        """Draws from the same starts, with another step size or ``pull`` times the localization."""
        return self._run(self._starts, key, first_step, warm_up, pull)

    def at_half_steps(self, key: PRNGKeyArray) -> "Draws":
        """Twice as many draws at half the step size, as two runs, so that the program is the same."""
        first_key, later_key = jax.random.split(key)
        half = self.first_step / 2
        first = self.again(first_key, first_step=half, warm_up=2 * self.sampler.steps[0])
        later = self._run(first.chains.last, later_key, half, 0 if self.sampler.memoryless else None, 1.0)
        return replace(first, chains=first.chains.continued(later.chains))

    def briefly_at_half_steps(self, key: PRNGKeyArray) -> tuple[float, float]:
        """The estimate at half the step size, with its error, from half as many draws that go on where these end."""
        end = self.chains.last
        starts = jnp.where(jnp.isfinite(end).all(axis=1, keepdims=True), end, self._starts)
        draws = max(self.sampler.steps[1] // 2, min(convergence.FEWEST, self.sampler.steps[1]))
        half = self._run(starts, key, self.first_step / 2, None, 1.0, draws=draws)
        above = self.nbeta * half.losses
        above = above[np.isfinite(above).all(1)]
        return convergence.mean_and_mcse(above) if len(above) else (math.nan, math.nan)

    @property
    def seconds(self) -> float:
        """Nominal seconds of all gradients of the chains."""
        target = self.sampler.target(self.local.posterior(1.0, 1.0), self.local.known)
        share = target.size / len(self.local.known.terms) if isinstance(target, Batches) else 1.0
        return self.sampler.gradients * share * self.local.seconds

    @property
    def _starts(self) -> Array:
        return chain_starts(self.sampler, self.local, self.nbeta, self.part(STARTS))

    def _run(
        self,
        starts: Array,
        key: PRNGKeyArray,
        first_step: float | None,
        warm_up: int | None,
        pull: float,
        **options: Any,
    ) -> "Draws":
        gamma, step = pull * self.localization, self.first_step if first_step is None else first_step
        target = self.sampler.target(self.local.posterior(self.nbeta, gamma), self.local.known)
        warm_up = self.sampler.steps[0] if warm_up is None else warm_up
        chains = self.sampler.draw(target, starts, step_size=step, warm_up=warm_up, mode=self.mode, key=key, **options)
        return replace(self, localization=gamma, first_step=step, chains=chains)

    # Expectations of observables.

    def values(self, observables: Any) -> tuple[np.ndarray, np.ndarray]:
        """A vector function of the parameters at the point, and above that at every draw, [chain, draw, observable].

        Raises:
            InputError: A value or a loss is not finite, the sampler has no Metropolis test, or parameters were not
                kept.
        """
        require_test(self.sampler)
        flat, at_point = at_centre(observables, self.local)
        above = np.asarray(_at_draws(flat, self.parameters, jnp.asarray(at_point, self.local.centre.dtype)), np.float64)
        if not (np.isfinite(above).all() and np.isfinite(self.losses).all()):
            raise expected("route", "chains that stay where all is finite", "a draw that is not", "take a smaller step")
        return at_point, above

    def mean(self, series: np.ndarray) -> tuple[float, float]:
        """The mean over draws, and its standard error from the effective number of draws."""
        return convergence.mean_and_mcse(series) if np.ptp(series) > 0 else (float(series.mean()), 0.0)

    def warnings(self, values: np.ndarray | None = None) -> list[str]:
        """What is wrong with the chains, and with what they say of observables, in sentences."""
        settings = {"nbeta": self.nbeta, "noise_level": getattr(self.sampler, "noise_level", 1.0)}
        sentences = chain_warnings(xr.Dataset(self.statistics, attrs=settings))
        return sentences if values is None else [*sentences, *disagreements(values)]

    @property
    def settings(self) -> dict[str, Any]:
        """Attributes of a dataset that is computed from the draws."""
        return posterior_settings(self.sampler, self.nbeta, self.localization)


def posterior_settings(route: Any, nbeta: float, localization: float) -> dict[str, Any]:
    """Attributes of a dataset that is computed from draws of a posterior."""
    settings = {"route": type(route).__name__, "settings": repr(route), "nbeta": nbeta}
    return settings | {"localization": localization, "resolution": localization / nbeta}


def purposes(key: PRNGKeyArray) -> Key[Array, " purpose"]:
    """The keys of a chain's purposes; of a clone, since each purpose may come back for its own."""
    return jax.random.split(jax.random.clone(key), 7)


def sample_chains(
    sampler: "ChainSampler",
    local: LocalLoss,
    nbeta: float,
    *,
    key: PRNGKeyArray,
    mode: tuple[str, str] | None = None,
    parameters: bool = False,
    observables: Mapping[str, Callable[[Any], Any]] | None = None,
) -> Draws:
    """Run the chains of a sampler near the point of a loss.

    ``mode`` is the mode with its reason, None for one by the cost of a gradient; ``parameters`` keeps the parameters
    of every draw, which take as much memory as all losses times their number, or the ``observables`` in their place.
    """
    keys, gamma = purposes(key), local.localization
    smooth = local.posterior(nbeta, gamma, curved=True)
    curvature = float(largest_curvature(smooth, local.centre, keys[CURVATURE]))
    if local.gradient_share(nbeta, max(curvature, gamma)) > 1:
        warn_at_once(NO_STATIONARY_POINT)
    starts = chain_starts(sampler, local, nbeta, keys[STARTS])
    step = sampler.step_size
    if step is None:
        # A step that is kept must do where the chains start too.
        at_start = 0.0 if sampler.tested else float(largest_curvature(smooth, starts[-1], purposes(key)[CURVATURE]))
        step = sampler.first_step / max(curvature, at_start, gamma) / sampler.scale
    name, reason = chain_mode(sampler, local) if mode is None else mode
    target = sampler.target(local.posterior(nbeta, gamma), local.known)
    keep: dict[str, Any] = {"parameters": True} if parameters else {}
    if observables is not None:
        if not isinstance(observables, Mapping) or not observables:
            raise expected("observables", "at least one function of parameters, by name", kind_of(observables))
        keep = {"parameters": _function(eqx.Partial(_observed, dict(observables)), local)}
        shape_of("observables", "functions of parameters", keep["parameters"], local.centre)
    chains = sampler.draw(target, starts, step_size=step, warm_up=sampler.steps[0], mode=name, key=keys[CHAINS], **keep)
    return Draws(local, sampler, nbeta, gamma, key, name, reason, curvature, step, chains)


def chain_mode(sampler: "ChainSampler", local: LocalLoss) -> tuple[str, str]:
    """The mode of the chains and the reason: the sampler's own, or by the nominal cost of a gradient."""
    if sampler.mode != "auto":
        return sampler.mode, sampler.mode_reason
    target = sampler.target(local.posterior(1.0, 1.0), local.known)
    share = target.size / len(local.known.terms) if isinstance(target, Batches) else 1.0
    return chosen_mode(share * local.seconds)


def dispersed(sampler: "ChainSampler") -> np.ndarray:
    """Which chains start away from the point: the second half."""
    return np.arange(sampler.chains) >= sampler.chains // 2


def chain_starts(sampler: "ChainSampler", local: LocalLoss, nbeta: float, key: PRNGKeyArray) -> Array:
    """Where the chains start; on batches also where the loss is not finite."""
    target = sampler.target(local.posterior(nbeta, local.localization), local.known)
    inside = not isinstance(target, Batches)
    return local.starts(local.localization, dispersed(sampler), key, dispersion=sampler.dispersion, inside=inside)


def require_test(sampler: Any) -> None:
    """Raise unless the chains have a Metropolis test."""
    if not sampler.tested:
        hint = "without one, and on batches, covariances are those of the noise too"
        raise expected("route", "Quadrature(), LinearResponse(), or chains with a test: HMC()", sampler, hint)


def at_centre(observables: Any, local: LocalLoss) -> tuple[VectorLoss, np.ndarray]:
    """Observables as a function of a vector, and their values at the point.

    Raises:
        InputError: They are no finite vector there.
    """
    flat = _function(observables, local)
    shape_of("observables", "functions of parameters", flat, local.centre)
    values = jnp.asarray(flat(local.centre))
    if values.ndim != 1 or not bool(jnp.isfinite(values).all()):
        raise expected("observables", "finite numbers at the point given", np.asarray(values).tolist())
    return flat, np.asarray(values, np.float64)


def _function(function: Any, local: LocalLoss) -> VectorLoss:
    """A function of all parameters as one of the vector."""
    return VectorLoss(function, local.loss.static, None, local.loss.unravel, local.loss.held)


def _observed(functions: dict[str, Callable[[Any], Any]], tree: Any) -> dict[str, Array]:
    return {name: jnp.asarray(function(tree)) for name, function in functions.items()}


def disagreements(values: np.ndarray) -> list[str]:
    """A sentence if chains disagree on an observable, [chain, draw, observable]."""
    varying = [i for i in range(values.shape[2]) if np.ptp(values[:, :, i]) > 0]
    worst = max((convergence.rhat(values[:, :, i]) for i in varying), default=1.0)
    return [] if worst <= 1.01 else [f"chains disagree: R-hat of what is observed is up to {worst:.3f}, above 1.01"]


def _at_draws(flat: VectorLoss, parameters: Array, at_point: Array) -> Array:
    """Observables above those at the point, one draw of all chains after the other."""
    of_draw = eqx.Partial(_above_point, flat, at_point)
    return jnp.swapaxes(map_in_stretches(of_draw, jnp.swapaxes(parameters, 0, 1)), 0, 1)


def _above_point(flat: VectorLoss, at_point: Array, chains: Array) -> Array:
    return jax.vmap(lambda w: flat(w) - at_point)(chains)
