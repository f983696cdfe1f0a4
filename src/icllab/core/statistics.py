"""Means with standard errors, limits of finite sizes, zeros and minima of curves, and a test of unimodality."""

import functools
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = Sequence[float] | np.ndarray


def mean_and_error(samples: np.ndarray, axis: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the seeds that have a value, and its standard error; NaN if there are too few.

    A mean needs one sample, a standard error two.
    """
    samples = np.asarray(samples, dtype=float)
    present = ~np.isnan(samples)
    count = present.sum(axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(present, samples, 0.0).sum(axis) / count
        squares = (np.where(present, samples - np.expand_dims(mean, axis), 0.0) ** 2).sum(axis)
        error = np.sqrt(squares / np.where(count > 1, count - 1.0, np.nan) / count)
    return np.asarray(mean), np.asarray(error)


def crossed_mean_and_error(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Mean over two crossed kinds of repetition, the last two axes, and a standard error that includes both.

    .. math:: x_{ms} = \mu + a_m + b_s + c_{ms}, \qquad
              \mathrm{SE}^2 = \frac{s^2(\bar x_{m\cdot})}{M} + \frac{s^2(\bar x_{\cdot s})}{S}

    for M trained networks that answer the same S draws. Its expectation is
    :math:`\sigma_a^2/M + \sigma_b^2/S + 2\sigma_c^2/(MS)`; the variance of the mean has the last term once, so the
    error is never stated too small on average.
    """
    mean, of_members = mean_and_error(np.mean(samples, axis=-1))
    _, of_draws = mean_and_error(np.mean(samples, axis=-2))
    return mean, np.asarray(np.hypot(of_members, of_draws))


def extrapolate(dims: Numbers, values: Numbers, errors: Numbers, *, order: int = 1) -> tuple[float, float]:
    r"""The limit of a finite-size measurement, by weighted least squares in powers of :math:`1/d`.

    .. math:: m(d) = m_\infty + \sum_{j=1}^{\text{order}} c_j d^{-j}

    Returns :math:`m_\infty` and its standard error. Exact for as many sizes as unknowns; needs at
    least that many.
    """
    d, m, s = (np.asarray(a, dtype=float) for a in (dims, values, errors))
    usable = np.isfinite(m) & np.isfinite(s) & (s > 0)
    d, m, s = d[usable], m[usable], s[usable]
    if d.size < order + 1:
        return math.nan, math.nan
    design = d[:, None] ** -np.arange(order + 1.0)
    covariance = np.linalg.inv((design.T / s**2) @ design)
    return float((covariance @ (design.T @ (m / s**2)))[0]), float(math.sqrt(covariance[0, 0]))


def first_rise(points: Numbers, values: np.ndarray) -> np.ndarray:
    """First point at which values along the last axis reach zero from below, by linear interpolation.

    NaN where they never do, and where they begin at zero or above.
    """
    x, y = np.asarray(points, dtype=float), np.asarray(values, dtype=float)
    nonnegative = y >= 0
    after = np.maximum(nonnegative.argmax(axis=-1), 1)
    low, high = (np.take_along_axis(y, index[..., None], axis=-1)[..., 0] for index in (after - 1, after))
    rises = nonnegative.any(axis=-1) & ~nonnegative[..., 0]
    slope = np.where(rises, high - low, np.nan) / (x[after] - x[after - 1])
    return np.asarray(x[after - 1] - low / slope)


def lowest(points: Numbers, values: np.ndarray) -> np.ndarray:
    """Minimiser of values along the last axis, from the parabola through the lowest point and its two neighbours.

    A lowest point at either end is taken as it is; NaN where any value is NaN. It needs three points, in order.
    """
    x, y = np.asarray(points, dtype=float), np.asarray(values, dtype=float)
    lowest_at = np.argmin(y, axis=-1)
    inner = np.clip(lowest_at, 1, y.shape[-1] - 2)
    a, b, c = (np.take_along_axis(y, (inner + i)[..., None], -1)[..., 0] for i in (-1, 0, 1))
    left, right = x[inner - 1] - x[inner], x[inner + 1] - x[inner]
    # Of y = b + s x + q x^2 through the three.
    q = ((c - b) / right - (a - b) / left) / (right - left)
    s = (c - b) / right - q * right
    vertex = np.clip(-s / np.where(q > 0, 2 * q, np.inf), left, right)
    positions = np.where(lowest_at == inner, x[inner] + vertex, x[lowest_at])
    return np.where(np.isnan(y).any(-1), np.nan, positions)


def dip(samples: np.ndarray) -> float:
    r"""Hartigan's dip of samples: their distance from the nearest unimodal distribution.

    .. math:: D = \min_U\sup_x|F_n(x)-U(x)|, \qquad U \text{ convex up to a mode and concave from there}

    The interval of the mode shrinks to where the concave majorant of the steps of :math:`F_n` is farthest above their
    convex minorant; the largest distance outside is that which no mode inside can mend. At least 1/(2n).

    Args:
        samples: At least two numbers that differ.
    """
    x, largest = np.sort(np.asarray(samples, dtype=float)), 1.0
    low, high = 0, len(x) - 1
    while True:
        inside = np.arange(low, high + 1)
        below, above = _hull(x, low, high, 1), _hull(x, low, high, -1)
        minorant, majorant = np.interp(x[inside], x[below], below), np.interp(x[inside], x[above], above) + 1
        k = inside[np.argmax(majorant - minorant)]
        start = int(below[np.searchsorted(below, k, side="right") - 1])
        end = int(above[np.searchsorted(above, k)])
        if np.max(majorant - minorant) <= largest:
            break
        left, right = inside <= start, inside >= end
        outside = np.max((inside + 1 - minorant)[left]), np.max((majorant - inside)[right])
        largest = max(largest, *map(float, outside))
        if (low, high) == (start, end):
            break
        low, high = start, end
    return float(largest / (2 * len(x)))


def _hull(x: np.ndarray, low: int, high: int, sign: int) -> np.ndarray:
    """Indices of the convex minorant (sign 1) or concave majorant (-1) of the points (x, index) from low to high."""
    knots = [low]
    for i in range(low + 1, high + 1):
        while len(knots) > 1:
            a, b = knots[-2:]
            if sign * ((b - a) * (x[i] - x[a]) - (i - a) * (x[b] - x[a])) < 0:
                break
            knots.pop()
        knots.append(i)
    return np.array(knots)


@functools.lru_cache(maxsize=8)
def _uniform_dips(n: int, draws: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.sort([dip(rng.random(n)) for _ in range(draws)])


def dip_p_value(samples: np.ndarray, draws: int = 1000) -> float:
    """P-value of the dip: the probability of as large a dip in uniform samples, the least favourable unimodal case.

    Args:
        samples: At least two numbers that differ.
        draws: Simulated samples of the uniform distribution, the same ones for each size.
    """
    null = _uniform_dips(len(np.asarray(samples)), draws)
    larger = draws - np.searchsorted(null, dip(samples) - 1e-12)
    return float((larger + 1) / (draws + 1))


def binomial_limits(hits: npt.ArrayLike, count: npt.ArrayLike, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """Clopper and Pearson's limits of a probability: each misses with a probability of at most ``tail``."""
    from scipy.stats import beta  # a third of a second, which most checks do without

    hits, count = np.asarray(hits), np.asarray(count)
    low = np.where(hits > 0, beta.ppf(tail, hits, count - hits + 1), 0.0)
    return low, np.where(hits < count, beta.isf(tail, hits + 1, count - hits), 1.0)
