"""Sequences of tokens that are predicted one by one, with the least possible loss at each position.

The prediction at position i, from 0, is of token i + 1 given the tokens up to i. The least expected loss there is the
conditional entropy of that token, in nats.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.domains import POSITIVE
from icllab.core.errors import expected, require_flag, require_integer, require_key
from icllab.core.prompt import TokenPrompt
from icllab.core.vocabularies import PADDING, in_vocabulary
from icllab.tasks.classification import AbstractClassification


class AbstractTokens(AbstractClassification):
    """Tokens predicted one by one; the loss is the cross-entropy of the next token, in nats, at every position."""

    @property
    def length(self) -> int:
        """Number of positions before the last."""
        return self.tokens - 2  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def class_count(self) -> int:
        """Number of tokens of the vocabulary."""
        return self.vocabulary  # pyright: ignore[reportAttributeAccessIssue]

    def targets(self, prompt: TokenPrompt) -> Int[Array, " position"]:
        """The token after each position."""
        return prompt.tokens[1:]

    def require_prompts(self, prompts: TokenPrompt) -> None:
        """Raise if a token is not in the vocabulary; masked tokens count as 0."""
        in_vocabulary("tokens", prompts.tokens, self.class_count, PADDING)


class AbstractSequences(AbstractTokens):
    """A distribution of token sequences whose least loss is known."""

    @abc.abstractmethod
    def entropies(self) -> Float[np.ndarray, " position"]:
        """The least expected loss at every position, in nats, if the distribution is known. Not traceable."""


class InContextCopying(AbstractSequences):
    r"""Items with their labels, then one of the items again: after B, 2, A, 1, B comes 2.

    .. math:: x_1, l_1, \dots, x_N, l_N, x_q, l_q

    The N items of a context are different, drawn uniformly; labels are drawn uniformly and independently, anew for
    every sequence; the query is one of the items. Tokens 0 to ``items - 1`` are items, those from ``items`` on labels.
    The last position is asked for the label of the query.

    Attributes:
        items: Number of items, at least N (static).
        labels: Number of labels, at least 2 (static).
        pairs: N (static).
    """

    items: int = eqx.field(static=True)
    labels: int = eqx.field(static=True)
    pairs: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        require_integer("pairs", self.pairs)
        require_integer("labels", self.labels, least=2)
        require_integer("items", self.items)
        if self.items < self.pairs:
            raise expected("items", f"at least {self.pairs}, one for each pair", self.items)

    @property
    def vocabulary(self) -> int:
        """Number of items and labels."""
        return self.items + self.labels

    @property
    def tokens(self) -> int:
        """Number of tokens, 2N + 2."""
        return 2 * self.pairs + 2

    def entropies(self) -> Float[np.ndarray, " position"]:
        r"""The least expected loss at every position, in nats.

        .. math:: \ln L, \; \ln(M - 1), \; \ln L, \; \dots, \; \ln(M - N + 1), \; \ln L, \; \ln N, \; 0

        for M items and L labels: labels cannot be foreseen but the last, which the context knows.

        Derived: docs/item-label.md, Sequences whose least loss is known.
        """
        entropies = np.full(self.tokens - 1, np.log(self.labels))
        entropies[1::2] = np.log([*(self.items - i for i in range(1, self.pairs)), self.pairs])
        entropies[-1] = 0.0
        return entropies

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One sequence."""
        require_key(key)
        of_items, of_labels, of_query = jax.random.split(key, 3)
        items = jax.random.permutation(of_items, self.items)[: self.pairs]
        labels = self.items + jax.random.randint(of_labels, (self.pairs,), 0, self.labels)
        query = jax.random.randint(of_query, (), 0, self.pairs)
        pairs = jnp.stack([items, labels], axis=1)
        return TokenPrompt(jnp.concatenate([pairs, pairs[query][None]]).reshape(-1))


class RepeatedTokens(AbstractSequences):
    """A block of tokens drawn uniformly and independently, and the same block again, ``repeats`` times in all.

    Attributes:
        vocabulary: Number of tokens, at least 2 (static).
        period: Tokens of a block (static).
        repeats: How often the block comes, at least 2 (static).
        distinct: Whether the tokens of a block are all different, drawn one by one from the others (static).

    Source: as a test of induction [Olsson22].
    """

    vocabulary: int = eqx.field(static=True)
    period: int = eqx.field(static=True)
    repeats: int = eqx.field(static=True, default=2)
    distinct: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        for name, least in (("vocabulary", 2), ("period", 1), ("repeats", 2)):
            require_integer(name, getattr(self, name), least=least)
        require_flag("distinct", self.distinct)
        if self.distinct and self.period > self.vocabulary:
            raise expected("period", f"at most {self.vocabulary}, the different tokens", self.period)

    @property
    def tokens(self) -> int:
        """Number of tokens in all blocks."""
        return self.period * self.repeats

    def entropies(self) -> Float[np.ndarray, " position"]:
        r"""The least expected loss at every position, in nats: :math:`\ln V` in the first block, then 0.

        If the tokens are distinct, the loss after i of them is :math:`\ln(V - i)`. The period is known; without knowing
        it the first tokens of the second block cannot be foreseen either.

        Derived: docs/item-label.md, Sequences whose least loss is known.
        """
        position = np.arange(self.tokens - 1)
        left = self.vocabulary - (position + 1) * self.distinct
        return np.where(position < self.period - 1, np.log(np.maximum(left, 1)), 0.0)

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One sequence."""
        require_key(key)
        if self.distinct:
            return TokenPrompt(jnp.tile(jax.random.permutation(key, self.vocabulary)[: self.period], self.repeats))
        return TokenPrompt(jnp.tile(jax.random.randint(key, (self.period,), 0, self.vocabulary), self.repeats))


def require_probabilities(rows: Float[np.ndarray, "context state"], name: str = "transition") -> None:
    """Raise unless transitions are non-negative and sum to one for each context."""
    off = np.abs(rows.sum(axis=1) - 1).max()
    if rows.min() < 0 or not off < 1e-5:
        raise expected(name, "rows of probabilities that sum to 1", f"sums off by {off:.2g}")


def rows_of(transition: Array | np.ndarray) -> Float[np.ndarray, "context state"]:
    """Transitions in float64, with rows normalised to sum to one in that precision."""
    rows = np.asarray(transition, np.float64)
    return rows / rows.sum(axis=1, keepdims=True)


def stationary(matrix: Float[np.ndarray, "state state"]) -> Float[np.ndarray, " state"]:
    r"""The distribution :math:`\pi` with :math:`\pi T = \pi`; raise if there is more than one."""
    if np.sum(np.abs(np.linalg.eigvals(matrix) - 1) < 1e-6) > 1:
        raise expected("transition", "a chain with one stationary distribution", "several", "join its parts")
    size = len(matrix)
    # The equations have rank V - 1; with the sum of pi they determine it.
    system = np.concatenate([matrix.T - np.eye(size), np.ones((1, size))])
    solution = np.maximum(np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0], 0)
    return solution / solution.sum()


def stationary_start(matrix: Float[Array, "state state"]) -> Float[Array, " state"]:
    """The stationary distribution as an array, from linear equations that can be traced."""
    size = matrix.shape[0]
    system = jnp.eye(size, dtype=matrix.dtype) - matrix.T + 1
    return jnp.linalg.solve(system, jnp.ones(size, matrix.dtype))


def draw(below: Float[Array, " state"], height: Float[Array, ""]) -> Int[Array, ""]:
    """Draw by inverting a distribution function, from a number uniform on [0, 1)."""
    return jnp.minimum(jnp.sum(below <= height * below[-1]), below.shape[0] - 1)


class MarkovChain(AbstractSequences):
    r"""A stationary Markov chain.

    .. math:: x_0 \sim \pi, \qquad P(x_{i+1} = b \mid x_i = a) = T_{ab}, \qquad \pi T = \pi

    What is computed of T on the host, as the entropy rate, is as exact as T is given: a matrix of NumPy is kept in
    float64. Sequences are drawn with it rounded to the precision of JAX.

    Attributes:
        transition: T, whose rows sum to one.
        tokens: Number of tokens of a sequence (static).

    Raises:
        InputError: T is not a square matrix of probabilities, or has more than one stationary distribution.
    """

    transition: Float[Array | np.ndarray, "state state"]
    tokens: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        require_integer("tokens", self.tokens, least=2)
        transition = self.transition
        if isinstance(transition, Tracer) or not isinstance(transition, jax.Array | np.ndarray):
            return
        matrix = np.asarray(transition, float)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
            raise expected("transition", "a square matrix of at least 2 states", list(matrix.shape))
        require_probabilities(matrix)
        stationary(matrix)

    @classmethod
    def init(cls, *, vocabulary: int, tokens: int, concentration: float = 1.0, key: PRNGKeyArray) -> "MarkovChain":
        """Draw rows of T from a symmetric Dirichlet distribution; small concentrations make T nearly deterministic."""
        require_integer("vocabulary", vocabulary, least=2)
        POSITIVE.require("concentration", concentration)
        require_key(key)
        rows = jax.random.dirichlet(key, jnp.full(vocabulary, float(concentration)), (vocabulary,))
        return cls(rows_of(rows), tokens)

    @property
    def vocabulary(self) -> int:
        """Number of states of the chain."""
        return self.transition.shape[0]

    def stationary(self) -> Float[np.ndarray, " state"]:
        r"""The distribution :math:`\pi` with :math:`\pi T = \pi`, in float64. Not traceable."""
        return stationary(rows_of(self.transition))

    def entropy_rate(self) -> float:
        r"""Entropy rate in nats per token, :math:`-\sum_a \pi_a \sum_b T_{ab} \ln T_{ab}`.

        Derived: docs/item-label.md, Sequences whose least loss is known.
        """
        matrix = rows_of(self.transition)
        logarithm = np.log(np.where(matrix > 0, matrix, 1.0))
        return float(-self.stationary() @ np.sum(matrix * logarithm, axis=1))

    def entropies(self) -> Float[np.ndarray, " position"]:
        """The entropy rate at every position, because the next token depends on the present token alone."""
        return np.full(self.tokens - 1, self.entropy_rate())

    @eqx.filter_jit
    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One sequence, by the inverse of the distribution functions of the rows."""
        require_key(key)
        below = jnp.cumsum(jnp.asarray(self.transition, float), axis=1)
        u = jax.random.uniform(key, (self.tokens,), below.dtype)

        def step(state: Array, height: Array) -> tuple[Array, Array]:
            following = draw(below[state], height)
            return following, following

        first = draw(jnp.cumsum(stationary_start(jnp.asarray(self.transition, float))), u[0])
        tail = jax.lax.scan(step, first, u[1:])[1]
        return TokenPrompt(jnp.append(first, tail))
