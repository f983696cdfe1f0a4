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
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core import progress
from icllab.core.errors import expected
from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, Starts

# (posterior, evaluate, states, step size, key) -> (states, acceptance of each chain)
Move: TypeAlias = Callable[..., tuple[ChainState, Array]]
Kept: TypeAlias = bool | Callable[[Any], Any]  # whether the parameters of a draw are kept, or what function of them
LEAST = 1e-3  # acceptance that a chain counts with
BOTTOMLESS = 1e3  # times one plus the loss at the point, by which a loss with a lower bound never falls below it


class Chains(NamedTuple):
    """Draws after the warm-up."""

    terms: Float[Array, "chain draw term"]  # of L at every draw, less those at w*
    distance: Float[Array, "chain draw"]  # |w - w*|^2
    acceptance: Float[Array, " chain"]  # mean probability; without a test, what a test would have had
    step_size: Float[Array, ""]  # of Langevin dynamics
    last: Float[Array, "chain parameter"]  # where each chain ends
    parameters: Any = None  # what is kept of those of every draw, vectors or a tree, [chain, draw, ...]

    def first(self, draws: int) -> "Chains":
        """The first draws."""
        terms, distance = self.terms[:, :draws], self.distance[:, :draws]
        parameters = jax.tree.map(lambda leaf: leaf[:, :draws], self.parameters)
        return self._replace(terms=terms, distance=distance, parameters=parameters)

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
    """The parameters of all chains, or functions of them, as a run keeps them for each draw."""
    return (w if parameters else None) if isinstance(parameters, bool) else jax.vmap(parameters)(w)


def described(above: Any) -> str:
    """Text of a display: nbeta times the mean loss above the point."""
    return f"nbeta (L - L*) {float(above):.3g}"


def require_bounded(level: float, above: Any) -> None:
    """Raise if losses ``above`` the loss at the point show that the loss is unbounded below.

    Raises:
        InputError: One is lower by more than a thousand times one plus the size of the loss at the point.
    """
    above = np.asarray(above, np.float64)
    least = above.min(initial=0.0, where=np.isfinite(above))
    if -least > BOTTOMLESS * (1 + abs(level)):
        requirement = f"a function with a lower bound near the point, where it is {level:.3g}"
        raise expected("loss", requirement, float(level + least), "bound it, or give a larger localization")


class _Loop(eqx.Module):
    """Loop of chains of one kind of move, but for its carry."""

    posterior: Posterior
    key: PRNGKeyArray
    step_size: Float[Array, ""]
    warm_up: Int[Array, ""]
    move: Move
    acceptance: float | None = eqx.field(static=True)
    room: int = eqx.field(static=True)
    mode: str = eqx.field(static=True)
    thinning: int = eqx.field(static=True)
    parameters: Kept = False


def run_chains(
    posterior: Posterior,
    starts: Starts,
    *,
    sampler: Any,
    step_size: Float[Array, ""],
    steps: tuple[int, int],
    mode: str,
    key: PRNGKeyArray,
    parameters: Kept = False,
) -> Chains:
    """Run chains of a sampler's move from their starts, as :meth:`ChainSampler.draw` does.

    The step size is in the units of the move: in leapfrog steps the unit of time is that of unit masses, so that a step
    of size s is one of Langevin dynamics with :math:`\\epsilon = s^2`. ``steps`` are the moves of the warm-up and the
    draws, at most those of the sampler, for which the program has room.

    Raises:
        InputError: The loss has no lower bound.
    """
    (warm_up, draws), room, thinning, acceptance = steps, sampler.steps[1], sampler.thinning, sampler.acceptance
    options = {"acceptance": acceptance, "room": room, "mode": mode, "thinning": thinning, "parameters": parameters}
    loop = _Loop(posterior, key, step_size, jnp.asarray(warm_up), sampler.move, **options)

    def advance(carry: Any, first: int, end: int) -> Any:
        return _turns(loop, carry, jnp.asarray(first), jnp.asarray(end))

    def text(carry: Any) -> str:
        return described(posterior.nbeta * (jnp.mean(carry[0].loss) - posterior.baseline))

    level, last = float(posterior.baseline), warm_up + draws * thinning
    states, adaptation, record = progress.in_stretches(
        advance,
        _begin(loop, jnp.array(starts)),
        last,
        text=text,
        check=lambda carry: require_bounded(level, np.asarray(carry[0].loss, np.float64) - level),
    )
    size = step_size if acceptance is None else _adapted(adaptation)
    return record.chains(jnp.atleast_1d(posterior.loss(posterior.at)), size, states.w).first(draws)


@eqx.filter_jit
def _adapted(adaptation: _Adaptation) -> Array:
    """The step size of Langevin dynamics after the warm-up."""
    return jnp.exp(adaptation.log_mean) ** 2


@eqx.filter_jit
def _begin(loop: _Loop, starts: Starts) -> tuple[ChainState, _Adaptation, Recorded]:
    """States at the starts, the step size, and room for the draws."""
    states = ChainState(starts, *over_chains(loop.posterior.evaluated, loop.mode)(starts))
    begin = jnp.log(loop.step_size)
    assert states.terms is not None
    empty = Recorded.empty(loop.room, states.terms, kept(states.w, loop.parameters))
    return states, _Adaptation(begin, begin, jnp.zeros_like(begin), jnp.zeros_like(begin)), empty


@eqx.filter_jit(donate="all-except-first")
def _turns(loop: _Loop, carry: Any, first: Int[Array, ""], end: Int[Array, ""]) -> Any:
    """The carry after the moves from ``first`` to ``end``."""
    posterior, begin = loop.posterior, jnp.log(loop.step_size)
    evaluate = over_chains(posterior.evaluated, loop.mode)

    def step(number: Array, carry: Any) -> tuple[ChainState, _Adaptation, Recorded]:
        states, adaptation, record = carry
        warming = number < loop.warm_up
        size = loop.step_size
        if loop.acceptance is not None:
            size = jnp.exp(jnp.where(warming, adaptation.log_step, adaptation.log_mean))
        states, chances = loop.move(posterior, evaluate, states, size, jax.random.fold_in(loop.key, number))
        if loop.acceptance is not None:
            # The harmonic mean over chains: one that stands still, far out where the loss is steep, makes it small.
            pooled = 1 / jnp.mean(1 / jnp.maximum(chances, LEAST))
            after = adaptation.updated(pooled, loop.acceptance, begin)
            adaptation = jax.tree.map(lambda new, old: jnp.where(warming, new, old), after, adaptation)
        assert states.terms is not None
        distance, values = squared_distance(posterior, states.w), kept(states.w, loop.parameters)
        number = number - loop.warm_up
        record = record.with_draw(number, loop.thinning, states.terms, distance, chances, values)
        return states, adaptation, record

    return jax.lax.fori_loop(first, end, step, carry)


def noise_and_chances(states: ChainState, key: PRNGKeyArray) -> tuple[Array, Array]:
    """Normal momenta of all chains, and one uniform number for the test of each with one more for all of them."""
    of_noise, of_tests = jax.random.split(key)
    noise = jax.random.normal(of_noise, states.w.shape, states.w.dtype)
    # One draw for both uses: every draw is much to compile.
    return noise, jax.random.uniform(of_tests, (len(states.w) + 1,), states.w.dtype)


def chain_groups(chains: int) -> int:
    """Largest divisor of the number of chains that is at most the number of cores."""
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
