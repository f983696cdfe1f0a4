r"""Samplers of a tempered posterior near a point: Hamiltonian Monte Carlo, and Langevin dynamics.

The target, over all parameters :math:`w` as one vector, is :math:`e^{-U}` with

.. math:: U(w) = n\beta\,L(w) + \frac\gamma2\lVert w - w^*\rVert^2 .

All chains take their steps together, at one step size. It is adapted while they warm up, pooled over chains, and held
after; what comes before is never averaged.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Vector = Float[Array, " parameter"]
Method = Literal["hmc", "mala", "sgld"]
ACCEPTANCE = {"hmc": 0.8, "mala": 0.57}  # what the step sizes are adapted to
LEAST = 1e-3  # acceptance that a chain counts with


class Posterior(eqx.Module):
    """The target, and the point it is localized at."""

    loss: Callable[[Any], Any]
    at: Vector
    nbeta: Float[Array, ""]
    localization: Float[Array, ""]

    def loss_and_slope(self, w: Vector) -> tuple[Float[Array, ""], Vector]:
        """The loss alone, and the gradient of the potential."""
        loss, gradient = jax.value_and_grad(self.loss)(w)
        return loss, self.nbeta * gradient + self.localization * (w - self.at)

    def potential(self, loss: Float[Array, ""], w: Vector) -> Float[Array, ""]:
        """U, given the loss at w."""
        return self.nbeta * loss + self.localization / 2 * jnp.sum((w - self.at) ** 2)


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


class _State(NamedTuple):
    w: Vector
    loss: Float[Array, ""]
    slope: Vector


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


def steepest(posterior: Posterior, *, key: PRNGKeyArray, iterations: int = 30) -> Float[Array, ""]:
    r"""The largest curvature of the potential at its centre, by power iteration: a little too small, never too large.

    Each iteration is one product with the Hessian. At most :math:`n\beta h_{\max} + \gamma`, in size.
    """

    def times(v: Vector) -> Vector:
        return jax.jvp(lambda w: posterior.loss_and_slope(w)[1], (posterior.at,), (v,))[1]

    def step(_: Any, state: tuple[Vector, Array]) -> tuple[Vector, Array]:
        v, _norm = state
        found = times(v)
        norm = jnp.linalg.norm(found)
        return found / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny), norm

    start = jax.random.normal(key, posterior.at.shape, posterior.at.dtype)
    begin = (start / jnp.linalg.norm(start), jnp.zeros((), posterior.at.dtype))
    return jax.lax.fori_loop(0, iterations, step, begin)[1]


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
    states = _State(starts, *evaluate(starts))
    begin = jnp.log(step_size)
    adaptation = _Adaptation(begin, begin, jnp.zeros_like(begin), jnp.zeros_like(begin))

    def move(states: _State, size: Array, key: PRNGKeyArray) -> tuple[_State, Array]:
        of_length, of_noise, of_tests = jax.random.split(key, 3)
        noise = jax.random.normal(of_noise, states.w.shape, states.w.dtype)
        if not adapted:
            return _langevin(posterior, evaluate, states, noise, size)
        length = 1
        if method == "hmc":
            length = jax.random.randint(of_length, (), leapfrogs - leapfrogs // 2, leapfrogs + leapfrogs // 2 + 1)
        chance = jax.random.uniform(of_tests, (count,), states.w.dtype)
        return _hamiltonian(posterior, evaluate, states, noise, size, length, chance)

    def warming(carry: tuple[_State, _Adaptation], key: PRNGKeyArray) -> tuple[tuple[_State, _Adaptation], None]:
        states, adaptation = carry
        states, accepted = move(states, jnp.exp(adaptation.log_step), key)
        if adapted:
            # The harmonic mean over chains: one that stands still, far out where the loss is steep, makes it small.
            together = 1 / jnp.mean(1 / jnp.maximum(accepted, LEAST))
            adaptation = adaptation.updated(together, ACCEPTANCE[method], begin)
        return (states, adaptation), None

    def drawing(states: _State, key: PRNGKeyArray) -> tuple[_State, tuple[Array, Array, Array]]:
        states, accepted = move(states, size, key)
        return states, (states.loss, jnp.sum((states.w - posterior.at[None]) ** 2, axis=1), accepted)

    of_warming, of_drawing = jax.random.split(key)
    (states, adaptation), _ = jax.lax.scan(warming, (states, adaptation), jax.random.split(of_warming, warm_up))
    size = jnp.exp(adaptation.log_mean) if adapted else step_size
    states, (loss, distance, accepted) = jax.lax.scan(drawing, states, jax.random.split(of_drawing, draws))
    return Chains(loss.T, distance.T, jnp.mean(accepted, axis=0), size if not adapted else size**2, states.w)


def _hamiltonian(
    posterior: Posterior, evaluate: Any, states: _State, noise: Array, size: Array, length: Any, chance: Array
) -> tuple[_State, Array]:
    """A trajectory of leapfrog steps for every chain, taken or not."""

    def leap(_: Any, carry: tuple[_State, Array]) -> tuple[_State, Array]:
        at, momentum = carry
        momentum = momentum - size / 2 * at.slope
        w = at.w + size * momentum
        at = _State(w, *evaluate(w))
        return at, momentum - size / 2 * at.slope

    proposed, momentum = jax.lax.fori_loop(0, length, leap, (states, noise))
    energy = jax.vmap(posterior.potential)
    before = energy(states.loss, states.w) + jnp.sum(noise**2, axis=1) / 2
    after = energy(proposed.loss, proposed.w) + jnp.sum(momentum**2, axis=1) / 2
    gain = before - after
    # What is not finite has run away, and is not accepted.
    accepted = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0)), 0)
    taken = chance < accepted
    kept = jax.tree.map(lambda a, b: jnp.where(taken.reshape((-1,) + (1,) * (a.ndim - 1)), a, b), proposed, states)
    return kept, accepted


def _langevin(posterior: Posterior, evaluate: Any, states: _State, noise: Array, size: Array) -> tuple[_State, Array]:
    """One step of the dynamics, and the chance that a Metropolis test would have taken it."""
    w = states.w - size / 2 * states.slope + jnp.sqrt(size) * noise
    found = _State(w, *evaluate(w))
    energy = jax.vmap(posterior.potential)
    back = states.w - w + size / 2 * found.slope
    gain = energy(states.loss, states.w) - energy(found.loss, w)
    gain = gain + jnp.sum(noise**2, axis=1) / 2 - jnp.sum(back**2, axis=1) / (2 * size)
    return found, jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0)), 0)
