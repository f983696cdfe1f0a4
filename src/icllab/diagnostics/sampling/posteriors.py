r"""A tempered posterior near a point, and what a chain of it does in one step.

The target, over all parameters :math:`w` as one vector, is :math:`e^{-U}` with

.. math:: U(w) = n\beta\,L(w) + \frac\gamma2\lVert w - w^*\rVert^2 - \log\varphi(w) ,

the last term only if there is a :class:`~icllab.diagnostics.sampling.priors.Prior`.

A loss that is infinite outside a region restricts the target to it: what ends outside is not accepted. Chains are to
start inside, since what is outside does not say where the inside is; dynamics without a test do not stay there. A loss
may be a vector of terms; their sum is L.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.diagnostics.sampling.priors import Prior, Vector
from icllab.models.torch_derivatives import TorchFunction

Starts = Float[Array, "chain parameter"]


def summed(loss: Callable[[Any], Any], w: Vector) -> tuple[Float[Array, ""], Vector, Float[Array, " term"]]:
    """The sum of the terms of a loss, its gradient, and the terms."""

    def total(w: Vector) -> tuple[Array, Array]:
        terms = jnp.atleast_1d(loss(w))
        return jnp.sum(terms), terms

    (value, terms), gradient = jax.value_and_grad(total, has_aux=True)(w)
    return value, gradient, terms


def hessian_product(loss: Any, gradient: Callable[[Vector], Vector], w: Vector, v: Vector) -> Vector:
    """The product of a vector with the Jacobian of a gradient, which is symmetric.

    Forward over reverse, unless the ``loss`` is of a PyTorch module, whose tangents are pullbacks of pullbacks.
    """
    leaves = jax.tree.leaves(loss, is_leaf=lambda value: isinstance(value, TorchFunction))
    if any(isinstance(leaf, TorchFunction) for leaf in leaves):
        return jax.vjp(gradient, w)[1](v)[0]
    return jax.jvp(gradient, (w,), (v,))[1]


class Posterior(eqx.Module):
    """The target, and the point it is localized at.

    The ``baseline`` is a constant near the loss, which is subtracted before the loss is multiplied by :math:`n\\beta`:
    the target is the same, and energies are not rounded to the precision of :math:`n\\beta` times the constant.
    """

    loss: Callable[[Any], Any]
    at: Vector
    nbeta: Float[Array, ""]
    localization: Float[Array, ""]
    baseline: Float[Array, ""] | float = 0.0
    prior: Prior | None = eqx.field(default=None, kw_only=True)

    def restoring(self, w: Vector) -> Vector:
        """The gradient of the potential without the loss."""
        slope = self.localization * (w - self.at)
        return slope if self.prior is None else slope + (w - self.prior.centre) / self.prior.std**2

    def reflected(self, w: Vector) -> tuple[Vector, Vector | float]:
        """A point reflected into the prior's box, and the signs that momenta are multiplied with."""
        return (w, 1.0) if self.prior is None else self.prior.reflected(w)

    def evaluated(self, w: Vector) -> tuple[Float[Array, ""], Vector, Float[Array, " term"]]:
        """The loss alone, the gradient of the potential, and the terms of the loss."""
        loss, gradient, terms = summed(self.loss, w)
        return loss, self.nbeta * gradient + self.restoring(w), terms

    def loss_and_slope(self, w: Vector) -> tuple[Float[Array, ""], Vector]:
        """The loss alone, and the gradient of the potential."""
        return self.evaluated(w)[:2]

    def potential(self, loss: Float[Array, ""], w: Vector) -> Float[Array, ""]:
        """U less :math:`n\\beta` times the baseline, given the loss at w."""
        energy = self.nbeta * (loss - self.baseline) + self.localization / 2 * jnp.sum((w - self.at) ** 2)
        return energy if self.prior is None else energy + self.prior.energy(w)


class ChainState(NamedTuple):
    """Parameters of a chain, the loss there, the gradient of the potential, and perhaps the terms of the loss."""

    w: Vector
    loss: Float[Array, ""]
    slope: Vector
    terms: Float[Array, " term"] | None = None


def steepest(
    posterior: Posterior, *, key: PRNGKeyArray, iterations: int = 30, where: Vector | None = None
) -> Float[Array, ""]:
    r"""The largest curvature of the potential, by power iteration: a little too small, never too large.

    Each iteration is one product with the Hessian. At most :math:`n\beta h_{\max} + \gamma`, in size. At the centre,
    unless another place is given.
    """
    place = posterior.at if where is None else where

    def times(v: Vector) -> Vector:
        return hessian_product(posterior.loss, lambda w: posterior.loss_and_slope(w)[1], place, v)

    def step(_: Any, state: tuple[Vector, Array]) -> tuple[Vector, Array]:
        v, _norm = state
        image = times(v)
        norm = jnp.linalg.norm(image)
        return image / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny), norm

    # Not of signs, which are orthogonal to symmetric directions far too often.
    start = jax.random.uniform(key, posterior.at.shape, posterior.at.dtype, -1, 1)
    begin = (start / jnp.linalg.norm(start), jnp.zeros((), posterior.at.dtype))
    return jax.lax.fori_loop(0, iterations, step, begin)[1]


def hamiltonian(
    posterior: Posterior, evaluate: Any, states: ChainState, noise: Array, size: Array, length: Any, chance: Array
) -> tuple[ChainState, Array]:
    """A trajectory of leapfrog steps for every chain, taken or not."""

    def leap(_: Any, carry: tuple[ChainState, Array]) -> tuple[ChainState, Array]:
        at, momentum = carry
        momentum = momentum - size / 2 * at.slope
        w = at.w + size * momentum
        if posterior.prior is not None:
            w, signs = jax.vmap(posterior.prior.reflected)(w)
            momentum = signs * momentum
        at = ChainState(w, *evaluate(w))
        return at, momentum - size / 2 * at.slope

    proposals, momentum = jax.lax.fori_loop(0, length, leap, (states, noise))
    energy = jax.vmap(posterior.potential)
    before = energy(states.loss, states.w) + jnp.sum(noise**2, axis=1) / 2
    after = energy(proposals.loss, proposals.w) + jnp.sum(momentum**2, axis=1) / 2
    gain = before - after
    # What is not finite has run away, and is not accepted.
    chances = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0)), 0)
    accept = chance < chances
    after_test = jax.tree.map(
        lambda a, b: jnp.where(accept.reshape((-1,) + (1,) * (a.ndim - 1)), a, b), proposals, states
    )
    return after_test, chances


def langevin(
    posterior: Posterior, evaluate: Any, states: ChainState, noise: Array, size: Array
) -> tuple[ChainState, Array]:
    """One step of the dynamics, and the chance that a Metropolis test would have taken it."""
    w = states.w - size / 2 * states.slope + jnp.sqrt(size) * noise
    proposal = ChainState(w, *evaluate(w))
    energy = jax.vmap(posterior.potential)
    back = states.w - w + size / 2 * proposal.slope
    gain = energy(states.loss, states.w) - energy(proposal.loss, w)
    gain = gain + jnp.sum(noise**2, axis=1) / 2 - jnp.sum(back**2, axis=1) / (2 * size)
    return proposal, jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0)), 0)
