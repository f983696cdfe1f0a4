r"""The limit of :math:`n\beta\,E[K]` from its curve over some decades of :math:`t = n\beta`, and what is unknown of it.

.. math:: \frac{d(-\log Z)}{d\log t} = \lambda - U'(\log t), \qquad Z \propto t^{-\lambda}e^{U(\log t)}

U is what is left of the poles of the zeta function behind the leading one. With :math:`x = \log t` measured from the
first point of the curve it is one of

.. math:: 0, \qquad (m-1)\log(x+z), \qquad a\log\bigl(1-e^{-\delta(x+z)}\bigr), \qquad
          \log\bigl(1+r\,e^{-\delta x}\bigr)

that is, the limit is reached; or the leading pole has the multiplicity m; or another pole stands :math:`\delta`
behind it, with the opposite sign (as of normal crossings, where a factors contribute; for :math:`\delta\to0` the poles
merge) or with the same.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import f as ratio_of_variances

SHAPES = 3  # of a curve that are looked at: its level, slope and curvature
MOST = 6  # multiplicity that is considered
# How probable each kind of U is beforehand: none, a multiplicity, a pole of the opposite sign, one of the same.
KINDS = (0.4, 0.25, 0.25, 0.1)
PLACES = np.geomspace(0.5, 30, 20)  # z
DISTANCES = np.geomspace(0.05, 1.5, 10)  # of poles, delta
PARTS = np.geomspace(0.01, 3, 20)  # r
TAILS = (0.025, 0.975)
COARSENESS = 1e-3  # of the level, that the curves below may lie off what there is between them
GRID = 1500  # values of lambda
REACH = 10.0  # standard errors of the level, beside what a curve may have left, that lambda is looked for around it


class Extrapolation(NamedTuple):
    """What a curve says of its limit."""

    value: float  # posterior mean of lambda
    error: float  # posterior standard deviation
    interval: tuple[float, float]  # the middle 95 per cent
    level: float  # of the curve at its last point
    level_error: float
    left: float  # posterior mean of the way from there to the limit
    left_error: float
    multiplicities: Float[np.ndarray, " multiplicity"]  # probabilities of m = 1, 2, ...
    misfit: float  # probability of a curve as far from all that are considered, if one of them is true


def extrapolated(
    log_t: Float[np.ndarray, " point"], slopes: Float[np.ndarray, "repeat interval"], *, parameters: int
) -> Extrapolation:
    r"""The posterior of :math:`\lambda` given mean slopes of :math:`-\log Z` between points, in independent repeats.

    The slopes of a repeat are projected on polynomials of the first three degrees. Means :math:`\bar c` of R repeats
    with the scatter matrix A, normal with an unknown covariance, have the likelihood

    .. math:: \bigl(1 + R\,(\bar c-\mu)^\top A^{-1}(\bar c-\mu)\bigr)^{-R/2}

    of a curve with the projections :math:`\mu`. The curves are all those of the module's U; they are weighted by
    :data:`KINDS` and, of more factors, by halves, z, :math:`\delta` and r evenly in their logarithms, and
    :math:`\lambda` evenly. It is at most half the number of parameters, where values and intervals end.

    Args:
        log_t: Logarithms of at least four inverse temperatures, evenly spaced.
        slopes: Slopes, one fewer in each of more than four repeats.
        parameters: Number of parameters, which bounds :math:`\lambda` and m.

    Derived: docs/free-energies.md, The limit of a curve.
    """
    repeats, intervals = slopes.shape
    polynomials = np.polynomial.legendre.legvander(np.linspace(-1, 1, intervals), SHAPES - 1)
    projection = np.linalg.pinv(polynomials)
    projections = slopes @ projection.T
    mean = projections.mean(0)
    scatter = (projections - mean).T @ (projections - mean)
    scatter += repeats * (repeats - 1) * (COARSENESS * mean[0]) ** 2 * np.eye(SHAPES)
    last = np.polynomial.legendre.legvander(np.array([1 + 1 / (intervals - 1)]), SHAPES - 1)[0]
    level, level_error = last @ mean, math.sqrt(last @ scatter @ last / (repeats * (repeats - 1)))

    areas, ends, factors, weights = _curves(log_t - log_t[0], min(MOST, max(parameters, 1)))
    inverse = np.linalg.inv(scatter)
    offsets = mean + areas @ projection.T  # from a curve of lambda = 0
    constant = projection @ np.ones(intervals)
    reach = REACH * level_error + np.abs(ends).max()
    values = np.linspace(level - reach, level + reach, GRID)
    squares = (offsets @ inverse * offsets).sum(1)[:, None] - 2 * (offsets @ inverse @ constant)[:, None] * values
    squares = squares + constant @ inverse @ constant * values**2
    posterior = weights[:, None] * (1 + repeats * squares) ** (-repeats / 2)
    posterior /= posterior.sum()
    of_value, of_curve = posterior.sum(0), posterior.sum(1)

    half = parameters / 2
    value = float(of_value @ values)
    error = math.sqrt(float(of_value @ (values - value) ** 2))
    low, high = np.interp(TAILS, np.cumsum(of_value), values)
    left = float(of_curve @ ends)
    probabilities = np.bincount(factors, weights=of_curve, minlength=max(factors) + 1)
    free = repeats - SHAPES
    return Extrapolation(
        value=min(value, half),
        error=error,
        interval=(min(float(low), half), min(float(high), half)),
        level=float(level),
        level_error=level_error,
        left=left,
        left_error=math.sqrt(float(of_curve @ (ends - left) ** 2)),
        multiplicities=probabilities,
        misfit=float(ratio_of_variances.sf(repeats * squares.min() * free / SHAPES, SHAPES, free)),
    )


def _curves(x: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of every U its mean slopes between the points, the slope at the last, m - 1, and its weight beforehand."""
    width, z = np.diff(x), PLACES[:, None]
    factor_range = range(1, limit)
    shares = 0.5 ** np.arange(len(factor_range))
    shares = shares / shares.sum() if len(factor_range) else shares
    slopes, ends, factors, weights = [np.zeros((1, len(width)))], [np.zeros(1)], [0], [KINDS[0]]

    def take(values: np.ndarray, end: np.ndarray, factor: int, weight: float) -> None:
        slopes.append(np.diff(values, axis=1) / width)
        ends.append(end)
        factors.extend([factor] * len(values))
        weights.extend([weight / len(values)] * len(values))

    for a, share in zip(factor_range, shares, strict=True):
        take(a * np.log(x + z), a / (x[-1] + PLACES), a, share * KINDS[1])
        for d in DISTANCES:
            end = a * d / np.expm1(d * (x[-1] + PLACES))
            take(a * np.log(-np.expm1(-d * (x + z))), end, 0, share * KINDS[2] / len(DISTANCES))
    for d in DISTANCES:
        part = PARTS[:, None] * np.exp(-d * x)
        take(np.log1p(part), -d * part[:, -1] / (1 + part[:, -1]), 0, KINDS[3] / len(DISTANCES))
    return np.concatenate(slopes), np.concatenate(ends), np.array(factors), np.array(weights)
