"""A prompt is a value: what a predictor may look at, and what it is asked.

Shapes are written for one prompt; callers ``vmap``. A prompt of ``length`` examples has
``length + 1`` positions: at position ``i`` (from 0) a causal predictor has seen ``i`` complete
examples and the query of example ``i``; the last position is the classical query after the
whole context.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from icllab.core.domains import Domain
from icllab.core.errors import expected, kind_of


class Prompt(eqx.Module):
    """Interface of all prompts."""

    @property
    @abc.abstractmethod
    def positions(self) -> int:
        """Number of predictions that a causal predictor makes."""

    @property
    def length(self) -> int:
        """Number of complete examples before the last query."""
        return self.positions - 1

    @abc.abstractmethod
    def replaced_after(self, position: int, replacement: "Prompt") -> "Prompt":
        """Everything a prediction at ``position`` may not depend on, taken from ``replacement``."""

    @abc.abstractmethod
    def alone(self, position: int, *, size: int = 1) -> "Prompt":
        """The same query with less before it: the ``size`` positions that end at ``position``, as a prompt.

        Its last prediction answers what was asked at ``position``. With ``size=1`` the query stands without
        any context, with ``size=position + 1`` nothing is lost but what comes later.
        """

    def _window(self, values: Array, position: int, size: int, extra: int = 0) -> Array:
        """The entries of the ``size`` positions that end at ``position``, and ``extra`` after them."""
        Domain(int, least=0, most=self.positions - 1).require("position", position)
        text = f"an integer from 1 to {position + 1}, the positions up to {position}"
        Domain(int, least=1, most=position + 1, text=text).require("size", size)
        return jax.lax.slice_in_dim(values, position + 1 - size, position + 1 + extra)


class RegressionPrompt(Prompt):
    r"""Examples :math:`(x_i, y_i)`; the target of the last position is what the query asks for."""

    x: Float[Array, "position dim"]
    y: Float[Array, " position"]

    def __check_init__(self) -> None:
        for name in ("x", "y"):
            if isinstance(getattr(self, name), list | tuple | float | int):
                raise expected(name, "an array of numbers", kind_of(getattr(self, name)), "jnp.asarray makes one")
        inputs, targets = (getattr(array, "shape", ()) for array in (self.x, self.y))
        if len(inputs) == len(targets) + 1 and inputs[:-1] != targets:
            raise expected("y", f"one target for each input, of shape {inputs[:-1]}", targets)

    @property
    def positions(self) -> int:
        """One per example, the query included."""
        return self.y.shape[-1]

    @property
    def dim(self) -> int:
        """Input dimension."""
        return self.x.shape[-1]

    def replaced_after(self, position: int, replacement: "RegressionPrompt") -> "RegressionPrompt":  # pyright: ignore[reportIncompatibleMethodOverride]
        """The query ``x[position]`` stays; its own target and all later examples change."""
        i = jnp.arange(self.positions)
        return type(self)(
            x=jnp.where((i <= position)[:, None], self.x, replacement.x),
            y=jnp.where(i < position, self.y, replacement.y),
        )

    def alone(self, position: int, *, size: int = 1) -> "RegressionPrompt":
        """The query ``x[position]`` and its target, after the ``size - 1`` examples just before it."""
        return type(self)(x=self._window(self.x, position, size), y=self._window(self.y, position, size))


class TokenPrompt(Prompt):
    """A sequence of token ids; the prediction at position ``i`` is of token ``i + 1``."""

    tokens: Int[Array, " token"]

    @property
    def positions(self) -> int:
        """One per token that has a successor."""
        return self.tokens.shape[-1] - 1

    def replaced_after(self, position: int, replacement: "TokenPrompt") -> "TokenPrompt":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tokens up to and including ``position`` stay."""
        i = jnp.arange(self.tokens.shape[-1])
        return type(self)(tokens=jnp.where(i <= position, self.tokens, replacement.tokens))

    def alone(self, position: int, *, size: int = 1) -> "TokenPrompt":
        """The last ``size`` tokens up to ``position``, and the token that follows them."""
        return type(self)(tokens=self._window(self.tokens, position, size, extra=1))


class ItemLabelPrompt(Prompt):
    r"""Items with their labels, then an item whose label is asked for: :math:`x_1, l_1, \dots, x_N, l_N, x_q`.

    Token 2k is item k and token 2k + 1 its label, counted from 0; token 2N is the query. A token is its place as a unit
    vector of dimension P, and its content of dimension D.

    Attributes:
        items: The items; the last is the query.
        label_vectors: Content of the label tokens in the context.
        labels: Number of each item's label, from 0. The last is the target, which no predictor may see.
        classes: Number of each item's class; negative for a class that is in this prompt only.
        shift: Place of the first token, from 0 to P - 2N - 1.
        position_dim: P.
    """

    items: Float[Array, "position dim"]
    label_vectors: Float[Array, "pair dim"]
    labels: Int[Array, " position"]
    classes: Int[Array, " position"]
    shift: Int[Array, ""]
    position_dim: int = eqx.field(static=True)

    @property
    def positions(self) -> int:
        """One per item, the query included."""
        return self.labels.shape[-1]

    @property
    def pairs(self) -> int:
        """N, the pairs of the context."""
        return self.positions - 1

    @property
    def matches(self) -> Bool[Array, "*prompt pair"]:
        """Which label tokens of the context show the target; of stacked prompts too."""
        return self.labels[..., :-1] == self.labels[..., -1:]

    def content(self) -> Float[Array, "token dim"]:
        """Contents of the tokens, without their positions."""
        pairs = jnp.stack([self.items[:-1], self.label_vectors], axis=1)
        return jnp.concatenate([pairs.reshape(-1, self.items.shape[1]), self.items[-1:]])

    def tokens(self) -> Float[Array, "token feature"]:
        """Place and content of every token, side by side."""
        content = self.content()
        positions = self.shift + jnp.arange(len(content))
        return jnp.concatenate([jax.nn.one_hot(positions, self.position_dim, dtype=content.dtype), content], axis=1)

    def replaced_after(self, position: int, replacement: "ItemLabelPrompt") -> "ItemLabelPrompt":  # pyright: ignore[reportIncompatibleMethodOverride]
        """The items up to ``position`` stay, and the labels of those before it."""
        i = jnp.arange(self.positions)
        return type(self)(
            items=jnp.where((i <= position)[:, None], self.items, replacement.items),
            label_vectors=jnp.where((i[:-1] < position)[:, None], self.label_vectors, replacement.label_vectors),
            labels=jnp.where(i < position, self.labels, replacement.labels),
            classes=jnp.where(i <= position, self.classes, replacement.classes),
            shift=self.shift,
            position_dim=self.position_dim,
        )

    def alone(self, position: int, *, size: int = 1) -> "ItemLabelPrompt":
        """The item at ``position`` as the query, after the ``size - 1`` pairs just before it, at their positions."""
        items = self._window(self.items, position, size)
        begin = position + 1 - size
        return type(self)(
            items=items,
            label_vectors=jax.lax.slice_in_dim(self.label_vectors, begin, position),
            labels=self._window(self.labels, position, size),
            classes=self._window(self.classes, position, size),
            shift=self.shift + 2 * begin,
            position_dim=self.position_dim,
        )
