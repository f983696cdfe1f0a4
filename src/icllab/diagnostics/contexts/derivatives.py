r"""The derivative of the map of a context, by implicit differentiation.

At :math:`f_c(w) = w + P\theta^*` the gradient of D vanishes; for a change d of all weights it goes on to vanish where

.. math:: (D_{\theta\theta} + \mu)\, d\theta = -D_{\theta w}\, d, \qquad Df_c\, d = d + P\, d\theta

with the Gauss-Newton matrix for :math:`D_{\theta\theta}`, which is exact where nothing is left of D. Changes of
weights that no query feels stay as they are.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float

from icllab.diagnostics.contexts.distances import divergence
from icllab.diagnostics.contexts.queries import joined, last_answer
from icllab.diagnostics.contexts.solvers import Fit, MapSolver, along
from icllab.diagnostics.contexts.subspaces import parameters


class Carried(NamedTuple):
    """A change of the weights, carried to the map's."""

    direction: Any  # Df_c d, of all weights
    residual: Float[Array, ""]  # of the linear system, relative


@eqx.filter_jit
def change_after(model: Any, context: Any, queries: Any, direction: Any) -> Float[Array, "query output"]:
    """How the answers after a context change along a direction of the weights, per unit."""

    def answers(params: Any) -> Array:
        there = eqx.combine(params, model)
        return jax.vmap(lambda query: last_answer(there, joined(context, query)))(queries)

    return jax.jvp(answers, (parameters(model),), (direction,))[1]


@eqx.filter_jit
def change_alone(model: Any, queries: Any, direction: Any) -> Float[Array, "query output"]:
    """How the answers to queries alone change along a direction of the weights, per unit."""

    def answers(params: Any) -> Array:
        there = eqx.combine(params, model)
        return jax.vmap(lambda query: last_answer(there, query))(queries)

    return jax.jvp(answers, (parameters(model),), (direction,))[1]


@eqx.filter_jit
def carried(fit: Fit, direction: Any, change: Float[Array, "query output"], how: MapSolver) -> Carried:
    r""":math:`Df_c\,d` of a fit at its solution, ``change`` being how its targets change along d."""
    data = (fit.queries, fit.targets)

    def answers(params: Any) -> Array:
        return fit.outputs(params, data)

    given, moved = jax.jvp(answers, (parameters(fit.model),), (direction,))
    pull = jax.grad(lambda z, t: jnp.mean(divergence(fit.kind, t, z)))
    turned = jax.jvp(pull, (given, fit.targets), (moved, change))[1]
    back = jax.vjp(answers, fit.free)[1](turned)[0]
    right, unravel = ravel_pytree(back)
    curvature = fit.curvature(fit.free)
    lifted = how.ridge_of(right.dtype) * along(curvature, right)

    def product(v: Array) -> Array:
        return curvature(v) + lifted * v

    precise = 1e-10 if right.dtype == jnp.float64 else 1e-5
    answer = cg(product, -right, tol=precise, maxiter=2 * how.products)[0]
    size = jnp.linalg.norm(right)
    residual = jnp.linalg.norm(product(answer) + right) / jnp.where(size > 0, size, jnp.ones_like(size))
    step = eqx.combine(unravel(answer), jax.tree.map(jnp.zeros_like, direction))
    return Carried(jax.tree.map(lambda a, b: a + b, direction, step), residual)
