r"""Samplers of a tempered posterior near a point: Hamiltonian Monte Carlo, and Langevin dynamics.

The target, over all parameters :math:`w` as one vector, is :math:`e^{-U}` with

.. math:: U(w) = n\beta\,L(w) + \frac\gamma2\lVert w - w^*\rVert^2 .

All chains take their steps together, at one step size. It is adapted while they warm up, pooled over chains, and held
after; what comes before is never averaged.
"""

import os
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.diagnostics.sampling.posteriors import ChainState, Posterior, hamiltonian, langevin
from icllab.diagnostics.sampling.sampled_losses import Batches

ACCEPTANCE = {"hmc": 0.8, "mala": 0.57}  # what the step sizes are adapted to
LEAST = 1e-3  # acceptance that a chain counts with
PROBES = 8  # steps on batches whose acceptance is found, which costs a gradient


class Chains(NamedTuple):
    """What was drawn after the warm-up.

    Attributes:
        terms: The terms of L at every draw, less those at :math:`w^*`.
        distance: :math:`|w - w^*|^2`.
        acceptance: Mean probability, of each chain; of dynamics without a test, what a test would have had.
        step_size: :math:`\\epsilon`.
        last: Where each chain ends.
    """

    terms: Float[Array, "chain draw term"]
    distance: Float[Array, "chain draw"]
    acceptance: Float[Array, " chain"]
    step_size: Float[Array, ""]
    last: Float[Array, "chain parameter"]


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


class _Drawn(NamedTuple):
    """What has been written down, [draw, chain] first; warm-up and draws are one loop, of one compiled step."""

    terms: Float[Array, "draw chain term"]
    distance: Float[Array, "draw chain"]
    acceptance: Float[Array, " chain"]

    @classmethod
    def empty(cls, draws: int, terms: Array) -> "_Drawn":
        """Place for so many draws of what is like ``terms``."""
        zero = jnp.zeros_like(terms[:, 0])
        return cls(jnp.zeros((draws, *terms.shape), terms.dtype), jnp.zeros((draws, *zero.shape), terms.dtype), zero)

    def noted(self, number: Array, terms: Array, distance: Array, acceptance: Array) -> "_Drawn":
        """With a draw; one of the warm-up stands in the first one's place until that comes."""
        place = jnp.maximum(number, 0)
        return _Drawn(
            self.terms.at[place].set(terms),
            self.distance.at[place].set(distance),
            self.acceptance + jnp.where(number >= 0, acceptance / len(self.terms), 0),
        )

    def chains(self, baseline: Array, size: Array, last: Array) -> Chains:
        """In the order of chains, less a baseline."""
        terms = jnp.swapaxes(self.terms, 0, 1) - baseline[None, None]
        return Chains(terms, self.distance.T, self.acceptance, size, last)


@eqx.filter_jit
def sample(
    posterior: Posterior,
    starts: Float[Array, "chain parameter"],
    *,
    method: str,
    step_size: Float[Array, ""],
    warm_up: int | Int[Array, ""],
    draws: int,
    leapfrogs: int = 12,
    mode: str = "vmap",
    key: PRNGKeyArray,
) -> Chains:
    r"""Run chains from their starts.

    ``"hmc"``: the number of leapfrog steps is drawn for every trajectory, from half to one and a half times
    ``leapfrogs``, the same for all chains. ``"mala"`` is one leapfrog step. Both adapt the step size during the
    warm-up to an acceptance of 0.8 and 0.57. ``"sgld"`` takes
    :math:`w \leftarrow w - \frac\epsilon2\nabla U + \sqrt\epsilon\,\xi` at the step size given and keeps it.

    In leapfrog steps the unit of time is that of unit masses, so that a step of size s is one of Langevin dynamics with
    :math:`\epsilon = s^2`.

    ``mode``: the gradients of all chains side by side (``"vmap"``), or one after the other (``"map"``).
    """
    count = starts.shape[0]
    adapted = method != "sgld"
    evaluate = over_chains(posterior.evaluated, mode)
    states = ChainState(starts, *evaluate(starts))
    begin = jnp.log(step_size)
    adaptation = _Adaptation(begin, begin, jnp.zeros_like(begin), jnp.zeros_like(begin))

    def move(states: ChainState, size: Array, key: PRNGKeyArray) -> tuple[ChainState, Array]:
        of_noise, of_tests = jax.random.split(key)
        noise = jax.random.normal(of_noise, states.w.shape, states.w.dtype)
        if not adapted:
            return langevin(posterior, evaluate, states, noise, size)
        # One draw more than there are chains, for the length: every draw is much to compile.
        uniform = jax.random.uniform(of_tests, (count + 1,), states.w.dtype)
        half = leapfrogs // 2
        length = (leapfrogs - half + jnp.floor(uniform[-1] * (2 * half + 1))).astype(int) if method == "hmc" else 1
        return hamiltonian(posterior, evaluate, states, noise, size, length, uniform[:-1])

    def step(number: Array, carry: tuple[ChainState, _Adaptation, _Drawn]) -> tuple[ChainState, _Adaptation, _Drawn]:
        states, adaptation, drawn = carry
        warming = number < warm_up
        size = step_size
        if adapted:
            size = jnp.exp(jnp.where(warming, adaptation.log_step, adaptation.log_mean))
        states, accepted = move(states, size, jax.random.fold_in(key, number))
        if adapted:
            # The harmonic mean over chains: one that stands still, far out where the loss is steep, makes it small.
            together = 1 / jnp.mean(1 / jnp.maximum(accepted, LEAST))
            after = adaptation.updated(together, ACCEPTANCE[method], begin)
            adaptation = jax.tree.map(lambda new, old: jnp.where(warming, new, old), after, adaptation)
        assert states.terms is not None
        drawn = drawn.noted(number - warm_up, states.terms, _distance(posterior, states.w), accepted)
        return states, adaptation, drawn

    assert states.terms is not None
    empty = _Drawn.empty(draws, states.terms)
    states, adaptation, drawn = jax.lax.fori_loop(0, warm_up + draws, step, (states, adaptation, empty))
    size = jnp.exp(adaptation.log_mean) ** 2 if adapted else step_size
    baseline = _terms(posterior, posterior.at)
    return drawn.chains(baseline, size, states.w)


def sample_batches(
    batches: Batches,
    starts: Float[Array, "chain parameter"],
    *,
    step_size: Float[Array, ""],
    warm_up: int | Int[Array, ""],
    draws: int,
    mode: str = "vmap",
    key: PRNGKeyArray,
) -> Chains:
    r"""Run Langevin dynamics without a test on batches, every chain on its own.

    A draw is the loss of the step's batch at the place where the step begins, less that of the same batch at
    :math:`w^*`. The acceptance is that of a Metropolis test of the posterior of one batch, over a few steps at the end.

    ``mode`` is that of :func:`sample`. Chains one after the other are shared out among the cores of this process: each
    has a key of its own, so that it is the same chain in any company.
    """
    keys = jax.vmap(lambda chain: jax.random.fold_in(key, chain))(jnp.arange(len(starts)))
    groups = chain_groups(len(starts)) if mode == "map" else 1
    size = len(starts) // groups
    # A call returns before it is done, so that all groups run at once.
    parts = [
        _sample_batches(
            batches,
            starts[i * size : (i + 1) * size],
            keys[i * size : (i + 1) * size],
            step_size,
            jnp.asarray(warm_up),
            draws,
            mode,
        )
        for i in range(groups)
    ]
    if groups == 1:
        return parts[0]
    return Chains(*(jnp.concatenate(part) if part[0].ndim else part[0] for part in zip(*parts, strict=True)))


def chain_groups(chains: int) -> int:
    """Into how many groups of one size so many chains are shared out: at most the cores of this process."""
    if jax.default_backend() != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(groups for groups in range(1, min(cores, chains) + 1) if chains % groups == 0)


@eqx.filter_jit
def _sample_batches(
    batches: Batches,
    starts: Float[Array, "chain parameter"],
    keys: Any,
    step_size: Float[Array, ""],
    warm_up: Int[Array, ""],
    draws: int,
    mode: str,
) -> Chains:
    posterior, count = batches.posterior, len(starts)

    def step(w: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        of_batch, of_noise = jax.random.split(key)
        _, slope, terms = batches.evaluated(w, batches.drawn(of_batch))
        noise = jax.random.normal(of_noise, w.shape, w.dtype)
        return w - step_size / 2 * slope + jnp.sqrt(step_size) * noise, terms

    def probe(w: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        of_batch, of_noise = jax.random.split(key)
        batch = batches.drawn(of_batch)
        noise = jax.random.normal(of_noise, w.shape, w.dtype)[None]

        def evaluate(w: Array) -> tuple[Array, ...]:
            return tuple(found[None] for found in batches.evaluated(w[0], batch))

        moved, accepted = langevin(posterior, evaluate, ChainState(w[None], *evaluate(w[None])), noise, step_size)
        return moved.w[0], accepted[0]

    def every(move: Any, w: Array, number: Array) -> tuple[Array, Array]:
        return over_chains(lambda w, key: move(w, jax.random.fold_in(key, number)), mode)(w, keys)

    def turn(number: Array, carry: tuple[Array, _Drawn]) -> tuple[Array, _Drawn]:
        w, drawn = carry
        after, terms = every(step, w, number)
        return after, drawn.noted(number - warm_up, terms, _distance(posterior, w), jnp.zeros(count, w.dtype))

    empty = _Drawn.empty(draws, jnp.zeros((count, batches.baseline.shape[1]), starts.dtype))
    last = warm_up + draws
    w, drawn = jax.lax.fori_loop(0, last, turn, (starts, empty))
    _, accepted = jax.lax.scan(lambda w, i: every(probe, w, i), w, last + jnp.arange(PROBES))
    chains = drawn.chains(jnp.zeros_like(empty.terms[0, 0]), step_size, w)
    return chains._replace(acceptance=jnp.mean(accepted, axis=0))


def over_chains(function: Any, mode: str) -> Any:
    """The function for every chain: side by side, or one after the other."""
    if mode == "vmap":
        return jax.vmap(function)
    return lambda *of_chains: jax.lax.map(lambda own: function(*own), of_chains)


def _terms(posterior: Posterior, w: Array) -> Array:
    return jnp.atleast_1d(posterior.loss(w))


def _distance(posterior: Posterior, w: Array) -> Array:
    return jnp.sum((w - posterior.at[None]) ** 2, axis=1)
