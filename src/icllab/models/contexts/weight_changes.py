r"""The best change of weights that does not depend on the query, and its residual.

A context changes what enters a dense layer. At one query a change of the layer's weights makes up for that exactly; at
all queries it is a regression,

.. math:: \min_{\Delta W, \Delta b} \sum_x \big| \delta(x) - \Delta W^\top a(x) - \Delta b \big|^2,

of the change of output :math:`\delta(x)` that the context makes, on the layer's input :math:`a(x)` without it.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.models.networks.dense import Dense, product


class WeightChange(eqx.Module):
    r"""A change of a dense layer :math:`x W + b`.

    Attributes:
        weight: :math:`\Delta W`.
        bias: :math:`\Delta b`; zero where only a linear change was fitted.
    """

    weight: Float[Array, "inner outer"]
    bias: Float[Array, " outer"]

    def __call__(self, inputs: Float[Array, "row inner"]) -> Float[Array, "row outer"]:
        """Change of the layer's output."""
        return inputs @ self.weight + self.bias[None]

    @property
    def singular_values(self) -> Float[Array, " rank"]:
        r"""Singular values of :math:`\Delta W` in descending order; a patch of rank one has one."""
        return jnp.linalg.svd(self.weight, compute_uv=False)

    def residual(self, inputs: Float[Array, "row inner"], target: Float[Array, "row outer"]) -> Float[Array, ""]:
        """Squared residual divided by the square of ``target``: 0 for a perfect fit, 1 without a change."""
        return jnp.sum((target - self(inputs)) ** 2) / jnp.sum(target**2)


def best_change(inputs: Float[Array, "row inner"], target: Float[Array, "row outer"], *, affine: bool) -> WeightChange:
    """The least-squares change over the rows, with the least norm if there are several.

    Args:
        inputs: What enters the layer without the context, a row for every query.
        target: The change of the layer's output that the context makes.
        affine: Whether the bias changes too.
    """
    mean_in, mean_out = inputs.mean(axis=0), target.mean(axis=0)
    if not affine:
        mean_in, mean_out = jnp.zeros_like(mean_in), jnp.zeros_like(mean_out)
    weight = jnp.linalg.lstsq(inputs - mean_in[None], target - mean_out[None])[0]
    return WeightChange(weight, mean_out - mean_in @ weight)


class SplitDense(eqx.Module):
    r"""A dense layer with weights split along directions of its inputs, :math:`x W + b = x W_\perp + (x B) C + b`.

    The rows C are a subspace of few weights: a change of them is one of rank ``len(rows)`` at most, and acts on what
    inputs have along B.

    Attributes:
        across: :math:`W_\perp = W - B C`.
        basis: B, orthonormal columns.
        rows: :math:`C = B^\top W`.
        bias: b, or None.
    """

    across: Float[Array, "inner outer"]
    basis: Float[Array, "inner rank"]
    rows: Float[Array, "rank outer"]
    bias: Float[Array, " outer"] | None

    @classmethod
    def from_dense(cls, layer: Dense, directions: Float[Array, "inner rank"]) -> "SplitDense":
        """Split ``layer`` along the span of some directions of its inputs, without changing its map."""
        basis = jnp.linalg.qr(directions)[0]
        rows = basis.T @ layer.weight
        return cls(layer.weight - basis @ rows, basis, rows, layer.bias)

    def __call__(self, x: Float[Array, "*rows inner"]) -> Float[Array, "*rows outer"]:
        """The map of every row."""
        y = product(x, self.across) + product(product(x, self.basis), self.rows)
        return y if self.bias is None else y + jnp.broadcast_to(self.bias, y.shape)
