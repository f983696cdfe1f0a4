"""Sequences whose next token depends on several tokens before it; the exact least loss falls with the context.

The least loss with l tokens seen is the entropy of a token given the l before it. It falls until l is the order of the
chain, and is the entropy rate from there on.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.domains import POSITIVE, Domain
from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import TokenPrompt
from icllab.tasks.sequences import AbstractSequences, draw, require_probabilities, rows_of, stationary

MOST_CONTEXTS = 2048  # whose stationary distribution is solved for


class HigherOrderChain(AbstractSequences):
    r"""A stationary Markov chain of order k.

    .. math:: P(x_{i+1} = b \mid x_{i-k+1}, \dots, x_i) = T_{cb}, \qquad
              c = \sum_{j=1}^{k} x_{i-k+j} V^{k-j}

    Sequences begin with k tokens of the stationary distribution.

    Attributes:
        transition: T, a row for every context of k tokens, which sums to one.
        start: The stationary distribution of contexts.
        order: k (static).
        tokens: Number of tokens of a sequence, more than k (static).

    Raises:
        InputError: T has another shape, rows that are no probabilities, or more than one stationary distribution.
    """

    transition: Float[Array, "context state"]
    start: Float[Array, " context"]
    order: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)

    def __init__(self, transition: Float[Array | np.ndarray, "context state"], *, order: int, tokens: int) -> None:
        """Build the chain from the transitions of every context."""
        require_integer("order", order)
        require_integer("tokens", tokens, least=order + 1)
        self.order, self.tokens = order, tokens
        matrix = np.asarray(transition, np.float64)
        if matrix.ndim != 2 or matrix.shape[1] < 2 or matrix.shape[0] != matrix.shape[1] ** order:
            raise expected("transition", f"a row for each of V^{order} contexts of V >= 2 tokens", list(matrix.shape))
        if len(matrix) > MOST_CONTEXTS:
            raise expected("transition", f"at most {MOST_CONTEXTS} contexts", len(matrix))
        require_probabilities(matrix)
        self.transition = jnp.asarray(transition, float)
        self.start = jnp.asarray(_stationary(rows_of(matrix)), self.transition.dtype)

    @classmethod
    def init(
        cls,
        *,
        vocabulary: int,
        order: int,
        tokens: int,
        share: float = 0.5,
        concentration: float = 0.3,
        key: PRNGKeyArray,
    ) -> "HigherOrderChain":
        r"""A chain of mixed orders: each further token of the context changes a share of the distribution.

        .. math:: T^{(j)}_{c\,\cdot} = (1-\mu)\,T^{(j-1)}_{c'\cdot} + \mu\,D_c, \qquad T^{(0)} = D

        with :math:`c'` the context c without its first token, and every D of the symmetric Dirichlet distribution of a
        ``concentration``; small ones make the chain nearly deterministic. ``share`` is :math:`\mu`, above 0 and at
        most 1.
        """
        require_integer("vocabulary", vocabulary, least=2)
        require_integer("order", order)
        Domain(above=0, most=1, text="a number above 0 and at most 1").require("share", share)
        POSITIVE.require("concentration", concentration)
        require_key(key)
        counts = [vocabulary**j for j in range(order + 1)]
        if counts[-1] > MOST_CONTEXTS:
            raise expected("order", f"at most {MOST_CONTEXTS} contexts, not {vocabulary}^{order}", order)
        law = jnp.full(vocabulary, float(concentration))
        # One draw for all orders.
        rows = np.asarray(jax.random.dirichlet(key, law, (sum(counts),)), np.float64)
        table, *longer = np.split(rows, np.cumsum(counts)[:-1])
        for innovation in longer:
            # The first token of a context is the leading digit of its number.
            table = (1 - share) * np.tile(table, (vocabulary, 1)) + share * innovation
        return cls(table / table.sum(axis=1, keepdims=True), order=order, tokens=tokens)

    @property
    def vocabulary(self) -> int:
        """V, the size of the vocabulary."""
        return self.transition.shape[1]

    def conditionals(self) -> list[Float[np.ndarray, "context state"]]:
        """The distribution of a token given the j tokens before it, for j = 0, ..., k, in float64. Not traceable.

        That of fewer than k is the mean of T over what came before, under the stationary distribution.
        """
        joint = rows_of(self.start[None])[0][:, None] * rows_of(self.transition)
        size, tables = self.vocabulary, []
        for j in range(self.order, -1, -1):
            marginal = joint.sum(axis=1, keepdims=True)
            # A context that never comes may be followed by anything.
            tables.append(np.divide(joint, marginal, out=np.full_like(joint, 1 / size), where=marginal > 0))
            joint = joint.reshape(size, -1, size).sum(axis=0) if j else joint
        return tables[::-1]

    def least_losses(self) -> Float[np.ndarray, " seen"]:
        r"""Entropy in nats of a token given the j tokens before it, for j = 0, ..., k; the last is the entropy rate.

        .. math:: h_j = -\sum_{c,b} P(c)\,P(b \mid c) \ln P(b \mid c), \qquad c \text{ of } j \text{ tokens}

        Derived: docs/learning-machine.md, A source whose least loss is known.
        """
        law, entropies = rows_of(self.start[None])[0], []
        for table in reversed(self.conditionals()):
            logarithm = np.log(np.where(table > 0, table, 1.0))
            entropies.append(-law @ np.sum(table * logarithm, axis=1))
            law = law.reshape(self.vocabulary, -1).sum(axis=0) if len(law) > 1 else law
        return np.array(entropies[::-1])

    def entropies(self) -> Float[np.ndarray, " position"]:
        """The least expected loss at every position, in nats: :math:`h_{min(j, k)}` after j tokens."""
        return self.least_losses()[np.minimum(np.arange(1, self.tokens), self.order)]

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One sequence, by the inverse of the distribution functions of the rows."""
        require_key(key)
        below, size = jnp.cumsum(self.transition, axis=1), self.vocabulary
        u = jax.random.uniform(key, (self.tokens - self.order + 1,), below.dtype)

        def step(context: Array, height: Array) -> tuple[Array, Array]:
            following = draw(below[context], height)
            return (context * size + following) % size**self.order, following

        first = draw(jnp.cumsum(self.start), u[0])
        tail = jax.lax.scan(step, first, u[1:])[1]
        powers = size ** jnp.arange(self.order - 1, -1, -1)
        return TokenPrompt(jnp.concatenate([first // powers % size, tail]))


def _stationary(rows: Float[np.ndarray, "context state"]) -> Float[np.ndarray, " context"]:
    contexts, size = rows.shape
    matrix, context = np.zeros((contexts, contexts)), np.arange(contexts)[:, None]
    matrix[context, (context * size + np.arange(size)) % contexts] = rows
    return stationary(matrix)
