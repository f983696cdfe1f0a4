r"""Tokens of a prompt: their contents, the tokens that each token sees, and the positions of the answers.

*Interleaved*: :math:`x_0, y_0, x_1, y_1, \dots`, every token sees itself and all before it, the answer for
:math:`y_i` is read at :math:`x_i`. *Joined*: one token :math:`(x_i, y_i)` per example and a query token
:math:`(x_i, 0)`. A joined model that answers every position has one query token per position beside the
examples; it sees the examples before it, so that the answer at position i is the one a prompt of i examples
would get. *Tokens*: a sequence of token ids as unit vectors; every one is answered by what follows it.
"""

import abc
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.domains import POSITIVE
from icllab.core.errors import expected, require_flag, require_instance, require_integer, require_key, unknown
from icllab.core.prompt import TokenPrompt
from icllab.core.vocabularies import PADDING, in_vocabulary
from icllab.models.networks.dense import Dense, require_spread, wide

POSITIONS = ("none", "learned", "one_hot", "rotary")
LOOKED_UP = 2048  # from this vocabulary on, rows of the table are looked up, which gives the same numbers


class Layout(NamedTuple):
    """Properties of the tokens of a prompt that follow from its length (NumPy, never traced).

    Attributes:
        visible: ``visible[i, j]``: token i sees token j.
        examples: Number of complete examples that a token sees.
        place: Place of a token, for positional codes.
        read: The tokens at which answers are read, in order of position: a slice, which differentiates faster than
            a list of indices.
        keys: Only the first so many tokens are seen by anyone, those of a prefix before the tokens included.
    """

    visible: np.ndarray
    examples: np.ndarray
    place: np.ndarray
    read: slice
    keys: int

    @property
    def key_places(self) -> np.ndarray:
        """Places of the tokens that are seen; a prefix, of keys and values alone, has the first places."""
        return np.append(np.arange(self.keys - len(self.place)), self.place)[: self.keys]


def _layout(visible: np.ndarray, examples: np.ndarray, place: np.ndarray, read: slice) -> Layout:
    columns = np.flatnonzero(visible.any(axis=0))
    return Layout(visible, examples, place, read, int(columns[-1]) + 1 if len(columns) else 0)


class AbstractArrangement(eqx.Module):
    """Tokens of a prompt before any weights, and their layout."""

    @property
    @abc.abstractmethod
    def positions(self) -> Literal["every", "last"]:
        """Positions that are answered: "every" or "last"."""

    @property
    def outputs(self) -> int | None:
        """Number of entries of an answer; None for one number without an axis."""
        return None

    @property
    def tied(self) -> bool:
        """True if the readout is the embedding's table."""
        return False

    @abc.abstractmethod
    def features(self, dim: int) -> int:
        """Number of entries of a token in a prompt with inputs of dimension ``dim``."""

    @abc.abstractmethod
    def tokens(self, prompt: Any) -> Float[Array, "token feature"]:
        """The tokens."""

    @abc.abstractmethod
    def layout(self, positions: int) -> Layout:
        """The layout of a prompt with ``positions`` positions."""

    @abc.abstractmethod
    def token_count(self, length: int) -> int:
        """Number of token positions for a prompt of ``length`` examples and a query."""


class AbstractExamples(AbstractArrangement):
    """Inputs with their labels: numbers, or the ids of item-label prompts as unit vectors.

    Attributes:
        labels: L, of item-label prompts; None: labels are numbers.
    """

    labels: eqx.AbstractVar[int | None]

    def __check_init__(self) -> None:
        if self.labels is not None:
            require_integer("labels", self.labels, least=2)

    @property
    def outputs(self) -> int | None:
        """A logit for each label of item-label prompts."""
        return self.labels

    def features(self, dim: int) -> int:
        """Number of coordinates of the input and the label together."""
        return dim + (self.labels or 1)

    def examples(self, prompt: Any) -> tuple[Float[Array, "position dim"], Float[Array, "position label"]]:
        """Inputs and labels; the last label is ignored. A traced label outside 0..L-1 becomes NaN."""
        if self.labels is None:
            return prompt.x, prompt.y[:, None]
        labels = prompt.labels[:-1]
        ids = jax.nn.one_hot(labels, self.labels, dtype=prompt.items.dtype)
        ids = jnp.where(in_vocabulary("labels", labels, self.labels)[:, None], ids, jnp.nan)
        return prompt.items, jnp.pad(ids, ((0, 1), (0, 0)))


class Interleaved(AbstractExamples):
    r"""Tokens :math:`(x_0, 0), (0, y_0), (x_1, 0), \dots, (x_\ell, 0)`, causal; answers are read at the inputs.

    Source: [Garg22], [Raventos23], [Singh24].
    """

    labels: int | None = eqx.field(static=True, default=None)

    @property
    def positions(self) -> Literal["every", "last"]:
        """``"every"``: each input."""
        return "every"

    def tokens(self, prompt: Any) -> Float[Array, "token feature"]:
        """Two tokens for each example; the target of the last position is not among them."""
        x, y = self.examples(prompt)
        x, y = jnp.pad(x, ((0, 0), (0, y.shape[1]))), jnp.pad(y, ((0, 0), (x.shape[1], 0)))
        return jnp.stack([x, y], axis=1).reshape(-1, x.shape[1])[:-1]

    def layout(self, positions: int) -> Layout:
        """Two tokens for each example; the answer is read at the first."""
        token = np.arange(2 * positions - 1)
        return _layout(token[:, None] >= token, (token + 1) // 2, token, slice(0, None, 2))

    def token_count(self, length: int) -> int:
        """One position for every token."""
        return 2 * length + 1


class Joined(AbstractExamples):
    """Tokens :math:`(x_i, y_i)` for the examples, and query tokens :math:`(x_i, 0)`.

    Attributes:
        answers: ``"last"``: one query token after the whole context. ``"every"``: one for every position, each
            after the examples before it.
        causal: Whether an example sees only itself and earlier examples, or all of them. Answering every
            position needs the former: what an example becomes may not depend on examples after the query.
        query_is_key: Whether a query token sees itself. It is never seen by an example.
        separate: Whether queries have coordinates of their own, and a constant 1: two embeddings instead of one.

    Source: [Lu24], [vonOswald23], [Ahn23], [Nguyen25].
    """

    answers: str = eqx.field(static=True)
    causal: bool = eqx.field(static=True)
    query_is_key: bool = eqx.field(static=True)
    labels: int | None = eqx.field(static=True, default=None)
    separate: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        require_flag("separate", self.separate)
        if self.answers not in ("every", "last"):
            raise unknown("answers", self.answers, ("every", "last"))
        require_flag("causal", self.causal)
        require_flag("query_is_key", self.query_is_key)
        if self.answers == "every" and not self.causal:
            raise expected("causal", "True if every position is answered", False, 'or answers="last"')

    @property
    def positions(self) -> Literal["every", "last"]:
        """The value of ``answers``."""
        return "every" if self.answers == "every" else "last"

    def tokens(self, prompt: Any) -> Float[Array, "token feature"]:
        """The examples, then the queries; the target of the last position is not among them."""
        x, y = self.examples(prompt)
        examples, queries = jnp.concatenate([x[:-1], y[:-1]], axis=1), x if self.answers == "every" else x[-1:]
        if not self.separate:
            return jnp.concatenate([examples, jnp.pad(queries, ((0, 0), (0, y.shape[1])))])
        queries = jnp.pad(queries, ((0, 0), (examples.shape[1], 0)))
        queries = jnp.concatenate([queries, jnp.ones((len(queries), 1), x.dtype)], axis=1)
        return jnp.concatenate([jnp.pad(examples, ((0, 0), (0, x.shape[1] + 1))), queries])

    def features(self, dim: int) -> int:
        """Number of coordinates of an example, and of a query if it has its own."""
        return super().features(dim) + (dim + 1 if self.separate else 0)

    def layout(self, positions: int) -> Layout:
        """The examples, then the queries, at which the answers are read."""
        example = np.arange(positions - 1)
        query = np.arange(positions) if self.answers == "every" else np.array([positions - 1])
        among = np.tril(np.ones((len(example),) * 2, bool)) if self.causal else np.ones((len(example),) * 2, bool)
        self_attention = np.eye(len(query), dtype=bool) & self.query_is_key
        visible = np.block(
            [[among, np.zeros((len(example), len(query)), bool)], [query[:, None] > example, self_attention]]
        )
        examples = visible[:, : len(example)].sum(axis=1)
        return _layout(visible, examples, np.append(example, query), slice(len(example), None))

    def token_count(self, length: int) -> int:
        """One position for each example, and one for the last query."""
        return length + 1


class Concatenated(AbstractExamples):
    """One token for each position, which holds an input and a label.

    Attributes:
        shifted: Whether the label is that of the example before, :math:`(x_i, y_{i-1})`, and every position is
            answered; else tokens are :math:`(x_i, y_i)`, without the last label, and the last position is answered.
        causal: Whether a token sees itself and earlier tokens, or all; True if ``shifted``.

    Source: [Lu24].
    """

    shifted: bool = eqx.field(static=True, default=True)
    causal: bool = eqx.field(static=True, default=True)
    labels: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        require_flag("shifted", self.shifted)
        require_flag("causal", self.causal)
        if self.shifted and not self.causal:
            raise expected("causal", "True if labels are shifted", False, "or shifted=False")

    @property
    def positions(self) -> Literal["every", "last"]:
        """Every position if ``shifted``, else the last."""
        return "every" if self.shifted else "last"

    def tokens(self, prompt: Any) -> Float[Array, "token feature"]:
        """Inputs beside labels."""
        x, y = self.examples(prompt)
        before = ((1, 0), (0, 0)) if self.shifted else ((0, 1), (0, 0))
        return jnp.concatenate([x, jnp.pad(y[:-1], before)], axis=1)

    def layout(self, positions: int) -> Layout:
        """One token for every position."""
        token = np.arange(positions)
        visible = token[:, None] >= token if self.causal else np.ones((positions,) * 2, bool)
        examples = token if self.shifted else np.minimum(visible.sum(axis=1), positions - 1)
        return _layout(visible, examples, token, slice(0 if self.shifted else positions - 1, None))

    def token_count(self, length: int) -> int:
        """One position for each example, and one for the query."""
        return length + 1


class Tokens(AbstractArrangement):
    r"""A sequence of token ids, each a unit vector, causal; an answer has a logit for every possible next token.

    Attributes:
        vocabulary: How many tokens there are; ``dim`` of a model of them.
        tied: Whether the readout's matrix is that of the embedding, transposed: one array, which both train.
        scale: Factor of the embedded tokens, not of the readout; the root of the width in Gemma.
        cap: c, of logits that the network answers as :math:`c \tanh(y / c)`; None for y.
    """

    vocabulary: int = eqx.field(static=True)
    tied: bool = eqx.field(static=True, default=False)  # pyright: ignore[reportIncompatibleMethodOverride]
    scale: float = eqx.field(static=True, default=1.0)
    cap: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        require_integer("vocabulary", self.vocabulary)
        require_flag("tied", self.tied)
        POSITIVE.require("scale", self.scale)
        if self.cap is not None:
            POSITIVE.require("cap", self.cap)

    @property
    def positions(self) -> Literal["every", "last"]:
        """``"every"``: each token."""
        return "every"

    @property
    def outputs(self) -> int:
        """The size of the vocabulary: a logit for every token."""
        return self.vocabulary

    def features(self, dim: int) -> int:
        """Number of tokens in the vocabulary."""
        if dim != self.vocabulary:
            raise expected("dim", f"the vocabulary, {self.vocabulary}", dim)
        return self.vocabulary

    def tokens(self, prompt: TokenPrompt) -> Float[Array, "token feature"]:
        """All tokens except the last, which is the last answer; NaN for a traced id outside the vocabulary."""
        ids, valid = self._ids(prompt)
        return jnp.where(valid[:, None], jax.nn.one_hot(ids, self.vocabulary), jnp.nan)

    def looked_up(self, prompt: TokenPrompt, projection: Dense) -> Float[Array, "token width"]:
        """The projection of :meth:`tokens`, taken from the rows of its table."""
        ids, valid = self._ids(prompt)
        rows = wide(projection.weight[ids])
        rows = rows if projection.bias is None else rows + projection.bias[None]
        return jnp.where(valid[:, None], rows, jnp.nan)

    def _ids(self, prompt: TokenPrompt) -> tuple[Array, Array]:
        ids = prompt.tokens[:-1]
        return ids, in_vocabulary("tokens", ids, self.vocabulary, PADDING)

    def layout(self, positions: int) -> Layout:
        """One token for every position; answers are read at all of them."""
        token = np.arange(positions)
        return _layout(token[:, None] >= token, token, token, slice(0, None, 1))

    def token_count(self, length: int) -> int:
        """One position for every token of the sequence."""
        return length + 1


class Embedding(eqx.Module):
    r"""The tokens of an arrangement as vectors of the residual stream.

    .. math:: t_i \mapsto t_i W_E + b_E + p_i

    Attributes:
        arrangement: :class:`Interleaved`, :class:`Joined` or :class:`Tokens`.
        projection: :math:`W_E, b_E`; without one, a token is its own vector.
        table: :math:`p_i`, for learned positions.
        positions: ``"none"``, ``"learned"``, ``"one_hot"`` (the place as a unit vector, appended to the token), or
            ``"rotary"`` (no code here; attention turns queries and keys).
        length: The longest context, for codes that have a table.

    One-hot positions that are projected give the same functions as learned ones, and another start: the use of
    one-hot positions is without a projection.
    """

    arrangement: AbstractArrangement
    projection: Dense | None
    table: Float[Array, "place width"] | None
    positions: str = eqx.field(static=True)
    length: int | None = eqx.field(static=True)
    width: int = eqx.field(static=True)

    def __init__(
        self,
        arrangement: AbstractArrangement,
        *,
        dim: int,
        width: int | None,
        positions: str,
        length: int | None = None,
        std: float | None = None,
        key: PRNGKeyArray,
    ):
        require_instance("arrangement", arrangement, AbstractArrangement, "one such as Interleaved()")
        require_integer("dim", dim)
        for name, value, least in (("width", width, 1), ("length", length, 0)):
            if value is not None:
                require_integer(name, value, least=least)
        require_spread("std", std)
        require_key(key)
        if positions not in POSITIONS:
            raise unknown("positions", positions, POSITIONS)
        has_codes = positions in ("learned", "one_hot")
        if has_codes and length is None:
            raise expected("length", f"the length of the longest context, for {positions} positions", length)
        of_projection, of_table = jax.random.split(key)
        places = arrangement.token_count(length) if has_codes and length is not None else 0
        features = arrangement.features(dim) + (places if positions == "one_hot" else 0)
        self.arrangement = arrangement
        self.projection = None if width is None else Dense(features, width, std=std, key=of_projection)
        self.width = features if width is None else width
        has_table = positions == "learned"
        scale = self.width**-0.5 if std is None else std
        self.table = scale * jax.random.normal(of_table, (places, self.width)) if has_table else None
        self.positions = positions
        self.length = length

    def __call__(self, prompt: Any) -> tuple[Float[Array, "token width"], Layout]:
        """The embedded tokens and their layout."""
        layout = self.arrangement.layout(prompt.positions)
        arrangement, projection = self.arrangement, self.projection
        large = isinstance(arrangement, Tokens) and arrangement.vocabulary >= LOOKED_UP and self.positions != "one_hot"
        if isinstance(arrangement, Tokens) and projection is not None and large:
            tokens, projection = arrangement.looked_up(prompt, projection), None
        else:
            tokens = arrangement.tokens(prompt)
        if self.positions in ("learned", "one_hot") and self.length is not None and prompt.length > self.length:
            requirement, hint = (
                f"at most {self.length} examples before the query",
                "build the model with a larger length",
            )
            if isinstance(arrangement, Tokens):
                requirement, hint = f"at most {self.length + 1} tokens, the model's positions", "cut it to ids[-n:]"
            raise expected("prompt", requirement, prompt.length + isinstance(arrangement, Tokens), hint)
        if self.positions == "one_hot" and self.length is not None:
            codes = np.eye(self.arrangement.token_count(self.length))[layout.place]
            tokens = jnp.concatenate([tokens, jnp.asarray(codes, tokens.dtype)], axis=1)
        if projection is not None:
            tokens = projection(tokens)
        if isinstance(arrangement, Tokens) and arrangement.scale != 1:
            tokens = tokens * arrangement.scale
        if self.table is not None:
            tokens = tokens + wide(self.table[layout.place])
        return tokens, layout

    @property
    def places(self) -> int | None:
        """Largest number of tokens of a prompt; None: any number."""
        coded = self.positions in ("learned", "one_hot") and self.length is not None
        return self.arrangement.token_count(self.length) if coded and self.length is not None else None

    def row(self, token: Int[Array, ""], place: Int[Array, ""]) -> Float[Array, "1 width"]:
        """One embedded token id of ``Tokens``, at a place; without one-hot positions."""
        arrangement, projection = self.arrangement, self.projection
        assert isinstance(arrangement, Tokens)
        assert projection is not None
        x = wide(projection.weight[token][None])
        x = x if projection.bias is None else x + projection.bias[None]
        x = x if arrangement.scale == 1 else x * arrangement.scale
        return x if self.table is None else x + wide(self.table[place][None])
