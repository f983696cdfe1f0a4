r"""Samplers as values, and the draws of those that run Markov chains.

A sampler is a frozen value with its own tuning, so that it can be compared, printed and kept in a configuration. A new
one that runs chains is one file with a subclass of :class:`ChainSampler`: its move and its tuning parameters.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Key, PRNGKeyArray

from icllab.core import progress
from icllab.core.domains import NON_NEGATIVE, POSITIVE
from icllab.core.errors import expected, kind_of, require_integer, require_key
from icllab.core.result_warnings import warn_at_once
from icllab.core.views import html_fields, one_line
from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.chain_statistics import statistics
from icllab.diagnostics.sampling.chains import Chains, Kept, Move, run_chains
from icllab.diagnostics.sampling.costs import chosen_mode
from icllab.diagnostics.sampling.local_loss import LocalLoss, largest_curvature
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior, of_posterior
from icllab.diagnostics.sampling.observables import (
    at_centre,
    at_draws,
    disagreements,
    function_of_vector,
    posterior_settings,
    require_test,
)
from icllab.diagnostics.sampling.posteriors import Posterior, Starts
from icllab.diagnostics.sampling.sampled_losses import BLOCK, AtPoint, Batches, shape_of
from icllab.diagnostics.sampling.sampling_warnings import NO_STATIONARY_POINT, chain_warnings

MODES = ("auto", "map", "vmap")
# The same key serves the draws and what is computed from them; each purpose has an index of its own.
STARTS, CURVATURE, CHAINS, HESSIAN, HALF_STEPS = 0, 1, 3, 4, 5


class Sampler:
    """A method that draws from a posterior near a point: chains at one temperature, or populations through many."""

    @property
    def name(self) -> str:
        """Name of the class."""
        return type(self).__name__

    @property
    def block(self) -> int:
        """Samples of the data that are evaluated at once where all of them count."""
        return BLOCK


@dataclass(frozen=True, kw_only=True)
class ChainSampler(Sampler):
    r"""A sampler of Markov chains, which are split between starts at the point and away from it.

    A subclass has a :attr:`move`, of which the chains are made here, or a :meth:`draw` of its own.

    Attributes:
        tested: Whether a Metropolis test makes the posterior the stationary distribution at any step size. Without
            one, the same estimate at half the step is part of an estimate.
        acceptance: Acceptance that the step size is adapted to by dual averaging while the chains warm up, pooled over
            chains; it is held after. None: it is kept as it is.
        first_step: Step size that is taken where none is given, times the largest curvature of the potential.
        mode_reason: Why the mode is what it is, where it is not left to a timing.
        chains: Number of chains, at least 4.
        warm_up: Moves that are left out, at least 1.
        draws: Draws of each chain, at least 8; None: twice as many as the moves of the warm-up.
        thinning: Moves for each draw, at least 1: the last of them is the draw.
        step_size: :math:`\epsilon` of Langevin dynamics, in leapfrog steps of size s :math:`s^2`, which an adaptation
            starts from. None: from the largest curvature, at the point and, without a test, where chains start.
        dispersion: :math:`\sigma \ge 0`: half of the chains start at :math:`w^* + \sigma\gamma^{-1/2}\xi`.
        mode: Gradients of the chains side by side (``"vmap"``), one after the other (``"map"``), or what a short
            timing says (``"auto"``).

    Raises:
        InputError: A number is out of its range.
    """

    tested: ClassVar[bool] = True
    memoryless: ClassVar[bool] = True  # whether a chain goes on from its parameters alone
    acceptance: ClassVar[float | None] = None
    first_step: ClassVar[float] = 1.0
    mode_reason: ClassVar[str] = "asked for"

    chains: int = 8
    warm_up: int = 2000
    draws: int | None = None
    thinning: int = 1
    step_size: float | None = None
    dispersion: float = 0.3
    mode: str = "auto"

    def __post_init__(self) -> None:
        if self.step_size is not None:
            POSITIVE.require("step_size", self.step_size)
        require_integer("warm_up", self.warm_up)
        require_integer("thinning", self.thinning)
        if self.draws is not None:
            require_integer("draws", self.draws, least=convergence.FEWEST)
        NON_NEGATIVE.require("dispersion", self.dispersion)
        if isinstance(self.chains, bool) or not isinstance(self.chains, int) or self.chains < 4:
            raise expected("chains", "at least 4, two for each kind of start", self.chains)
        if self.mode not in MODES:
            raise expected("mode", "'auto', 'map' or 'vmap'", self.mode)

    @property
    def scale(self) -> float:
        """Largest ratio of a step and one of Langevin dynamics."""
        return 1.0

    @property
    def steps(self) -> tuple[int, int]:
        """Moves of the warm-up, and draws."""
        return self.warm_up, 2 * self.warm_up if self.draws is None else self.draws

    @property
    def moves(self) -> int:
        """Moves after the warm-up."""
        return self.steps[1] * self.thinning

    @property
    def gradients_per_move(self) -> int:
        """Gradients of a chain in a move, about."""
        return 1

    @property
    def gradients(self) -> int:
        """Gradients of all chains in all moves, about."""
        return self.chains * (self.warm_up + self.moves) * self.gradients_per_move

    def target(self, posterior: Posterior, known: AtPoint) -> Posterior | Batches:
        """The posterior as a move evaluates it: as it is, unless the sampler takes batches."""
        return posterior

    @property
    def move(self) -> Move:
        """``(posterior, evaluate, states, step size, key) -> (states, acceptance of each chain)``."""
        raise NotImplementedError

    def draw(
        self,
        target: Any,
        starts: Starts,
        *,
        step_size: float,
        warm_up: int,
        mode: str,
        key: PRNGKeyArray,
        parameters: Kept = False,
        draws: int | None = None,
    ) -> Chains:
        """Run the chains from their ``starts`` on a :meth:`target`.

        ``step_size`` is that of Langevin dynamics, ``mode`` is ``"map"`` or ``"vmap"``. With a ``warm_up`` of 0 chains
        that are warm go on. ``parameters`` keeps the parameters of every draw, or a function of them. ``draws`` is the
        number of draws if it is smaller than usual, by the same program.
        """
        size = step_size if self.acceptance is None else math.sqrt(step_size)
        progress.stage(self.name, warm_up + (draws or self.steps[1]) * self.thinning, "moves")
        return run_chains(
            target,
            starts,
            sampler=self,
            step_size=jnp.asarray(size, starts.dtype),
            steps=(warm_up, draws or self.steps[1]),
            mode=mode,
            key=key,
            parameters=parameters,
        )

    @progress.shows("sampling")
    @of_posterior(position=1)
    def sample(
        self,
        posterior: LocalPosterior,
        *,
        key: PRNGKeyArray,
        observables: Mapping[str, Callable[[Any], Any]] | None = None,
        progress: bool | None = None,
    ) -> "Draws":
        r"""Draw from a posterior at one temperature.

        Args:
            posterior: Loss near a point.
            key: Key of the chains.
            observables: Name -> array of the parameters, which is kept of every draw in their place; None: parameters.
            progress: Whether moves and the time left are shown; None: on a terminal and in a notebook.

        Returns:
            Losses and parameters or observables of every draw: what
            :func:`~icllab.diagnostics.singular.coefficients.coefficient_of_draws`,
            :func:`~icllab.diagnostics.singular.fluctuations.singular_fluctuation`,
            :func:`~icllab.diagnostics.sampling.covariances.weight_covariance` and
            :func:`~icllab.diagnostics.susceptibilities.tilts.susceptibility_of_draws` are functions of.

        Raises:
            InputError: As :class:`~icllab.diagnostics.sampling.local_posteriors.LocalPosterior`.
        """
        require_key(key)
        nbeta = posterior.temperature
        local = posterior.local_loss(self.block).localized(nbeta)
        return sample_chains(self, local, nbeta, key=key, parameters=True, observables=observables)


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
    sampler: ChainSampler
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
        steepest = max(self.curvature, self.localization)
        rows |= {"slope": self.local.gradient_share(self.nbeta, steepest)}
        if self.local.prior is not None:
            rows |= {"prior_slope": self.local.prior_share(steepest)}
        return rows | {"rounding": self.nbeta * self.local.rounding}

    def at_half_steps(self, key: PRNGKeyArray) -> "Draws":
        """Twice as many draws at half the step size, as two runs, so that the program is the same."""
        first_key, later_key = jax.random.split(key)
        half = self.first_step / 2
        first = self._run(self._starts, first_key, half, 2 * self.sampler.steps[0])
        warm_up = 0 if self.sampler.memoryless else self.sampler.steps[0]
        later = self._run(first.chains.last, later_key, half, warm_up)
        return replace(first, chains=first.chains.continued(later.chains))

    def briefly_at_half_steps(self, key: PRNGKeyArray) -> tuple[float, float]:
        """The estimate at half the step size, with its error, from half as many draws that go on where these end."""
        end = self.chains.last
        starts = jnp.where(jnp.isfinite(end).all(axis=1, keepdims=True), end, self._starts)
        draws = max(self.sampler.steps[1] // 2, min(convergence.FEWEST, self.sampler.steps[1]))
        half = self._run(starts, key, self.first_step / 2, self.sampler.steps[0], draws)
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

    def _run(self, starts: Array, key: PRNGKeyArray, step: float, warm_up: int, draws: int | None = None) -> "Draws":
        """Draws from given starts at another step size."""
        target = self.sampler.target(self.local.posterior(self.nbeta, self.localization), self.local.known)
        chains = self.sampler.draw(
            target, starts, step_size=step, warm_up=warm_up, mode=self.mode, key=key, draws=draws
        )
        return replace(self, first_step=step, chains=chains)

    def values(self, observables: Any) -> tuple[np.ndarray, np.ndarray]:
        """A vector function of the parameters at the point, and above that at every draw, [chain, draw, observable].

        Raises:
            InputError: A value or a loss is not finite, the sampler has no Metropolis test, or parameters were not
                kept.
        """
        require_test(self.sampler)
        flat, at_point = at_centre(observables, self.local)
        above = np.asarray(at_draws(flat, self.parameters, jnp.asarray(at_point, self.local.centre.dtype)), np.float64)
        if not (np.isfinite(above).all() and np.isfinite(self.losses).all()):
            raise expected("route", "chains that stay where all is finite", "a draw that is not", "take a smaller step")
        return at_point, above

    def mean(self, series: np.ndarray) -> tuple[float, float]:
        """The mean over draws, and its standard error from the effective number of draws."""
        return convergence.mean_and_mcse(series) if np.ptp(series) > 0 else (float(series.mean()), 0.0)

    def warnings(self, values: np.ndarray | None = None) -> list[str]:
        """Warnings about the chains and, with values, about the observables."""
        settings = {"nbeta": self.nbeta, "noise_level": getattr(self.sampler, "noise_level", 1.0)}
        sentences = chain_warnings(xr.Dataset(self.statistics, attrs=settings))
        return sentences if values is None else [*sentences, *disagreements(values)]

    @property
    def settings(self) -> dict[str, Any]:
        """Attributes of a dataset that is computed from the draws."""
        return posterior_settings(self.sampler, self.nbeta, self.localization)


def purposes(key: PRNGKeyArray) -> Key[Array, " purpose"]:
    """The keys of a chain's purposes; of a clone, since each purpose may come back for its own."""
    return jax.random.split(jax.random.clone(key), 7)


def sample_chains(
    sampler: ChainSampler,
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
        keep = {"parameters": function_of_vector(eqx.Partial(_observed, dict(observables)), local)}
        shape_of("observables", "functions of parameters", keep["parameters"], local.centre)
    chains = sampler.draw(target, starts, step_size=step, warm_up=sampler.steps[0], mode=name, key=keys[CHAINS], **keep)
    return Draws(local, sampler, nbeta, gamma, key, name, reason, curvature, step, chains)


def chain_mode(sampler: ChainSampler, local: LocalLoss) -> tuple[str, str]:
    """The mode of the chains and the reason: the sampler's own, or by the nominal cost of a gradient."""
    if sampler.mode != "auto":
        return sampler.mode, sampler.mode_reason
    target = sampler.target(local.posterior(1.0, 1.0), local.known)
    share = target.size / len(local.known.terms) if isinstance(target, Batches) else 1.0
    return chosen_mode(share * local.seconds)


def dispersed(sampler: ChainSampler) -> np.ndarray:
    """Which chains start away from the point: the second half."""
    return np.arange(sampler.chains) >= sampler.chains // 2


def chain_starts(sampler: ChainSampler, local: LocalLoss, nbeta: float, key: PRNGKeyArray) -> Array:
    """Starts of the chains; with batches the loss may be infinite there."""
    target = sampler.target(local.posterior(nbeta, local.localization), local.known)
    inside = not isinstance(target, Batches)
    return local.starts(local.localization, dispersed(sampler), key, dispersion=sampler.dispersion, inside=inside)


def _observed(functions: dict[str, Callable[[Any], Any]], tree: Any) -> dict[str, Array]:
    return {name: jnp.asarray(function(tree)) for name, function in functions.items()}
