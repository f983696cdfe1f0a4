r"""Samplers of a tempered posterior near a point: Hamiltonian Monte Carlo, and Langevin dynamics.

The target, over all parameters :math:`w` as one vector, is :math:`e^{-U}` with

.. math:: U(w) = n\beta\,L(w) + \frac\gamma2\lVert w - w^*\rVert^2 .

All chains take their steps together, at one step size. It is adapted while they warm up, pooled over chains, and held
after; what comes before is never averaged.
"""

from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.diagnostics.posteriors import Posterior, State, hamiltonian, langevin

Method = Literal["hmc", "mala", "sgld"]
ACCEPTANCE = {"hmc": 0.8, "mala": 0.57}  # what the step sizes are adapted to
LEAST = 1e-3  # acceptance that a chain counts with


class Chains(NamedTuple):
    """What was drawn after the warm-up.

    Attributes:
        loss: L at every draw.
        distance: :math:`|w - w^*|^2`.
        acceptance: Mean probability, of each chain; of dynamics without a test, what a test would have had.
        step_size: :math:`\\epsilon`.
        last: The last draw of each chain.
    """

    loss: Float[Array, "chain draw"]
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


@eqx.filter_jit
def sample(
    posterior: Posterior,
    starts: Float[Array, "chain parameter"],
    *,
    method: str,
    step_size: Float[Array, ""],
    warm_up: int,
    draws: int,
    leapfrogs: int = 12,
    key: PRNGKeyArray,
) -> Chains:
    r"""Run chains from their starts.

    ``"hmc"``: the number of leapfrog steps is drawn for every trajectory, from half to one and a half times
    ``leapfrogs``, the same for all chains. ``"mala"`` is one leapfrog step. Both adapt the step size during the
    warm-up to an acceptance of 0.8 and 0.57. ``"sgld"`` takes
    :math:`w \leftarrow w - \frac\epsilon2\nabla U + \sqrt\epsilon\,\xi` at the step size given and keeps it.

    In leapfrog steps the unit of time is that of unit masses, so that a step of size s is one of Langevin dynamics with
    :math:`\epsilon = s^2`.
    """
    count = starts.shape[0]
    adapted = method != "sgld"
    evaluate = jax.vmap(posterior.loss_and_slope)
    states = State(starts, *evaluate(starts))
    begin = jnp.log(step_size)
    adaptation = _Adaptation(begin, begin, jnp.zeros_like(begin), jnp.zeros_like(begin))

    def move(states: State, size: Array, key: PRNGKeyArray) -> tuple[State, Array]:
        of_length, of_noise, of_tests = jax.random.split(key, 3)
        noise = jax.random.normal(of_noise, states.w.shape, states.w.dtype)
        if not adapted:
            return langevin(posterior, evaluate, states, noise, size)
        length = 1
        if method == "hmc":
            length = jax.random.randint(of_length, (), leapfrogs - leapfrogs // 2, leapfrogs + leapfrogs // 2 + 1)
        chance = jax.random.uniform(of_tests, (count,), states.w.dtype)
        return hamiltonian(posterior, evaluate, states, noise, size, length, chance)

    def warming(carry: tuple[State, _Adaptation], key: PRNGKeyArray) -> tuple[tuple[State, _Adaptation], None]:
        states, adaptation = carry
        states, accepted = move(states, jnp.exp(adaptation.log_step), key)
        if adapted:
            # The harmonic mean over chains: one that stands still, far out where the loss is steep, makes it small.
            together = 1 / jnp.mean(1 / jnp.maximum(accepted, LEAST))
            adaptation = adaptation.updated(together, ACCEPTANCE[method], begin)
        return (states, adaptation), None

    def drawing(states: State, key: PRNGKeyArray) -> tuple[State, tuple[Array, Array, Array]]:
        states, accepted = move(states, size, key)
        return states, (states.loss, jnp.sum((states.w - posterior.at[None]) ** 2, axis=1), accepted)

    of_warming, of_drawing = jax.random.split(key)
    (states, adaptation), _ = jax.lax.scan(warming, (states, adaptation), jax.random.split(of_warming, warm_up))
    size = jnp.exp(adaptation.log_mean) if adapted else step_size
    states, (loss, distance, accepted) = jax.lax.scan(drawing, states, jax.random.split(of_drawing, draws))
    return Chains(loss.T, distance.T, jnp.mean(accepted, axis=0), size if not adapted else size**2, states.w)
