"""Means with their standard errors, and the limit of a finite-size measurement."""

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
    there = ~np.isnan(samples)
    count = there.sum(axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(there, samples, 0.0).sum(axis) / count
        squares = (np.where(there, samples - np.expand_dims(mean, axis), 0.0) ** 2).sum(axis)
        error = np.sqrt(squares / np.where(count > 1, count - 1.0, np.nan) / count)
    return np.asarray(mean), np.asarray(error)


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
