"""Markov chains of a :class:`Posterior <icllab.diagnostics.sampling.posteriors.Posterior>`: the loop that all share.

All chains take their steps together, at one step size. It is adapted while they warm up, pooled over chains, and held
after; what comes before is never averaged.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core import progress
from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, Starts

# (posterior, evaluate, states, step size, key) -> (states, acceptance of each chain)
Move: TypeAlias = Callable[..., tuple[ChainState, Array]]
Kept: TypeAlias = bool | Callable[[Any], Any]  # whether the parameters of a draw are kept, or what function of them
LEAST = 1e-3  # acceptance that a chain counts with


class Chains(NamedTuple):
    """Draws after the warm-up."""

    terms: Float[Array, "chain draw term"]  # of L at every draw, less those at w*
    distance: Float[Array, "chain draw"]  # |w - w*|^2
    acceptance: Float[Array, " chain"]  # mean probability; without a test, what a test would have had
    step_size: Float[Array, ""]  # of Langevin dynamics
    last: Float[Array, "chain parameter"]  # where each chain ends
    parameters: Any = None  # what is kept of those of every draw, vectors or a tree, [chain, draw, ...]

    def continued(self, later: "Chains") -> "Chains":
        """With the draws of chains that start where these end."""
        terms, distance = (jnp.concatenate(pair, axis=1) for pair in zip(self[:2], later[:2], strict=True))
        return later._replace(terms=terms, distance=distance)


class _Adaptation(NamedTuple):
    """Dual averaging of the logarithm of a step size, towards an acceptance."""

    log_step: Float[Array, ""]
    log_mean: Float[Array, ""]
    error: Float[Array, ""]
    updates: Float[Array, ""]

    def updated(self, acceptance: Float[Array, ""], target: float, start: Float[Array, ""]) -> "_Adaptation":
        count = self.updates + 1
        share = 1 / (count + 10)
        error = (1 - share) * self.error + share * (target - acceptance)
        log_step = start - jnp.sqrt(count) / 0.05 * error
        weight = count**-0.75
        return _Adaptation(log_step, weight * log_step + (1 - weight) * self.log_mean, error, count)


class Recorded(NamedTuple):
    """Record of a loop, [draw, chain] first; warm-up and draws are one loop, of one compiled step."""

    terms: Float[Array, "draw chain term"]
    distance: Float[Array, "draw chain"]
    acceptance: Float[Array, " chain"]
    parameters: Any = None

    @classmethod
    def empty(cls, draws: int, terms: Array, parameters: Any = None) -> "Recorded":
        """Room for a number of draws like ``terms``, and like ``parameters`` if these are kept."""
        zero = jnp.zeros_like(terms[:, 0])
        room = jax.tree.map(lambda leaf: jnp.zeros((draws, *leaf.shape), leaf.dtype), parameters)
        terms = jnp.zeros((draws, *terms.shape), terms.dtype)
        return cls(terms, jnp.zeros((draws, *zero.shape), terms.dtype), zero, room)

    def with_draw(
        self, number: Array, thinning: int, terms: Array, distance: Array, acceptance: Array, w: Any
    ) -> "Recorded":
        """Add a move: those of the warm-up and the first of each draw stand in its place until the last comes."""
        place = jnp.maximum(number, 0) // thinning
        return Recorded(
            self.terms.at[place].set(terms),
            self.distance.at[place].set(distance),
            self.acceptance + jnp.where(number >= 0, acceptance / (len(self.terms) * thinning), 0),
            jax.tree.map(lambda room, value: room.at[place].set(value), self.parameters, w),
        )

    def chains(self, baseline: Array, size: Array, last: Array) -> Chains:
        """The draws, chains first, with terms above a baseline."""
        terms = jnp.swapaxes(self.terms, 0, 1) - baseline[None, None]
        parameters = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), self.parameters)
        return Chains(terms, self.distance.T, self.acceptance, size, last, parameters)


def kept(w: Starts, parameters: Kept) -> Any:
    """What is kept of the parameters of all chains."""
    return (w if parameters else None) if isinstance(parameters, bool) else jax.vmap(parameters)(w)


def report(number: Array, last: int | Array, value: Array) -> None:
    """Report a move of a compiled loop, fifty times in all; ``value`` is nbeta times the loss above the point."""
    every = jnp.maximum(last // progress.REPORTS, 1)
    jax.lax.cond(number % every == 0, lambda: jax.debug.callback(_shown, number, value), lambda: None)


def _shown(number: Any, value: Any) -> None:
    progress.report(int(number), f"nbeta (L - L*) {float(value):.3g}")


@eqx.filter_jit
def run_chains(
    posterior: Posterior,
    starts: Starts,
    *,
    move: Move,
    acceptance: float | None,
    step_size: Float[Array, ""],
    warm_up: int | Int[Array, ""],
    draws: int,
    mode: str,
    key: PRNGKeyArray,
    parameters: Kept = False,
    watched: bool = False,
    thinning: int = 1,
) -> Chains:
    """Run chains of one kind of move from their starts, as :meth:`ChainSampler.draw` does.

    The step size is in the units of the move: in leapfrog steps the unit of time is that of unit masses, so that a step
    of size s is one of Langevin dynamics with :math:`\\epsilon = s^2`. An ``acceptance`` of None keeps it. If it is
    ``watched``, the loop reports its moves.
    """
    evaluate = over_chains(posterior.evaluated, mode)
    states = ChainState(starts, *evaluate(starts))
    begin = jnp.log(step_size)
    adaptation = _Adaptation(begin, begin, jnp.zeros_like(begin), jnp.zeros_like(begin))

    def step(number: Array, carry: Any) -> tuple[ChainState, _Adaptation, Recorded]:
        states, adaptation, record = carry
        warming = number < warm_up
        size = step_size
        if acceptance is not None:
            size = jnp.exp(jnp.where(warming, adaptation.log_step, adaptation.log_mean))
        states, chances = move(posterior, evaluate, states, size, jax.random.fold_in(key, number))
        if acceptance is not None:
            # The harmonic mean over chains: one that stands still, far out where the loss is steep, makes it small.
            pooled = 1 / jnp.mean(1 / jnp.maximum(chances, LEAST))
            after = adaptation.updated(pooled, acceptance, begin)
            adaptation = jax.tree.map(lambda new, old: jnp.where(warming, new, old), after, adaptation)
        assert states.terms is not None
        if watched:
            report(number, last, posterior.nbeta * (jnp.mean(states.loss) - posterior.baseline))
        distance, values = squared_distance(posterior, states.w), kept(states.w, parameters)
        record = record.with_draw(number - warm_up, thinning, states.terms, distance, chances, values)
        return states, adaptation, record

    assert states.terms is not None
    empty, last = Recorded.empty(draws, states.terms, kept(states.w, parameters)), warm_up + draws * thinning
    states, adaptation, record = jax.lax.fori_loop(0, last, step, (states, adaptation, empty))
    size = step_size if acceptance is None else jnp.exp(adaptation.log_mean) ** 2
    return record.chains(jnp.atleast_1d(posterior.loss(posterior.at)), size, states.w)


def noise_and_chances(states: ChainState, key: PRNGKeyArray) -> tuple[Array, Array]:
    """Normal momenta of all chains, and one uniform number for the test of each with one more for all of them."""
    of_noise, of_tests = jax.random.split(key)
    noise = jax.random.normal(of_noise, states.w.shape, states.w.dtype)
    # One draw for both uses: every draw is much to compile.
    return noise, jax.random.uniform(of_tests, (len(states.w) + 1,), states.w.dtype)


def chain_groups(chains: int) -> int:
    """Into how many groups of one size so many chains are shared out: at most the cores of this process."""
    if jax.default_backend() != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(groups for groups in range(1, min(cores, chains) + 1) if chains % groups == 0)


def over_chains(function: Any, mode: str) -> Any:
    """The function for every chain: side by side, or one after the other."""
    if mode == "vmap":
        return jax.vmap(function)
    return lambda *of_chains: jax.lax.map(lambda of_chain: function(*of_chain), of_chains)


def squared_distance(posterior: Posterior, w: Array) -> Array:
    """:math:`|w - w^*|^2` of every chain."""
    return jnp.sum((w - posterior.at[None]) ** 2, axis=1)
