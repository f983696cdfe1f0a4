"""Means with their standard errors, the limit of a finite-size measurement, and where a curve rises or is least."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Numbers: TypeAlias = Sequence[float] | np.ndarray


def mean_and_error(samples: np.ndarray, axis: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and its standard error, of those that are there; NaN where they say nothing.

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
    r"""Mean over two crossed kinds of repetition, the last two axes, and a standard error that counts both.

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
    """Point at which values along the last axis first reach zero from below, by linear interpolation.

    NaN where they never do, and where they begin at zero or above.
    """
    x, y = np.asarray(points, dtype=float), np.asarray(values, dtype=float)
    nonnegative = y >= 0
    after = np.maximum(nonnegative.argmax(axis=-1), 1)
    low, high = (np.take_along_axis(y, at[..., None], axis=-1)[..., 0] for at in (after - 1, after))
    rises = nonnegative.any(axis=-1) & ~nonnegative[..., 0]
    slope = np.where(rises, high - low, np.nan) / (x[after] - x[after - 1])
    return np.asarray(x[after - 1] - low / slope)


def lowest(points: Numbers, values: np.ndarray) -> np.ndarray:
    """Minimiser of values along the last axis, by the parabola through the lowest point and its two neighbours.

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
