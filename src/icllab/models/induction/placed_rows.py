r"""Sums of tokens that consist of a position and a content, computed without writing out the positions.

A token is :math:`x_j = [e_{s+j};\, c_j]`, a unit vector of dimension P beside a content of dimension D. A row
:math:`m = \sum_j a_j x_j` is known by its weights :math:`a` on the T tokens and by its content :math:`\sum_j a_j c_j`,
and

.. math:: m W = \sum_j a_j W_{s+j} + \Big(\sum_j a_j c_j\Big) W_{P:}

looks up T rows of the first P of W in place of a product with them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from icllab.core.prompt import ItemLabelPrompt
from icllab.models.networks.dense import product


class PlacedRows(eqx.Module):
    """Rows that are sums of a prompt's tokens.

    Attributes:
        weights: Weight of each token in each row; None: the rows are the tokens themselves.
        content: Content of each row.
        shift: Place of the first token.
        tokens: T (static).
        position_dim: P (static); 0: there are no positions, and all is content.
    """

    weights: Float[Array, "row token"] | None
    content: Float[Array, "row dim"]
    shift: Int[Array, ""]
    tokens: int = eqx.field(static=True)
    position_dim: int = eqx.field(static=True)

    @classmethod
    def from_prompt(cls, prompt: ItemLabelPrompt) -> "PlacedRows":
        """The tokens of a prompt."""
        content = prompt.content()
        return cls(None, content, prompt.shift, len(content), prompt.position_dim)

    @classmethod
    def all_content(cls, rows: Float[Array, "row width"]) -> "PlacedRows":
        """Treat any rows as content without positions."""
        return cls(None, rows, jnp.zeros((), int), len(rows), 0)

    def mixed(self, weights: Float[Array, "more row"]) -> "PlacedRows":
        """Weighted sums of these rows, as rows."""
        inner = weights if self.weights is None else weights @ self.weights
        return PlacedRows(inner, weights @ self.content, self.shift, self.tokens, self.position_dim)

    def last(self) -> "PlacedRows":
        """The last row alone."""
        if self.weights is None:
            return self.mixed(jnp.eye(len(self.content), dtype=self.content.dtype)[-1:])
        return PlacedRows(self.weights[-1:], self.content[-1:], self.shift, self.tokens, self.position_dim)

    def summed(self, weights: Float[Array, "more row"]) -> Float[Array, "more width"]:
        """Weighted sums of these rows, as an array."""
        return self.mixed(weights).written_out()

    def times(self, matrix: Float[Array, "width outer"]) -> Float[Array, "row outer"]:
        """The rows times a matrix."""
        products = product(self.content, matrix[self.position_dim :])
        if not self.position_dim:
            return products
        if self.weights is not None and self.tokens == self.position_dim:
            return products + product(self.weights, matrix[: self.position_dim])
        looked_up = self._here(matrix[: self.position_dim], 0)
        return products + (looked_up if self.weights is None else self.weights @ looked_up)

    def against(self, vectors: Float[Array, "vector width"]) -> Float[Array, "vector row"]:
        """The inner products of ``vectors`` with the rows."""
        products = vectors[:, self.position_dim :] @ self.content.T
        if not self.position_dim:
            return products
        looked_up = self._here(vectors[:, : self.position_dim], 1)
        return products + (looked_up if self.weights is None else looked_up @ self.weights.T)

    def written_out(self) -> Float[Array, "row width"]:
        """The rows as an array."""
        if not self.position_dim:
            return self.content
        weights = jnp.eye(self.tokens, dtype=self.content.dtype) if self.weights is None else self.weights
        if self.tokens < self.position_dim:
            empty = jnp.zeros((len(weights), self.position_dim), weights.dtype)
            weights = jax.lax.dynamic_update_slice_in_dim(empty, weights, self.shift, 1)
        return jnp.concatenate([weights, self.content], axis=1)

    def _here(self, table: Array, axis: int) -> Array:
        """Entries of a table of all positions at the positions of the tokens."""
        if self.tokens == self.position_dim:
            return table
        return jax.lax.dynamic_slice_in_dim(table, self.shift, self.tokens, axis)


class Updated(eqx.Module):
    """Tokens after a layer, kept as the tokens before it and the sums that the layer adds.

    .. math:: h_j = x_j + m_j W

    Attributes:
        tokens: The :math:`x_j`.
        sums: The :math:`m_j`.
        value: W.
    """

    tokens: PlacedRows
    sums: PlacedRows
    value: Float[Array, "width width"]

    def against(self, vectors: Float[Array, "vector width"]) -> Float[Array, "vector token"]:
        """The inner products of ``vectors`` with the tokens."""
        return self.tokens.against(vectors) + self.sums.against(product(vectors, self.value.T))

    def summed(self, weights: Float[Array, "row token"]) -> Float[Array, "row width"]:
        """Weighted sums of the tokens."""
        return self.tokens.summed(weights) + self.sums.mixed(weights).times(self.value)


class WrittenOut(eqx.Module):
    """Tokens as an array."""

    rows: Float[Array, "token width"]

    def against(self, vectors: Float[Array, "vector width"]) -> Float[Array, "vector token"]:
        """The inner products of ``vectors`` with the tokens."""
        return vectors @ self.rows.T

    def summed(self, weights: Float[Array, "row token"]) -> Float[Array, "row width"]:
        """Weighted sums of the tokens."""
        return weights @ self.rows
