r"""Expected losses, in nats, of predictors that count tokens or pairs of tokens, on Markov chains and on urns.

A chain on S states has transitions :math:`T_{ab}` and the stationary distribution :math:`\pi`, from which
:math:`x_0` is drawn. The prediction at position :math:`i = 0, \dots, n - 2` is of token :math:`i + 1` of n. Counts are
those of the tokens up to :math:`x_i`. An urn is a chain whose rows are equal.

Logarithms of ratios are differences, so that each loss is a sum over the distribution of single counts, exact for any
number of states and in time :math:`O(n^2)`. Without any prediction the loss is :math:`\ln S`.
"""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betaln, gammaln, logsumexp

from icllab.core.domains import NON_NEGATIVE, POSITIVE
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Number, plain, read

Chains = Annotated[npt.ArrayLike, "transitions [..., S, S]"]


class Levels(NamedTuple):
    """Losses of uniform, unigram and bigram predictors, the mean over positions, with standard errors over chains."""

    uniform: float
    unigram: float
    bigram: float
    unigram_standard_error: float
    bigram_standard_error: float

    __repr__ = fields_repr
    _repr_html_ = fields_html


def entropy_rate(transition: Chains) -> Number:
    r"""The smallest loss per token if the chain is known.

    .. math:: h = -\sum_a\pi_a\sum_bT_{ab}\ln T_{ab}

    Args:
        transition: :math:`T`: Rows of probabilities [..., S, S] of chains with one stationary distribution each.

    Derived: docs/markov-pools.md, The levels.
    """
    rows, start = _chains(transition)
    return plain(np.sum(start * np.sum(-rows * _log(rows), axis=-1), axis=-1))


def stationary_entropy(transition: Chains) -> Number:
    r"""Loss of the best predictor that does not see the present token, which unigram counts reach on long sequences.

    .. math:: H(\pi) = -\sum_b\pi_b\ln\pi_b

    Args:
        transition: :math:`T`: Rows of probabilities [..., S, S] of chains with one stationary distribution each.

    Derived: docs/markov-pools.md, The levels.
    """
    start = _chains(transition)[1]
    return plain(np.sum(-start * _log(start), axis=-1))


def unigram_losses(transition: Chains, *, tokens: int, concentration: float = 1.0) -> Array:
    r"""Losses of token counts with a Dirichlet prior, at each position of sequences of a chain.

    .. math:: L_i = \ln(i + 1 + S\alpha) - \sum_{a,b}T_{ab}\,\mathbb E\bigl[1_{x_i=a}\ln(n_b+\alpha)\bigr]

    Args:
        transition: :math:`T`: Rows of probabilities [..., S, S] of chains with one stationary distribution each.
        tokens: :math:`n`, number of tokens of a sequence; an integer of at least 2.
        concentration: :math:`\alpha > 0`, of the predictor's prior.

    Returns:
        Losses [..., position].

    Derived: docs/markov-pools.md, Counts on a chain.
    """
    rows, start = _chains(transition)
    alpha, size = _prior(tokens, concentration), rows.shape[-1]
    logs = np.log(np.arange(tokens + 1) + alpha)
    losses = np.broadcast_to(np.log(np.arange(1, tokens) + size * alpha), (*rows.shape[:-2], tokens - 1)).copy()
    for b in range(size):
        marks = np.zeros((size, size))
        marks[:, b] = 1
        for i, law in enumerate(_counts(rows, start, marks, tokens, first=np.eye(size)[b])):
            losses[..., i] -= np.sum(law @ logs[: i + 2] * rows[..., b], axis=-1)
    return losses


def bigram_losses(transition: Chains, *, tokens: int, concentration: float = 1.0) -> Array:
    r"""Losses of pair counts with a Dirichlet prior, at each position of sequences of a chain.

    .. math:: L_i = \sum_a\mathbb E\Bigl[1_{x_i=a}\Bigl(\ln(n_{a\cdot}+S\alpha)
              - \sum_bT_{ab}\ln(n_{ab}+\alpha)\Bigr)\Bigr]

    Args:
        transition: :math:`T`: Rows of probabilities [..., S, S] of chains with one stationary distribution each.
        tokens: :math:`n`, number of tokens of a sequence; an integer of at least 2.
        concentration: :math:`\alpha > 0`, of the predictor's prior.

    Returns:
        Losses [..., position].

    Derived: docs/markov-pools.md, Counts on a chain.
    """
    rows, start = _chains(transition)
    alpha, size = _prior(tokens, concentration), rows.shape[-1]
    logs, totals = (np.log(np.arange(tokens + 1) + prior) for prior in (alpha, size * alpha))
    losses = np.zeros((*rows.shape[:-2], tokens - 1))
    for a in range(size):
        marks = np.zeros((size, size))
        marks[a] = 1
        for i, law in enumerate(_counts(rows, start, marks, tokens)):
            losses[..., i] += law[..., a, :] @ totals[: i + 2]
        for b in range(size):
            marks = np.zeros((size, size))
            marks[a, b] = 1
            for i, law in enumerate(_counts(rows, start, marks, tokens)):
                losses[..., i] -= rows[..., a, b] * (law[..., a, :] @ logs[: i + 2])
    return losses


def fresh_levels(
    *,
    states: int,
    concentration: float,
    tokens: int,
    unigram_concentration: float,
    draws: int = 1000,
    seed: int = 0,
) -> Levels:
    r"""Mean losses on fresh chains with Dirichlet rows: exact for each chain, Monte Carlo over chains.

    Args:
        states: :math:`S`, an integer of at least 2.
        concentration: :math:`\alpha > 0` of the rows, and of the prior of bigrams.
        tokens: :math:`n`, number of tokens of a sequence; an integer of at least 2.
        unigram_concentration: Concentration > 0 of the prior of unigrams.
        draws: Number of chains, an integer of at least 2.
        seed: Seed of NumPy's generator, an integer of at least 0.

    Derived: docs/markov-pools.md, Counts on a chain.
    """
    for name, value, least in (("states", states, 2), ("draws", draws, 2), ("seed", seed, 0)):
        require_integer(name, value, least=least)
    alpha = _prior(tokens, concentration)
    rows = np.random.default_rng(seed).dirichlet(np.full(states, alpha), (draws, states))
    unigram = unigram_losses(rows, tokens=tokens, concentration=unigram_concentration).mean(axis=-1)
    bigram = bigram_losses(rows, tokens=tokens, concentration=alpha).mean(axis=-1)
    means, errors = zip(*((x.mean(), x.std(ddof=1) / np.sqrt(draws)) for x in (unigram, bigram)), strict=True)
    return Levels(float(np.log(states)), *map(float, means), *map(float, errors))


def urn_losses(*, states: int, concentration: float, tokens: int) -> Array:
    r"""Smallest losses on urns from a symmetric Dirichlet distribution, reached by counts with that prior.

    .. math:: L_i = \ln(m + S\alpha) - S\,\mathbb E\Bigl[\frac{k+\alpha}{m+S\alpha}\ln(k+\alpha)\Bigr], \qquad
              k \sim \mathrm{BetaBinomial}(m, \alpha, (S-1)\alpha), \qquad m = i + 1

    In long sequences they tend to the mean entropy of an urn, :math:`\psi(S\alpha+1)-\psi(\alpha+1)`.

    Args:
        states: :math:`S`, an integer of at least 2.
        concentration: :math:`\alpha > 0` of the urns.
        tokens: :math:`n`, number of tokens of a sequence; an integer of at least 2.

    Returns:
        Losses [position].

    Derived: docs/markov-pools.md, Urns.
    """
    require_integer("states", states, least=2)
    alpha = _prior(tokens, concentration)
    losses = np.empty(tokens - 1)
    for m in range(1, tokens):
        k = np.arange(m + 1)
        others = (states - 1) * alpha
        choose = gammaln(m + 1) - gammaln(k + 1) - gammaln(m - k + 1)
        law = np.exp(choose + betaln(k + alpha, m - k + others) - betaln(alpha, others))
        mean = np.sum(law * (k + alpha) / (m + states * alpha) * np.log(k + alpha))
        losses[m - 1] = np.log(m + states * alpha) - states * mean
    return losses


def urn_pool_losses(pool: Chains, *, tokens: int, urns: Chains | None = None) -> Array:
    r"""Losses of the posterior over a pool of K urns, at each position, by a sum over all counts.

    .. math:: L_i = -\frac1U\sum_u\sum_n\frac{m!}{\prod_an_a!}\prod_aq_{ua}^{n_a}\sum_bq_{ub}
              \ln\frac{\sum_kp_{kb}\prod_ap_{ka}^{n_a}}{\sum_k\prod_ap_{ka}^{n_a}}, \qquad \sum_an_a = m = i + 1

    Args:
        pool: :math:`p`: Probabilities [K, S], all positive.
        tokens: :math:`n`, number of tokens of a sequence; an integer of at least 2.
        urns: :math:`q`: Urns that sequences are drawn from [U, S]; None: those of the pool, of which the posterior has
            the least loss.

    Returns:
        Losses [position].

    Derived: docs/markov-pools.md, Pools.
    """
    require_integer("tokens", tokens, least=2)
    p, q = (_rows(name, x) for name, x in (("pool", pool), ("urns", pool if urns is None else urns)))
    if p.ndim != 2 or q.ndim != 2 or q.shape[1] != p.shape[1] or np.any(p <= 0):
        raise expected("pool", "positive probabilities [K, S], and urns [U, S]", (p.shape, q.shape))
    losses = np.empty(tokens - 1)
    for m in range(1, tokens):
        counts = _compositions(m, p.shape[1])
        likelihood = counts @ np.log(p).T
        weights = logsumexp(likelihood, axis=1)
        joint = logsumexp(likelihood[:, :, None] + np.log(p)[None], axis=1)
        choose = gammaln(m + 1) - np.sum(gammaln(counts + 1), axis=1)
        law = np.exp(choose[:, None] + counts @ _log(q).T) * np.all((q > 0)[None] | (counts[:, None] == 0), axis=2)
        losses[m - 1] = -np.sum((law @ q) * (joint - weights[:, None])) / len(q)
    return losses


def pool_excess_bound(*, chains: int, tokens: int) -> float:
    r"""Bound on the excess of the posterior over a pool above the pool's mean entropy rate, averaged over positions.

    .. math:: \frac1{n-1}\sum_i(L_i - \bar h) = \frac{I(k; x_1\dots x_{n-1}\mid x_0)}{n-1} \le \frac{\ln K}{n-1}

    Args:
        chains: :math:`K`, an integer of at least 1.
        tokens: :math:`n`, number of tokens of a sequence; an integer of at least 2.

    Derived: docs/markov-pools.md, Pools.
    """
    require_integer("chains", chains)
    require_integer("tokens", tokens, least=2)
    return float(np.log(chains) / (tokens - 1))


def _counts(rows: Array, start: Array, marks: Array, tokens: int, first: Array | None = None) -> Iterator[Array]:
    """Joint distributions [..., state, count] of x_i and the number of marked steps up to it, for each position."""
    counted = np.zeros(start.shape[-1]) if first is None else first
    law = np.stack([start * (1 - counted), start * counted], axis=-1)
    stay, up = (np.swapaxes(part, -1, -2) for part in (rows * (1 - marks), rows * marks))
    for _ in range(tokens - 1):
        yield law
        step = np.zeros((*law.shape[:-1], law.shape[-1] + 1))
        step[..., :-1] = stay @ law
        step[..., 1:] += up @ law
        law = step


def _compositions(total: int, parts: int) -> Array:
    """All ways to write ``total`` as an ordered sum of ``parts`` counts."""
    if parts == 1:
        return np.array([[float(total)]])
    tails = [_compositions(total - first, parts - 1) for first in range(total + 1)]
    return np.concatenate([np.insert(tail, 0, first, axis=1) for first, tail in enumerate(tails)])


def _log(values: Array) -> Array:
    return np.log(np.where(values > 0, values, 1.0))


def _prior(tokens: int, concentration: float) -> float:
    require_integer("tokens", tokens, least=2)
    return float(read(concentration=(concentration, POSITIVE))[0])


def _rows(name: str, values: npt.ArrayLike) -> Array:
    (rows,) = read(**{name: (values, NON_NEGATIVE)})
    if rows.ndim < 1 or rows.shape[-1] < 2 or not np.allclose(rows.sum(axis=-1), 1, atol=1e-6):
        raise expected(name, "rows of probabilities of at least 2 states that sum to 1", f"shape {rows.shape}")
    return rows / rows.sum(axis=-1, keepdims=True)


def _chains(transition: Chains) -> tuple[Array, Array]:
    """Transitions, and their stationary distributions by linear equations."""
    rows = _rows("transition", transition)
    if rows.ndim < 2 or rows.shape[-1] != rows.shape[-2]:
        raise expected("transition", "square matrices [..., S, S]", f"shape {rows.shape}")
    size = rows.shape[-1]
    system = np.eye(size) - np.swapaxes(rows, -1, -2) + 1
    if np.any(np.linalg.cond(system) > 1e12):
        raise expected("transition", "chains with one stationary distribution each", "a chain with several")
    start = np.maximum(np.linalg.solve(system, np.ones((*rows.shape[:-2], size, 1)))[..., 0], 0)
    return rows, start / start.sum(axis=-1, keepdims=True)
