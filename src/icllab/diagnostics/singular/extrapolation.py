r"""The limit of :math:`n\beta\,E[K]` and its error, from the curve over some decades of :math:`t = n\beta`.

Near :math:`w^*` there are coordinates in which :math:`K = \frac12\sum_{i\le r}h_iu_i^2 + K'(v)`, where r is the rank of
the Hessian and K' is of order four or more, or zero. The curve is one of

.. math:: \frac{d(-\log Z)}{d\log t} = \frac12\sum_{i\le r}\frac{te^uh_i}{te^uh_i+\gamma} + S'(\log t+c), \qquad
          \lambda = \frac r2+\lambda', \qquad 0\le\lambda'\le\frac{d-r}4, \qquad m = m'

with the curvatures at :math:`w^*`, a shift u for how they change around it, and S' nothing or the exact curve of a
sum of products, whose scale is the shift c: products of powers of Gamma variables,

.. math:: K = \prod_iG_i^{k_i}, \qquad G_i\sim\Gamma(a_i,1), \qquad
          Z(t) = E\,e^{-tK} = \frac1{2\pi i}\int_{c-i\infty}^{c+i\infty}\Gamma(s)\,t^{-s}
          \prod_i\frac{\Gamma(a_i-k_is)}{\Gamma(a_i)}\,ds, \qquad 0<c<\lambda = \min_i\frac{a_i}{k_i}

The squared length of a normal vector of 2a components is twice such a variable, so that a product of even powers of
lengths of vectors, a normal crossing among them, has this integral under a Gaussian prior, and not its expansion alone.
Its multiplicity m is the number of factors with the least :math:`a_i/k_i`.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.special import loggamma, logsumexp
from scipy.stats import f as ratio_of_variances

from icllab.diagnostics.singular.minimum_geometry import FLAT, SURE, Geometry

SHAPES = 5  # orthogonal polynomials that a curve is projected on, at most
FITS = 0.05  # probability of a misfit, below which the curve is fitted from a later point on
SKIPS = 6  # parts of a curve, of which one more is left out each time
OTHER_ORDER = 0.05  # weight of sums of another order than that of K'
STEEPER = np.arange(-2, 2.01, 0.25), 0.6  # u, and its standard deviation beforehand
SPREADS = (0.0, 0.8, 1.6)  # of u along flat directions
NODES = (-2.0, -1.0, 0.0, 1.0, 2.0), (0.06, 0.24, 0.4, 0.24, 0.06)  # of u in spreads, and their weights
SCALES = np.arange(-7.5, 7.6, 0.5), 2.5  # c, beside that of standard normal weights, and its standard deviation
COARSENESS = 0.004  # of a projection, that an exact curve may be off
AROUND = 0.3, 0.1  # below the level, absolute and of the level, that limits are looked for
BEYOND = 2.2, 0.5  # above it, times the part of K' and beside that
WIDTH = 0.1  # of log t, over which a slope at a point is taken
QUANTILES = (0.005, 0.995)
NORMAL = 1.96  # errors of the level that an interval has at least to both sides

Factor: TypeAlias = tuple[float, int]  # a, k
LOG_T = np.arange(-14.0, 36.0, 0.1)  # where partition functions are tabulated
DISTANCE = 0.25  # of the contour from the leading pole, at most; at most a quarter of lambda
CONTOUR_NODES = 20  # in 2 pi distances along the contour: an error of e^-20
DECAY = 34.0  # of the logarithm of the integrand along the contour
# Powers k, and the largest number of components 2a of a vector with it.
COMPONENTS = {1: 14, 2: 4, 3: 3, 4: 1}
COPIES = (1, 2, 3)  # of a product in separate variables, whose terms add
HALF = 0.5
PAIRED = (  # products of which two different ones add
    ((HALF, 2),),
    ((HALF, 3),),
    ((HALF, 1), (HALF, 1)),
    ((HALF, 1), (HALF, 2)),
    ((HALF, 2), (HALF, 2)),
)
RELATIVE = (-2.0, 0.0, 2.0)  # logarithms of the coefficient of the second over that of the first
FACTORS = 4  # of a product, at most
SPREAD = 1.0  # of a_i / k_i above the least of a product: a pole that is further is not seen


class Extrapolation(NamedTuple):
    """Posterior of the limit of a curve."""

    value: float  # posterior mean of lambda
    error: float  # posterior standard deviation, with the error of the level
    interval: tuple[float, float]  # the middle 99 per cent, wider by the error of the level
    level: float  # of the curve at its last point
    level_error: float
    left: float  # posterior mean of the way from there to the limit
    left_error: float
    multiplicities: Float[np.ndarray, " multiplicity"]  # probabilities of m = 1, 2, ...
    seen: float  # end of a line through the slopes themselves
    misfit: float  # probability of a curve as far from all that are considered, if one of them is true
    regular: float  # probability of half the rank, where the minima were seen to be a manifold of its codimension


class Curves(NamedTuple):
    """Curves with one limit."""

    value: float
    multiplicity: int
    slopes: np.ndarray  # mean ones between the points, [curve, interval]
    ends: np.ndarray  # at the last point
    log_weights: np.ndarray
    regular: bool = False


def extrapolated(
    intervals: Float[np.ndarray, "interval 2"],
    slopes: Float[np.ndarray, "repeat interval"],
    *,
    parameters: int,
    localization: float = 1.0,
    hypotheses: Sequence[Geometry] = (FLAT,),
) -> Extrapolation:
    r"""The posterior of :math:`\lambda` given mean slopes of :math:`-\log Z` in intervals, in independent repeats.

    The slopes of a repeat are projected on J orthogonal polynomials. Means :math:`\bar c` of R repeats with the scatter
    matrix A, normal with an unknown covariance, have the likelihood

    .. math:: \bigl(1 + R\,(\bar c-\mu)^\top A^{-1}(\bar c-\mu)\bigr)^{-R/2}

    of a curve with the projections :math:`\mu`. The curves are the module's. Where none fits, the curve is fitted from
    a later interval on, the last half of them at least: far from :math:`w^*`, at high temperatures, the loss is
    another. The interval of :math:`\lambda` has two errors of the level to both sides at least, but for where values
    end: between r/2 and half the number of parameters.

    Args:
        intervals: Logarithms of the inverse temperatures between which the slopes are taken, evenly spaced; at a point
            they are those of a short interval around it.
        slopes: Slopes, in more than four repeats.
        parameters: Number of parameters d, which bounds :math:`\lambda` and m.
        localization: :math:`\gamma`, the precision of the prior.
        hypotheses: What is known of the minimum; several are alternatives, as probable beforehand. The default: a
            Hessian that is zero.

    Derived: docs/free-energies.md, The limit of a curve.
    """
    seen, level_error = _last(slopes)
    count, misfit = slopes.shape[1], 0.0
    families: list[Curves] = []
    posteriors: list[np.ndarray] = []
    for first in range(0, count - count // 2 + 1, max(count // SKIPS, 1)):
        families = [
            curves
            for geometry in hypotheses
            for curves in _curves(intervals[first:], geometry, parameters, localization, seen)
        ]
        posteriors, misfit = _posteriors(slopes[:, first:], families)
        if misfit > FITS:
            break
    weights = np.concatenate(posteriors)
    weights = np.exp(weights - weights.max())
    weights /= weights.sum()
    values, multiplicities, regular = (
        np.repeat([getattr(curves, name) for curves in families], [len(p) for p in posteriors])
        for name in ("value", "multiplicity", "regular")
    )
    # A mean lies between its terms; weights that are rounded do not sum to 1.
    value = float(np.clip(weights @ values, values.min(), values.max()))
    ways = values - np.concatenate([curves.ends for curves in families])
    left = float(weights @ ways)

    least, half = min(len(geometry.curvatures) for geometry in hypotheses) / 2, parameters / 2
    order = np.argsort(values)
    low, high = values[order][np.minimum(np.searchsorted(np.cumsum(weights[order]), QUANTILES), len(values) - 1)]
    return Extrapolation(
        value=value,
        error=math.hypot(math.sqrt(float(weights @ (values - value) ** 2)), level_error),
        interval=(
            float(np.clip(low - NORMAL * level_error, least, half)),
            float(np.clip(high + NORMAL * level_error, least, half)),
        ),
        level=value - left,
        level_error=level_error,
        left=left,
        left_error=math.sqrt(float(weights @ (ways - left) ** 2)),
        multiplicities=np.bincount(multiplicities - 1, weights=weights),
        seen=seen,
        misfit=misfit,
        regular=float(weights[regular].sum()),
    )


def _posteriors(slopes: np.ndarray, families: list[Curves]) -> tuple[list[np.ndarray], float]:
    """Logarithms of the posterior of the curves of each family, up to a constant, and the misfit of the nearest."""
    repeats, intervals = slopes.shape
    shapes = min(SHAPES, (repeats + 1) // 2, intervals)
    basis = np.linalg.qr(np.polynomial.legendre.legvander(np.linspace(-1, 1, intervals), shapes - 1))[0]
    mean, deviations = slopes.mean(0) @ basis, (slopes - slopes.mean(0)) @ basis
    coarse = COARSENESS * np.abs(slopes.mean(0)).max()
    inverse = np.linalg.inv(deviations.T @ deviations + repeats * (repeats - 1) * coarse**2 * np.eye(shapes))
    squares = []
    for curves in families:
        offsets = mean - curves.slopes @ basis
        squares.append(repeats * np.einsum("ci,ij,cj->c", offsets, inverse, offsets))
    posteriors = [curves.log_weights - repeats / 2 * np.log1p(q) for curves, q in zip(families, squares, strict=True)]
    free = repeats - shapes
    nearest = min(float(q.min()) for q in squares)
    return posteriors, float(ratio_of_variances.sf(nearest * free / shapes, shapes, free))


def _last(slopes: np.ndarray) -> tuple[float, float]:
    """The end of a line through the slopes of the last half of the intervals, with its error over repeats."""
    rows = slopes[:, slopes.shape[1] // 2 :]
    repeats, intervals = rows.shape
    lines = np.vander(np.arange(intervals) - intervals + 0.5, 2)
    levels = rows @ np.linalg.pinv(lines)[1]
    return float(levels.mean()), float(levels.std(ddof=1) / math.sqrt(repeats))


def _curves(
    intervals: np.ndarray, geometry: Geometry, parameters: int, localization: float, level: float
) -> list[Curves]:
    """All curves of this geometry whose limit the level admits; weights of the prior sum to one at most."""
    h = geometry.curvatures
    rank, room = len(h), parameters - len(h)
    shifts, weights = (STEEPER[0], _normal(*STEEPER)) if rank else (np.zeros(1), np.zeros(1))
    spreads = np.array(SPREADS) if rank else np.zeros(1)
    weights = np.repeat(weights, len(spreads)) - math.log(len(spreads))
    # [curve, node, 1]: curvatures change along flat directions, and Z is a mean over these.
    nodes = (shifts[:, None, None] + spreads[:, None] * np.array(NODES[0])).reshape(-1, len(NODES[0]), 1)

    def energies(x: np.ndarray) -> np.ndarray:
        return -logsumexp(log_partition_of_quadratic(x + nodes, h, localization), axis=1, b=np.array(NODES[1])[:, None])

    regular, ends = _slopes(energies, intervals), _end(energies, intervals)
    families = []
    if rank or not room:
        alone = geometry.regular if room else 1.0
        families.append(Curves(rank / 2, 1, regular, ends, weights + math.log(alone), alone >= SURE))
    low = level - rank / 2 - AROUND[0] - AROUND[1] * level
    high = BEYOND[0] * max(level - rank / 2, 0.0) + BEYOND[1]
    every = sums(room)
    other = np.array([geometry.order not in (None, sum_.order) for sum_ in every], bool)
    before = np.array([sum_.log_weight for sum_ in every]) + np.where(other, math.log(OTHER_ORDER), 0.0)
    before -= np.logaddexp.reduce(before) if every else 0.0
    before += math.log(1 - geometry.regular) if rank else 0.0
    within = [i for i, sum_ in enumerate(every) if low < sum_.value < high]
    if not within and not families:
        within = list(range(len(every)))
    for sum_, log_weight in [(every[i], before[i]) for i in within]:

        def energies_at(x: np.ndarray, sum_: Sum = sum_) -> np.ndarray:
            return -sum_.log_partition(x + SCALES[0][:, None], localization)

        singular, of_end = _slopes(energies_at, intervals), _end(energies_at, intervals)
        of_scales = _normal(*SCALES) + log_weight
        families.append(
            Curves(
                rank / 2 + sum_.value,
                sum_.multiplicity,
                (regular[:, None] + singular).reshape(-1, len(intervals)),
                (ends[:, None] + of_end).ravel(),
                (weights[:, None] + of_scales).ravel(),
            )
        )
    return families


def _slopes(energies: Callable[[np.ndarray], np.ndarray], intervals: np.ndarray) -> np.ndarray:
    """Mean slopes in the intervals, [curve, interval]."""
    low, high = intervals.T
    return (energies(high) - energies(low)) / (high - low)


def _end(energies: Callable[[np.ndarray], np.ndarray], intervals: np.ndarray) -> np.ndarray:
    """Slopes at the last point."""
    return _slopes(energies, intervals[-1:, 1:] + np.array([-WIDTH, WIDTH]) / 2)[:, 0]


def _normal(places: np.ndarray, deviation: float) -> np.ndarray:
    """Logarithms of weights of a grid, normal around zero."""
    logs = -((places / deviation) ** 2) / 2
    return logs - np.logaddexp.reduce(logs)


class Sum(NamedTuple):
    """Sum of products in separate variables, and the logarithm of its weight beforehand."""

    products: tuple[tuple[Factor, ...], ...]
    scales: tuple[float, ...]  # logarithm of the coefficient of each
    log_weight: float

    @property
    def components(self) -> int:
        """Number of variables."""
        return sum(round(2 * a) for factors in self.products for a, _ in factors)

    @property
    def value(self) -> float:
        """The learning coefficient."""
        return sum(min(a / k for a, k in factors) for factors in self.products)

    @property
    def multiplicity(self) -> int:
        """The multiplicity of the learning coefficient."""
        more = 0
        for factors in self.products:
            ratios = [a / k for a, k in factors]
            more += sum(math.isclose(ratio, min(ratios)) for ratio in ratios) - 1
        return 1 + more

    @property
    def order(self) -> int:
        """The order of the sum in all variables together: the least degree of its products."""
        return min(2 * sum(k for _, k in factors) for factors in self.products)

    def log_partition(self, log_t: np.ndarray, localization: float) -> np.ndarray:
        r"""Logarithm of Z, for weights of the precision :math:`\gamma`."""
        total = np.zeros_like(log_t)
        for factors, scale in zip(self.products, self.scales, strict=True):
            # |w|^2 is 2 / gamma times a Gamma variable.
            x = log_t + scale + sum(k for _, k in factors) * math.log(2 / localization)
            total += np.interp(x, LOG_T, log_partition(factors))
        return total


@functools.cache
def log_partition(factors: tuple[Factor, ...]) -> Float[np.ndarray, " point"]:
    r"""Logarithm of Z at :math:`\log t` of :data:`LOG_T`, by the trapezoidal rule along the contour.

    The contour is near the leading pole where t is above 1, and near that at 0 where it is below: the integrand is then
    not much larger than Z.
    """
    a, k = np.array(factors, np.float64).T
    value = (a / k).min()
    distance = min(value / 4, DISTANCE)
    step = 2 * math.pi * distance / CONTOUR_NODES
    # |Gamma(c + iy)| falls as e^(-pi |y| / 2), and so does each of the factors, at k times the distance.
    end = 2 * DECAY / (math.pi * (1 + k.sum())) + 2 * math.sqrt(value)
    rows = []
    for c, x in ((distance, LOG_T[LOG_T < 0]), (value - distance, LOG_T[LOG_T >= 0])):
        s = c + 1j * np.arange(0, end + step, step)
        integrand = loggamma(s) + sum(loggamma(ai - ki * s) - loggamma(ai) for ai, ki in zip(a, k, strict=True))
        integrand[0] -= math.log(2)  # of a pair of conjugate nodes there is one
        terms = np.exp(integrand - 1j * x[:, None] * s.imag).real.sum(1) * step / math.pi
        rows.append(np.log(np.maximum(terms, 1e-300)) - x * c)
    return np.minimum(np.concatenate(rows), 0.0)


def log_partition_of_quadratic(log_t: np.ndarray, curvatures: np.ndarray, localization: float) -> np.ndarray:
    r"""Logarithm of :math:`\prod_i(1+th_i/\gamma)^{-1/2}`."""
    return -np.log1p(np.exp(log_t)[..., None] * curvatures / localization).sum(-1) / 2


@functools.cache
def sums(components: int) -> tuple[Sum, ...]:
    r"""All sums of products that vanish to order four or more, in at most ``components`` variables.

    A function that is not negative and whose Hessian at its zero is zero is of order four there, so that its
    coefficient is at most a quarter of the number of variables: no other sum is among them. Each further factor and
    term, each further power, and of higher powers each further component, has a lower weight.
    """
    singles = [(j / 2, k) for k, most in COMPONENTS.items() for j in range(1, most + 1)]
    rows = []
    for count in range(1, FACTORS + 1):
        for factors in itertools.combinations_with_replacement(singles, count):
            sizes, powers = [a for a, _ in factors], [k for _, k in factors]
            ratios = [a / k for a, k in factors]
            if sum(powers) < 2 or max(ratios) > min(ratios) + SPREAD or not _is_usual(sizes, powers):
                continue
            weight = -math.log(2) * (count + sum(powers) - 1 - len(powers))
            weight -= sum(2 * a - 1 for a, k in factors if k > 1) / 3
            for copies in COPIES[: 1 if count == FACTORS or min(ratios) > 1 else None]:
                rows.append(Sum((factors,) * copies, (0.0,) * copies, weight - math.log(2) * (copies - 1)))
    for pair in itertools.combinations(PAIRED, 2):
        weight = -math.log(2) * (sum(k for factors in pair for _, k in factors) - 1)
        rows += [Sum(pair, (0.0, scale), weight - math.log(len(RELATIVE))) for scale in RELATIVE]
    return tuple(row for row in rows if row.components <= components and row.value <= components / 4)


def _is_usual(sizes: list[float], powers: list[int]) -> bool:
    """True if a product is considered: with more factors, only with fewer components."""
    if len(sizes) == FACTORS:
        return max(sizes) <= 0.5
    return len(sizes) < 3 or max(sizes) <= (1.0 if max(powers) > 1 else 4.0)
