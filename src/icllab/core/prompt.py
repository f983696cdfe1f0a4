"""A prompt is a value: what a predictor may look at, and what it is asked.

Shapes are written for one prompt; callers ``vmap``. A prompt of ``length`` examples has
``length + 1`` positions: at position ``i`` (from 0) a causal predictor has seen ``i`` complete
examples and the query of example ``i``; the last position is the classical query after the
whole context.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Prompt(eqx.Module):
    """What every kind of prompt offers."""

    @property
    @abc.abstractmethod
    def positions(self) -> int:
        """How many predictions a causal predictor makes."""

    @property
    def length(self) -> int:
        """Number of complete examples before the last query."""
        return self.positions - 1

    @abc.abstractmethod
    def replaced_after(self, position: int, other: "Prompt") -> "Prompt":
        """Everything a prediction at ``position`` may not depend on, taken from ``other``."""


class RegressionPrompt(Prompt):
    r"""Examples :math:`(x_i, y_i)`; the target of the last position is what the query asks for."""

    x: Float[Array, "position dim"]
    y: Float[Array, " position"]

    @property
    def positions(self) -> int:
        """One per example, the query included."""
        return self.y.shape[-1]

    @property
    def dim(self) -> int:
        """Input dimension."""
        return self.x.shape[-1]

    def replaced_after(self, position: int, other: "RegressionPrompt") -> "RegressionPrompt":  # pyright: ignore[reportIncompatibleMethodOverride]
        """The query ``x[position]`` stays; its own target and all later examples change."""
        i = jnp.arange(self.positions)
        return type(self)(
            x=jnp.where((i <= position)[:, None], self.x, other.x),
            y=jnp.where(i < position, self.y, other.y),
        )


class TokenPrompt(Prompt):
    """A sequence of token ids; the prediction at position ``i`` is of token ``i + 1``."""

    tokens: Int[Array, " token"]

    @property
    def positions(self) -> int:
        """One per token that has a successor."""
        return self.tokens.shape[-1] - 1

    def replaced_after(self, position: int, other: "TokenPrompt") -> "TokenPrompt":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tokens up to and including ``position`` stay."""
        i = jnp.arange(self.tokens.shape[-1])
        return type(self)(tokens=jnp.where(i <= position, self.tokens, other.tokens))
