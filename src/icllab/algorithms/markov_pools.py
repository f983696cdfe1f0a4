"""Predictors for sequences with one chain each: Bayes' rule over the pool's chains, or counts in context.

Four strategies are a choice of two: *memorised* (M), the posterior over the K chains of a pool, or *in context* (G for
generalising), counts with a Dirichlet prior; from tokens alone (*unigram*, Uni) or from pairs of them (*bigram*, Bi).
[Park24] call them retrieval and inference.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from icllab.algorithms.ngrams import NGram
from icllab.core.domains import POSITIVE
from icllab.core.errors import expected, require_integer
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.core.vocabularies import PADDING, in_vocabulary
from icllab.tasks.markov_pool import ORDER, MarkovPool
from icllab.tasks.regression import number
from icllab.tasks.sequences import require_probabilities, stationary_start

_LEAST = 1e-30  # a probability of which float32 still has the logarithm


class PoolPosterior(AbstractPredictor):
    r"""The next token under the posterior over a pool of K equally likely chains.

    .. math:: P(b \mid x_{\le i}) = \sum_k p_{ik} T^{(k)}_{x_i b}, \qquad
              p_{ik} \propto \pi^{(k)}_{x_0} \prod_{m=1}^{i} T^{(k)}_{x_{m-1}x_m}

    Likelihoods are summed as logarithms. It is Bayes-optimal for sequences of the pool. Chains of order 0 have one row
    each. Probabilities below :math:`10^{-30}` count as that.

    Attributes:
        pool: T, [K, S, S] or, for order 0, [K, 1, S]; a leaf.

    Raises:
        InputError: The pool has another shape, or rows that are no probabilities.

    Source: [Park24].
    Derived: docs/markov-pools.md, The predictors.
    """

    differentiable = False

    pool: Float[Array, "chain context state"]

    def __check_init__(self) -> None:
        pool = self.pool
        if not isinstance(pool, jax.Array | np.ndarray) or isinstance(pool, Tracer):
            return
        if pool.ndim != 3 or 0 in pool.shape or pool.shape[1] not in (1, pool.shape[2]):
            raise expected("pool", "transitions [K, S, S], or [K, 1, S] for order 0", pool.shape)
        require_probabilities(np.asarray(pool, float).reshape(-1, pool.shape[2]), "pool")

    @classmethod
    def unigrams(cls, task: MarkovPool) -> "PoolPosterior":
        r"""The strategy that uses the stationary distributions alone, as if tokens were independent.

        .. math:: T^{(k)}_{ab} \;\to\; \pi^{(k)}_b
        """
        pool = _pool_of(task)
        starts = jax.vmap(stationary_start)(pool)[:, None] if task.order else pool
        starts = jnp.maximum(starts, 0)
        return cls(starts / jnp.sum(starts, axis=2, keepdims=True))

    @classmethod
    def bigrams(cls, task: MarkovPool) -> "PoolPosterior":
        """The strategy that uses the chains: Bayes-optimal on the pool's sequences."""
        return cls(_pool_of(task))

    def __call__(self, prompt: TokenPrompt) -> Float[Array, "position state"]:
        """Logits at every position, which are logarithms of probabilities."""
        tokens, (_, contexts, size) = prompt.tokens[:-1], self.pool.shape
        valid = in_vocabulary("tokens", tokens, size, PADDING)
        present = jnp.where(valid, tokens, 0)
        starts = jax.vmap(stationary_start)(self.pool) if contexts > 1 else self.pool[:, 0]
        log_pool = jnp.log(jnp.maximum(self.pool, _LEAST))
        rows = present if contexts > 1 else jnp.zeros_like(present)
        first = jnp.log(jnp.maximum(starts, _LEAST))[:, present[0]][:, None]
        steps = jnp.concatenate([first, log_pool[:, rows[:-1], present[1:]]], axis=1)
        weights = jax.nn.log_softmax(jnp.cumsum(steps, axis=1), axis=0)
        answer = jax.scipy.special.logsumexp(weights[:, :, None] + log_pool[:, rows], axis=0)
        return jnp.where(_all_so_far(valid), answer, jnp.nan)


class DirichletCounts(AbstractPredictor):
    r"""Counts in context with a symmetric Dirichlet prior, of tokens (order 0) or of pairs (order 1).

    .. math:: P(b \mid x_{\le i}) = \frac{n_b + \alpha}{i + 1 + S\alpha}, \qquad
              P(b \mid x_{\le i}) = \frac{n_{x_ib} + \alpha}{n_{x_i\cdot} + S\alpha}

    where :math:`n_b` is how often b has come, :math:`n_{ab}` how often it has followed a, and :math:`n_{a\cdot}` the
    sum of these. For fresh chains with rows of that Dirichlet distribution it is the posterior mean; of order 1, the
    one that does not use what the first token says of the stationary distribution.

    Attributes:
        concentration: :math:`\alpha > 0`; a leaf.
        vocabulary: S, at least 2 (static).
        order: 0 or 1 (static).

    Source: [Edelman24].
    Derived: docs/markov-pools.md, The predictors.
    """

    differentiable = False

    concentration: Float[Array, ""] = eqx.field(converter=partial(number, "concentration"))
    vocabulary: int = eqx.field(static=True)
    order: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        POSITIVE.require_leaf("concentration", self.concentration)
        require_integer("vocabulary", self.vocabulary, least=2)
        ORDER.require("order", self.order)

    def __call__(self, prompt: TokenPrompt) -> Float[Array, "position state"]:
        """Logits at every position, which are logarithms of probabilities."""
        tokens, states = prompt.tokens[:-1], jnp.arange(self.vocabulary)[None]
        valid = in_vocabulary("tokens", tokens, self.vocabulary, PADDING)
        prior = self.concentration.astype(float)
        is_token = (tokens[:, None] == states).astype(prior.dtype)
        if self.order:
            pairs = is_token[:-1, :, None] * is_token[1:, None]
            counts = jnp.concatenate([jnp.zeros_like(pairs[:1]), jnp.cumsum(pairs, axis=0)])
            counts = jnp.sum(counts * is_token[:, :, None], axis=1)
        else:
            counts = jnp.cumsum(is_token, axis=0)
        total = jnp.sum(counts, axis=1, keepdims=True) + self.vocabulary * prior
        return jnp.where(_all_so_far(valid), jnp.log((counts + prior) / total), jnp.nan)


def markov_strategies(task: MarkovPool, *, unigram_concentration: float | None = None) -> dict[str, AbstractPredictor]:
    """Dictionary of the uniform predictor and the strategies for a task, with the task's concentration.

    ``uniform``, ``Uni-G`` and ``Bi-G``, and with a pool also ``Uni-M`` and ``Bi-M``. For order 0 there are no bigrams:
    the two of them are left out. ``unigram_concentration``: the prior of ``Uni-G``, since stationary distributions of
    chains are no Dirichlet vectors; None: the task's.
    """
    size, prior = task.vocabulary, task.concentration
    laws: dict[str, AbstractPredictor] = {"uniform": NGram.from_laws([np.full((1, size), 1 / size)])}
    if task.pool is not None:
        laws["Uni-M"] = PoolPosterior.unigrams(task)
    laws["Uni-G"] = DirichletCounts(prior if unigram_concentration is None else unigram_concentration, size, 0)
    if task.order:
        if task.pool is not None:
            laws["Bi-M"] = PoolPosterior.bigrams(task)
        laws["Bi-G"] = DirichletCounts(prior, size, 1)
    return laws


def _pool_of(task: MarkovPool) -> Array:
    if task.pool is None:
        raise expected("task.pool", "a pool of chains: MarkovPool.init draws one", None)
    return jnp.asarray(task.pool, float)


def _all_so_far(valid: Array) -> Array:
    """True up to the first token outside the vocabulary, as one column."""
    return jnp.cumprod(valid.astype(int))[:, None] == 1
