"""Prompts as values: the data that a predictor may use, and the query that it answers.

Shapes are written for one prompt; callers ``vmap``. A prompt of ``length`` examples has
``length + 1`` positions: at position ``i`` (from 0) a causal predictor has seen ``i`` complete
examples and the query of example ``i``; the last position is the classical query after the
whole context.

Prompts of different lengths are padded on the right to one length and carry a ``mask``, which is True for what is
real. What is masked reads as 0, its loss is NaN, and it counts in no mean.
"""

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from icllab.core.domains import Domain
from icllab.core.errors import expected, kind_of
from icllab.core.tokenizers import token_ids
from icllab.core.vocabularies import in_vocabulary


class Prompt(eqx.Module):
    """Interface of all prompts."""

    def __check_init__(self) -> None:
        self._require_arrays()

    def _require_arrays(self) -> None:
        """Raise for PyTorch tensors."""
        for name, value in vars(self).items():
            if hasattr(value, "detach"):
                hint = f"jnp.asarray({name}.numpy(force=True)) makes one"
                raise expected(name, "an array of JAX or NumPy", f"a {type(value).__name__} of PyTorch", hint)

    @property
    @abc.abstractmethod
    def positions(self) -> int:
        """Number of predictions that a causal predictor makes."""

    @property
    def length(self) -> int:
        """Number of complete examples before the last query."""
        return self.positions - 1

    @property
    def scored(self) -> Bool[Array, "*prompt position"] | None:
        """Mask of the predictions that have a target, also for stacked prompts; None: all have one."""
        return None

    @property
    def stack_axes(self) -> int:
        """Number of leading axes of stacked prompts; 0 for one prompt, and for prompt classes that cannot tell."""
        return 0

    @abc.abstractmethod
    def replaced_after(self, position: int, replacement: "Prompt") -> "Prompt":
        """Replace everything on which a prediction at ``position`` may not depend by that part of ``replacement``."""

    @abc.abstractmethod
    def alone(self, position: int, *, size: int = 1) -> "Prompt":
        """The prompt of the ``size`` positions that end at ``position``: the same query with a shorter context.

        Its last prediction answers what was asked at ``position``. With ``size=1`` the query stands without
        any context, with ``size=position + 1`` nothing is lost but what comes later.
        """

    def _window(self, values: Array, position: int, size: int, extra: int = 0) -> Array:
        """The entries of the ``size`` positions that end at ``position``, and ``extra`` after them."""
        Domain(int, least=0, most=self.positions - 1).require("position", position)
        text = f"an integer from 1 to {position + 1}, the positions up to {position}"
        Domain(int, least=1, most=position + 1, text=text).require("size", size)
        return jax.lax.slice_in_dim(values, position + 1 - size, position + 1 + extra)


def scored_positions(prompt: Any) -> Bool[Array, "*prompt position"] | None:
    """``prompt.scored``, or None for a user's prompt without a mask."""
    return getattr(prompt, "scored", None)


def require_padding(mask: Any, shape: tuple[int, ...]) -> None:
    """Raise unless a mask has this shape and, if not traced, is True up to the padding on the right."""
    if not hasattr(mask, "dtype") or mask.dtype != bool or np.shape(mask) != shape:
        actual = f"{mask.dtype} of shape {np.shape(mask)}" if hasattr(mask, "dtype") else mask
        raise expected("mask", f"True or False for each entry, shape {shape}", actual)
    if isinstance(mask, Tracer):
        return
    values = np.asarray(mask)
    if not values[..., 0].all() or (values[..., 1:] & ~values[..., :-1]).any():
        hint = "move real entries to the left, or give from_ragged the sequences without padding"
        raise expected("mask", "True for real entries, then False for padding on the right", "another order", hint)


def _exchanged(mask: Any, position: int, other: Any, index: Array) -> Any:
    """The mask after entries beyond ``position`` were replaced; padding at ``position`` masks all of them."""
    if mask is None and other is None:
        return None
    mask, other = (jnp.ones(index.shape, bool) if part is None else part for part in (mask, other))
    return jnp.where(index <= position, mask, mask[position] & other)


def _ragged(rows: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """Pad rows of different lengths with zeros on the right; return them with masks of their real entries."""
    lengths = np.array([len(row) for row in rows])
    size = lengths.max()
    padded = [np.concatenate([row, np.zeros((size - len(row), *row.shape[1:]), row.dtype)]) for row in rows]
    return padded, np.arange(size) < lengths[:, None]


def _id_rows(ids: Any) -> tuple[list[np.ndarray], bool]:
    """Sequences of ids, and whether ``ids`` is one of them; raise unless each has at least one id."""
    if isinstance(ids, str) or not hasattr(ids, "__iter__"):
        hint = "TokenPrompt.from_text(text, tokenizer) encodes a text" if isinstance(ids, str) else ""
        raise expected("ids", "a sequence of token ids", ids, hint)
    rows = [np.asarray(row) for row in (np.asarray(ids) if isinstance(ids, jax.Array) else ids)]
    single = all(row.ndim == 0 for row in rows)
    rows = [np.asarray(rows)] if single else rows
    for row in rows:
        if row.ndim != 1 or not row.size or row.dtype.kind not in "iu":
            raise expected("ids", "a sequence of at least one token id", f"{row.dtype} of shape {row.shape}")
        if row.min() < 0 or row.max() > np.iinfo(np.int32).max:
            raise expected("ids", f"ids from 0 to {np.iinfo(np.int32).max}", row[(row < 0) | (row >= 2**31)][0].item())
    return rows, single


def _has_gap(mask: np.ndarray) -> bool:
    """True unless the real entries of a mask are a stretch of at least one."""
    real = np.flatnonzero(mask)
    return not len(real) or bool(real[-1] - real[0] >= len(real))


class RegressionPrompt(Prompt):
    """Examples :math:`(x_i, y_i)`; the query asks for the target of the last position.

    Attributes:
        x: Inputs.
        y: Labels.
        mask: True for real examples and False for padding on the right; None: all are real.
    """

    x: Float[Array, "position dim"]
    y: Float[Array, " position"]
    mask: Bool[Array, " position"] | None = None

    def __post_init__(self) -> None:
        self._require_arrays()
        if self.mask is not None:
            require_padding(self.mask, np.shape(self.y))
            self.x = jnp.where(jnp.broadcast_to(self.mask[..., None], self.x.shape), self.x, 0)
            self.y = jnp.where(self.mask, self.y, 0)

    @classmethod
    def from_ragged(cls, examples: Sequence[tuple[Any, Any]]) -> "RegressionPrompt":
        """Stack prompts ``(x, y)`` of different lengths, arrays [position, dim] and [position], padded and masked.

        Raises:
            InputError: There is none, or an ``x`` is not one row of as many numbers for each label.
        """
        pairs = [(np.asarray(x, float), np.asarray(y, float)) for x, y in examples]
        dims = {x.shape[-1] if x.ndim == 2 and y.shape == x.shape[:1] and len(y) else -1 for x, y in pairs}
        if len(dims) != 1 or -1 in dims:
            shapes = [(x.shape, y.shape) for x, y in pairs[:3]]
            raise expected("examples", "pairs of x [position, dim] and y [position], of one dim", shapes)
        (x, mask), (y, _) = (_ragged(rows) for rows in zip(*pairs, strict=True))
        dtype = jnp.zeros(()).dtype
        return jax.vmap(cls)(jnp.asarray(np.stack(x), dtype), jnp.asarray(np.stack(y), dtype), jnp.asarray(mask))

    @property
    def scored(self) -> Bool[Array, "*prompt position"] | None:
        """The mask."""
        return self.mask

    def __check_init__(self) -> None:
        for name in ("x", "y"):
            if isinstance(getattr(self, name), list | tuple | float | int):
                raise expected(name, "an array of numbers", kind_of(getattr(self, name)), "jnp.asarray makes one")
        inputs, targets = (getattr(array, "shape", ()) for array in (self.x, self.y))
        if inputs and inputs[:-1] != targets:
            raise expected("y", f"one target for each input, of shape {inputs[:-1]}", targets)
        for name, values in (("x", self.x), ("y", self.y)):
            if isinstance(values, jax.Array | np.ndarray) and not jnp.issubdtype(values.dtype, jnp.inexact):
                raise expected(name, "floating-point numbers", values.dtype.name, "jnp.asarray(values, float) converts")

    @property
    def positions(self) -> int:
        """Number of positions: one per example, including the query."""
        return self.y.shape[-1]

    @property
    def stack_axes(self) -> int:
        """Number of axes before the axis of positions."""
        return len(self.y.shape) - 1

    @property
    def dim(self) -> int:
        """Input dimension."""
        return self.x.shape[-1]

    def replaced_after(self, position: int, replacement: "RegressionPrompt") -> "RegressionPrompt":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Replace the target at ``position`` and all later examples; the query ``x[position]`` stays."""
        i = jnp.arange(self.positions)
        return type(self)(
            x=jnp.where((i <= position)[:, None], self.x, replacement.x),
            y=jnp.where(i < position, self.y, replacement.y),
            mask=_exchanged(self.mask, position, replacement.mask, i),
        )

    def alone(self, position: int, *, size: int = 1) -> "RegressionPrompt":
        """The query ``x[position]`` and its target, after the ``size - 1`` examples just before it."""
        parts = (self.x, self.y) if self.mask is None else (self.x, self.y, self.mask)
        return type(self)(*(self._window(part, position, size) for part in parts))


class TokenPrompt(Prompt):
    """A sequence of token ids; position ``i`` predicts token ``i + 1``.

    Attributes:
        tokens: The ids.
        mask: True for real tokens and False for padding on the right; None: all are real.
    """

    tokens: Int[Array, " token"]
    mask: Bool[Array, " token"] | None = None

    def __post_init__(self) -> None:
        self._require_arrays()
        if self.mask is not None:
            require_padding(self.mask, np.shape(self.tokens))
            self.tokens = jnp.where(self.mask, self.tokens, 0)

    @classmethod
    def from_ragged(cls, sequences: Sequence[Any]) -> "TokenPrompt":
        """Stack sequences of ids of different lengths, padded on the right and masked.

        Raises:
            InputError: There is none, or one is not at least two integers: a token and the one that follows it.
        """
        rows = [np.asarray(sequence) for sequence in sequences]
        shortest = min((len(row) if row.ndim == 1 and row.dtype.kind in "iu" else 0 for row in rows), default=0)
        if shortest < 2:
            raise expected("sequences", "sequences of at least 2 ids each", [row.shape for row in rows[:3]])
        tokens, mask = _ragged([row.astype(np.int32) for row in rows])
        return jax.vmap(cls)(jnp.asarray(np.stack(tokens)), jnp.asarray(mask))

    @classmethod
    def from_ids(cls, ids: Any, mask: Any = None) -> "TokenPrompt":
        """A prompt with a position for each id; nothing follows the last, so its loss is NaN and counts nowhere.

        Args:
            ids: Sequence of ids; or several sequences, of any lengths, which are stacked and padded on the right.
            mask: True for real ids and False for padding on either side, such as the ``attention_mask`` of a batch of
                transformers; the prompts have the real ids alone. None: all are real.

        Raises:
            InputError: There is no sequence of at least one id, or a mask has another shape or a gap.
        """
        if isinstance(ids, Tracer) and mask is None:
            tokens = jnp.pad(ids, (*((0, 0),) * (ids.ndim - 1), (0, 1)))
            masks = jnp.broadcast_to(jnp.arange(tokens.shape[-1]) < ids.shape[-1], tokens.shape)
            return cls(tokens, masks) if ids.ndim == 1 else jax.vmap(cls)(tokens, masks)
        rows, single = _id_rows(ids)
        if mask is not None:
            masks = [np.asarray(part, bool) for part in ([mask] if single else mask)]
            if [part.shape for part in masks] != [row.shape for row in rows] or any(map(_has_gap, masks)):
                raise expected("mask", "True for real ids, for each of them, with padding at the ends", np.shape(mask))
            rows = [row[part] for row, part in zip(rows, masks, strict=True)]
        tokens, masks = _ragged([np.append(row, 0).astype(np.int32) for row in rows])
        masks = masks & (np.arange(masks.shape[1]) < np.array([[len(row)] for row in rows]))
        if single:
            return cls(jnp.asarray(tokens[0]), jnp.asarray(masks[0]))
        return jax.vmap(cls)(jnp.asarray(np.stack(tokens)), jnp.asarray(masks))

    @classmethod
    def from_text(cls, text: Any, tokenizer: Any, first: str | int | None = "file") -> "TokenPrompt":
        """The prompt :meth:`from_ids` of a text, or of several, in the tokens of a tokenizer.

        ``first`` is the token before each text: ``"file"`` for the tokenizer's own, if it has one, None for no token,
        or a token or its id.

        Raises:
            InputError: A text is empty or has a character without a token, or ``first`` is unknown.
        """
        if isinstance(text, list | tuple):
            return cls.from_ids([token_ids(tokenizer, part, first) for part in text])
        return cls.from_ids(token_ids(tokenizer, text, first))

    @property
    def scored(self) -> Bool[Array, "*prompt position"] | None:
        """Mask of the real tokens after the first."""
        return None if self.mask is None else self.mask[..., 1:]

    @property
    def positions(self) -> int:
        """Number of positions: one per token that has a successor."""
        return self.tokens.shape[-1] - 1

    @property
    def stack_axes(self) -> int:
        """Number of axes before the axis of tokens."""
        return len(self.tokens.shape) - 1

    def replaced_after(self, position: int, replacement: "TokenPrompt") -> "TokenPrompt":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Replace all tokens after ``position``."""
        i = jnp.arange(self.tokens.shape[-1])
        return type(self)(
            tokens=jnp.where(i <= position, self.tokens, replacement.tokens),
            mask=_exchanged(self.mask, position, replacement.mask, i),
        )

    def alone(self, position: int, *, size: int = 1) -> "TokenPrompt":
        """The last ``size`` tokens up to ``position``, and the token that follows them."""
        parts = (self.tokens,) if self.mask is None else (self.tokens, self.mask)
        return type(self)(*(self._window(part, position, size, extra=1) for part in parts))


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
        """Number of positions: one per item, including the query."""
        return self.labels.shape[-1]

    @property
    def stack_axes(self) -> int:
        """Number of axes before the axis of items."""
        return len(self.labels.shape) - 1

    @property
    def pairs(self) -> int:
        """N, the number of pairs in the context."""
        return self.positions - 1

    @property
    def matches(self) -> Bool[Array, "*prompt pair"]:
        """Mask of the context's label tokens that show the target, also for stacked prompts."""
        return self.labels[..., :-1] == self.labels[..., -1:]

    def content(self) -> Float[Array, "token dim"]:
        """Contents of the tokens, without their positions."""
        pairs = jnp.stack([self.items[:-1], self.label_vectors], axis=1)
        return jnp.concatenate([pairs.reshape(-1, self.items.shape[1]), self.items[-1:]])

    def tokens(self) -> Float[Array, "token feature"]:
        """Position and content of every token, side by side; NaN if a traced position is not one of the P positions."""
        content = self.content()
        positions = self.shift + jnp.arange(len(content))
        valid = in_vocabulary("shift", positions, self.position_dim, "give more positions, position_dim=")
        places = jax.nn.one_hot(positions, self.position_dim, dtype=content.dtype)
        return jnp.concatenate([jnp.where(valid[:, None], places, jnp.nan), content], axis=1)

    def replaced_after(self, position: int, replacement: "ItemLabelPrompt") -> "ItemLabelPrompt":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Replace the items after ``position``, and the labels from ``position`` on."""
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
