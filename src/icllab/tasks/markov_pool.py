"""Sequences of Markov chains: each has a chain from a Dirichlet distribution, or from a fixed pool.

Chains of order 0 are *balls and urns*: tokens are independent given the urn. A pool of K chains can be memorised; fresh
ones can only be learned in context.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.domains import POSITIVE, Domain
from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import TokenPrompt
from icllab.tasks.regression import number
from icllab.tasks.sequences import AbstractTokens, draw, require_probabilities, stationary_start

ORDER = Domain(int, least=0, most=1)


class MarkovPool(AbstractTokens):
    r"""A stationary Markov chain of order k, 0 or 1, drawn anew for every sequence.

    .. math:: T_{a\,\cdot} \sim \mathrm{Dirichlet}(\alpha, \dots, \alpha), \qquad x_0 \sim \pi_T, \qquad
              P(x_{i+1} = b \mid x_i = a) = T_{ab}

    A chain of order 0 has one row, the distribution of every token. With a pool, each sequence is of one of its K
    chains, all equally likely.

    Attributes:
        vocabulary: S, the number of states, at least 2 (static).
        tokens: Number of tokens of a sequence, at least 2 (static).
        order: k (static).
        concentration: :math:`\alpha > 0`, a leaf.
        pool: Transitions of the K chains, [K, S, S] for order 1 and [K, 1, S] for order 0; None: fresh chains.

    Raises:
        InputError: A number is out of its range, or the pool has another shape or rows that are no probabilities.

    Source: fresh chains [Edelman24]; pools [Park24].
    """

    vocabulary: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    order: int = eqx.field(static=True, default=1)
    concentration: Float[Array, ""] = eqx.field(converter=partial(number, "concentration"), default=1.0)
    pool: Float[Array, "chain context state"] | None = None

    def __check_init__(self) -> None:
        for name in ("vocabulary", "tokens"):
            require_integer(name, getattr(self, name), least=2)
        ORDER.require("order", self.order)
        POSITIVE.require_leaf("concentration", self.concentration)
        if isinstance(self.pool, Tracer) or not isinstance(self.pool, jax.Array | np.ndarray):
            return
        shape = (self.vocabulary**self.order, self.vocabulary)
        if self.pool.ndim != 3 or not len(self.pool) or self.pool.shape[1:] != shape:
            raise expected("pool", f"transitions [K, {shape[0]}, {shape[1]}] of at least one chain", self.pool.shape)
        require_probabilities(np.asarray(self.pool, float).reshape(-1, self.vocabulary), "pool")

    @classmethod
    def init(
        cls,
        *,
        chains: int,
        vocabulary: int,
        tokens: int,
        order: int = 1,
        concentration: float = 1.0,
        key: PRNGKeyArray,
    ) -> "MarkovPool":
        """A pool of K = ``chains`` chains, drawn from the distribution of fresh chains."""
        require_integer("chains", chains)
        require_key(key)
        fresh = cls(vocabulary, tokens, order, concentration)
        return eqx.tree_at(
            lambda task: task.pool,
            fresh,
            jax.vmap(lambda k: fresh.chain(key=k))(jax.random.split(key, chains)),
            is_leaf=lambda leaf: leaf is None,
        )

    def fresh(self) -> "MarkovPool":
        """The same task with a new chain in every sequence."""
        return MarkovPool(self.vocabulary, self.tokens, self.order, self.concentration)

    def chain(self, *, key: PRNGKeyArray) -> Float[Array, "context state"]:
        """The transitions of one sequence's chain."""
        require_key(key)
        if self.pool is not None:
            return self.pool[jax.random.randint(key, (), 0, self.pool.shape[0])]
        law = jnp.broadcast_to(self.concentration, (self.vocabulary,))
        return jax.random.dirichlet(key, law, (self.vocabulary**self.order,))

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """One sequence, by the inverse of the distribution functions of its chain's rows."""
        require_key(key)
        of_chain, of_tokens = jax.random.split(key)
        rows = self.chain(key=of_chain)
        below = jnp.broadcast_to(jnp.cumsum(rows, axis=1), (self.vocabulary, self.vocabulary))
        u = jax.random.uniform(of_tokens, (self.tokens,), below.dtype)

        def step(state: Array, height: Array) -> tuple[Array, Array]:
            following = draw(below[state], height)
            return following, following

        start = stationary_start(rows) if self.order else rows[0]
        first = draw(jnp.cumsum(start), u[0])
        return TokenPrompt(jnp.append(first, jax.lax.scan(step, first, u[1:])[1]))
