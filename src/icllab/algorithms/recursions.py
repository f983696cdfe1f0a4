r"""Regularised least squares for every prefix of a prompt, with one rank-one update for each example.

With :math:`U_i, y_i` the first ``i`` examples, :func:`ridge_weights` has in row ``i``

.. math:: v_i = (U_i^\top U_i + \lambda I)^{-1} U_i^\top y_i

and :func:`least_squares_weights` its limit :math:`\lambda \to 0^+`, the solution of least norm. Both cost
O(length dim^2), carry a square root of the covariance and not the covariance itself, and never solve.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from icllab.core.rounding import unit_of_first

_NEW = 16  # units of rounding, per square root of the dimension, below which nothing of an input is new


@jax.jit
def ridge_weights(
    inputs: Float[Array, "position dim"], labels: Float[Array, " position"], ridge: Float[Array, ""]
) -> Float[Array, "position dim"]:
    r"""Row ``i``: the ridge estimate from the examples before ``i``; with ridge 0, the solution of least norm.

    .. math:: P_i = S_i S_i^\top = (I + U_i^\top U_i / \lambda)^{-1}, \qquad f = S^\top u, \quad
              a = \frac{1}{|f|^2 + \lambda}, \\
              v \leftarrow v + a\, S f\, (y - u^\top v), \qquad
              S \leftarrow S - \frac{a}{1 + \sqrt{\lambda a}}\, S f f^\top

    Derived: docs/rivals.md, One update for each example.
    """
    unit = unit_of_first(inputs)  # squares of the inputs neither overflow nor vanish beside the ridge
    ridge = ridge / unit / unit
    negligible = ridge <= _negligible(inputs)  # its square root would be rounded away
    ridge = jnp.where(negligible, jnp.zeros_like(ridge), ridge)
    arguments = (inputs / unit, labels, ridge)
    return jax.lax.cond(ridge > 0, _by_square_root, lambda u, y, _: _by_projection(u, y), *arguments) / unit


def _negligible(inputs: Float[Array, "position dim"]) -> float:
    """Square of the fraction of an input below which its part in a new direction is ignored."""
    return (_NEW * float(jnp.finfo(inputs.dtype).eps)) ** 2 * inputs.shape[1]


def _by_square_root(
    inputs: Float[Array, "position dim"], labels: Float[Array, " position"], ridge: Float[Array, ""]
) -> Float[Array, "position dim"]:
    # Under vmap both branches of a condition are computed: this one has to stay finite without a ridge.
    ridge = jnp.where(ridge > 0, ridge, jnp.ones_like(ridge))
    dim = inputs.shape[1]

    def step(state: tuple[Array, Array], example: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        (v, root), (u, y) = state, example
        f = u @ root
        gain = 1 / (f @ f + ridge)
        image = root @ f
        factor = gain / (1 + jnp.sqrt(ridge * gain))
        after = v + gain * (y - u @ v) * image
        return (after, root - (factor * image)[:, None] * f[None, :]), v

    start = (jnp.zeros_like(inputs[0]), jnp.eye(dim, dtype=inputs.dtype))
    (last, _), before = jax.lax.scan(step, start, (inputs[:-1], labels[:-1]))
    return jnp.concatenate([before, last[None]])


class _Known(NamedTuple):
    """State of the recursion after some examples."""

    weights: Float[Array, " dim"]  # the solution of least norm
    unseen: Float[Array, "dim dim"]  # orthogonal projector onto the directions of no example yet
    root: Float[Array, "dim dim"]  # T with T Tᵀ the pseudo-inverse of UᵀU; one column for each direction seen
    rank: Int[Array, ""]  # number of directions seen


@jax.jit
def least_squares_weights(
    inputs: Float[Array, "position dim"], labels: Float[Array, " position"]
) -> Float[Array, "position dim"]:
    r"""Row ``i``: the least-squares solution of least norm, from the examples before ``i``.

    An example with a new direction is interpolated along what is new of it; one without is averaged in by
    recursive least squares on the directions seen:

    .. math:: k = \begin{cases} Q u / |Q u|^2 & Q u \ne 0 \\ T g / (1 + |g|^2) & Q u = 0 \end{cases}
              \qquad g = T^\top u, \qquad v \leftarrow v + k\, (y - u^\top v)

    with Q the projector onto the directions of no example yet and :math:`T T^\top = (U^\top U)^+`. What rounding
    leaves of an input that has nothing new counts as zero, so repeated examples and degenerate inputs are right.

    Derived: docs/rivals.md, Least squares of any rank.
    """
    unit = unit_of_first(inputs)
    return _by_projection(inputs / unit, labels) / unit


def _by_projection(
    inputs: Float[Array, "position dim"], labels: Float[Array, " position"]
) -> Float[Array, "position dim"]:
    dim, negligible = inputs.shape[1], _negligible(inputs)

    def step(state: _Known, example: tuple[Array, Array]) -> tuple[_Known, Array]:
        u, y = example
        # Projecting twice takes away the rounding that the first projection left.
        fresh = state.unseen @ (state.unseen @ u)
        size = fresh @ fresh
        new = size > negligible * (u @ u)
        size = jnp.where(new, size, jnp.ones_like(size))
        rooted = u @ state.root
        gain = 1 / (1 + rooted @ rooted)
        image = gain * (state.root @ rooted)
        along = jnp.where(new, fresh / size, image)
        update = jnp.where(new, fresh / size, image / (1 + jnp.sqrt(gain)))
        column = jnp.where(new & (jnp.arange(dim, dtype=jnp.int32) == state.rank), jnp.ones_like(u), jnp.zeros_like(u))
        direction = jnp.where(new, fresh / jnp.sqrt(size), jnp.zeros_like(fresh))
        after = _Known(
            weights=state.weights + (y - u @ state.weights) * along,
            unseen=state.unseen - direction[:, None] * direction[None, :],
            root=state.root - update[:, None] * rooted[None, :] + along[:, None] * column[None, :],
            rank=state.rank + new.astype(state.rank.dtype),
        )
        return after, state.weights

    zero, identity = jnp.zeros((dim, dim), inputs.dtype), jnp.eye(dim, dtype=inputs.dtype)
    start = _Known(jnp.zeros_like(inputs[0]), identity, zero, jnp.zeros((), jnp.int32))
    last, before = jax.lax.scan(step, start, (inputs[:-1], labels[:-1]))
    return jnp.concatenate([before, last.weights[None]])
