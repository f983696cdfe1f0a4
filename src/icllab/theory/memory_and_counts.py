r"""Memory of K chains against counts of their transitions: two parts of a minimal network, trained together.

Chain k has transitions that deviate from the mean of all chains by :math:`v_k`, of mean square V; counts in a context
estimate it with errors of mean square :math:`\sigma^2`. The answer is :math:`\beta\hat v_k + We_k`, with a strength
:math:`\beta` of counts and a linear memory of w directions, which can hold the fraction :math:`c = \min(1, w/K)`. Both
parts descend the squared error from zero, at rates :math:`\eta_c` and :math:`\eta_m`; time is in units of
:math:`1/\eta_cV`. The larger part is the memory below :math:`K_1` chains at first, and below :math:`K_2` in the end:

.. math:: K_1 = \frac{\eta_m}{\eta_cV}, \qquad K_2 = \frac w{1-r}, \qquad r = \frac{\sigma^2}{V+\sigma^2}
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from icllab.core.domains import NON_NEGATIVE, POSITIVE, PROPER_FRACTION
from icllab.core.errors import IclError
from icllab.core.views import fields_html, fields_repr
from icllab.theory.markov_pools import entropy_rate, fresh_levels
from icllab.theory.parameters import Number, Numbers, plain, read


class Parts(NamedTuple):
    """Strengths of memory and counts in the answer, means over chains."""

    memory: Number
    counts: Number

    __repr__ = fields_repr
    _repr_html_ = fields_html


def strengths(chains: Numbers, *, time: Numbers, kinetic: Numbers, directions: Numbers, residual: Numbers) -> Parts:
    r"""Strengths :math:`c\mu` of the memory and :math:`\beta` of counts after a time of gradient flow from zero.

    .. math:: \dot\mu = \frac{K_1}{\min(K, w)}(1 - \beta - \mu), \qquad \dot\beta = 1 - c\mu - \frac\beta{1-r}

    Args:
        chains: :math:`K>0`.
        time: :math:`t\ge0`.
        kinetic: :math:`K_1>0`.
        directions: :math:`w>0`.
        residual: :math:`0<r<1`, as of :func:`residual_of_counts`.

    Derived: docs/markov-pools.md, Memory against counts.
    """
    k, t, ratio, w, r = read(
        chains=(chains, POSITIVE),
        time=(time, NON_NEGATIVE),
        kinetic=(kinetic, POSITIVE),
        directions=(directions, POSITIVE),
        residual=(residual, PROPER_FRACTION),
    )
    rate, held, decay = ratio / np.minimum(k, w), np.minimum(1.0, w / k), 1 / (1 - r)
    last = (1 - held) / (decay - held)  # of counts; of the memory it is 1 - last
    # Deviations from the end decay as exp(A t) with A = -[[rate, rate], [held, decay]].
    mean, half = -(rate + decay) / 2, np.sqrt((rate - decay) ** 2 / 4 + rate * held)
    slow, fast = np.exp((mean + half) * t), np.exp((mean - half) * t)
    even, odd = (slow + fast) / 2, (slow - fast) / 2 / half
    memory = (1 - last) * (1 - even + (rate + mean) * odd) + rate * last * odd
    counts = last * (1 - even + (decay + mean) * odd) + held * (1 - last) * odd
    return Parts(plain(held * memory), plain(counts))


def boundary(*, time: float, kinetic: float, directions: float, residual: float) -> float:
    r"""Number of chains at which memory and counts are equally strong: from :math:`K_1` at first to :math:`K_2`.

    Args:
        time: :math:`t>0`.
        kinetic: :math:`K_1>0`.
        directions: :math:`w>0`.
        residual: :math:`0<r<1`.

    Source: two thresholds, of a kinetic competition and of a bottleneck of the representation [Gibson26].
    Derived: docs/markov-pools.md, Memory against counts.
    """
    t, ratio, w, r = read(
        time=(time, POSITIVE),
        kinetic=(kinetic, POSITIVE),
        directions=(directions, POSITIVE),
        residual=(residual, PROPER_FRACTION),
    )
    low, high = np.log(np.sort([ratio, w / (1 - r)])) + np.log([0.5, 2.0])

    def excess(log_chains: float) -> float:
        parts = strengths(np.exp(log_chains), time=t, kinetic=ratio, directions=w, residual=r)
        return float(parts.memory - parts.counts)

    if excess(low) < 0 or excess(high) > 0:
        raise IclError(f"boundary: expected a crossing from {np.exp(low):g} to {np.exp(high):g} chains, got none")
    return float(np.exp(brentq(excess, low, high, xtol=1e-9)))


def residual_of_counts(*, states: int, concentration: float, tokens: int, draws: int = 1000, seed: int = 0) -> float:
    r"""Loss of counts of pairs above the loss of a known chain, as a fraction of the same excess of the uniform answer.

    .. math:: r = \frac{L_{\text{pairs}} - \bar h}{\ln S - \bar h}

    Args:
        states: :math:`S`, an integer of at least 2.
        concentration: :math:`\alpha > 0` of the rows, and of the prior of counts.
        tokens: :math:`n`, number of tokens of a sequence; an integer of at least 2.
        draws: Number of chains, an integer of at least 2.
        seed: Seed of NumPy's generator, an integer of at least 0.

    Derived: docs/markov-pools.md, Memory against counts.
    """
    law: dict[str, Any] = {
        "states": states,
        "concentration": concentration,
        "tokens": tokens,
        "draws": draws,
        "seed": seed,
    }
    levels = fresh_levels(**law, unigram_concentration=concentration)
    rows = np.random.default_rng(seed).dirichlet(np.full(states, concentration), (draws, states))  # the same chains
    rate = float(np.mean(entropy_rate(rows)))
    return (levels.bigram - rate) / (levels.uniform - rate)
