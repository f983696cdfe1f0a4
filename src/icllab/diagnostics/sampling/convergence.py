r"""Convergence of several Markov chains of one quantity: scale reduction, effective draws and Monte Carlo error.

Draws are [chain, draw], at least eight of each chain, which is split in two, so that one that drifts disagrees with
itself.
"""

from typing import TypeAlias

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from icllab.core.errors import expected

Draws: TypeAlias = np.ndarray  # [chain, draw]
FEWEST = 8  # draws of a chain: four of each half


def rhat(draws: Draws) -> float:
    r"""The potential scale reduction, of split and rank-normalised chains.

    .. math::
        \hat R = \sqrt{\frac{\frac{n-1}nW + \frac1nB}W}, \qquad
        B = n\operatorname{Var}_j\bar z_j, \quad W = \operatorname{mean}_j s_j^2

    over the halves j of all chains, n draws each, with z the normal scores of the ranks. The larger one of the draws
    and of their distances from the median (which sees chains of different widths). 1 where all agree; above 1.01 they
    have not been run for long enough. Infinite where every half stands still at a place of its own, NaN where all
    draws are equal.

    Raises:
        InputError: There are fewer draws, or one is not finite.

    Source: [Vehtari21].
    """
    halves = _split(draws)
    distances = np.abs(halves - np.median(halves))
    return max(_scale_reduction(_scores(halves)), _scale_reduction(_scores(distances)))


def effective_draws(draws: Draws) -> float:
    r"""Number of independent draws whose mean has the same error.

    .. math:: N_{\mathrm{eff}} = \frac{N}{1 + 2\sum_{t\ge1}\hat\rho_t}

    with the autocorrelations of all split chains together, so that halves which disagree count as correlated, summed
    over Geyer's initial monotone sequence of pairs. Of the draws themselves, not of ranks: it is their mean that is
    asked for. At most :math:`N\log_{10}N`, where draws alternate.

    Returns:
        NaN where all draws are equal.

    Raises:
        InputError: As :func:`rhat`.

    Source: [Vehtari21].
    """
    halves = _split(draws)
    count, n = halves.shape
    total = count * n
    covariance = _autocovariance(halves)
    within = covariance[:, 0].mean() * n / (n - 1)
    variance = within * (n - 1) / n + (halves.mean(1).var(ddof=1) if count > 1 else 0.0)
    if not variance > 0:
        return float("nan")
    rho = 1 - (within - covariance.mean(0) * n / (n - 1)) / variance
    rho[0] = 1.0
    pairs = rho[: n - n % 2].reshape(-1, 2).sum(1)
    negative = np.flatnonzero(pairs < 0)
    pairs = np.minimum.accumulate(pairs[: negative[0] if negative.size else None])
    time = max(-1 + 2 * pairs.sum(), 1 / np.log10(total))
    return float(total / time)


def mean_and_mcse(draws: Draws) -> tuple[float, float]:
    r"""The mean and its Monte Carlo standard error, :math:`s / \sqrt{N_{\mathrm{eff}}}`.

    Raises:
        InputError: As :func:`rhat`.

    Source: [Vehtari21].
    """
    return float(draws.mean()), float(draws.std(ddof=1) / np.sqrt(effective_draws(draws)))


def _split(draws: Draws) -> Draws:
    if draws.shape[1] < FEWEST:
        raise expected("draws", f"at least {FEWEST} of each chain", draws.shape[1])
    if not np.isfinite(draws).all():
        raise expected("draws", "finite numbers", float(draws[~np.isfinite(draws)][0]), "leave out what diverged")
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]]).astype(np.float64)


def _scores(draws: Draws) -> Draws:
    ranks = rankdata(draws).reshape(draws.shape)
    return np.asarray(ndtri((ranks - 3 / 8) / (draws.size + 1 / 4)))


def _scale_reduction(draws: Draws) -> float:
    n = draws.shape[1]
    between, within = n * draws.mean(1).var(ddof=1), draws.var(axis=1, ddof=1).mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.sqrt((n - 1) / n + between / within / n))


def _autocovariance(draws: Draws) -> Draws:
    n = draws.shape[1]
    centred = draws - draws.mean(1, keepdims=True)
    spectrum = np.fft.rfft(centred, n=2 * n)
    return np.fft.irfft(np.abs(spectrum) ** 2)[:, :n] / n
