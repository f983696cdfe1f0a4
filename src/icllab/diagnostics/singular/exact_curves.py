r"""Free energies at finite :math:`n\beta` in closed form: quadratics, and products of powers of Gamma variables.

.. math:: K = \prod_iG_i^{k_i}, \qquad G_i\sim\Gamma(a_i,1), \qquad
          Z(t) = E\,e^{-tK} = \frac1{2\pi i}\int_{c-i\infty}^{c+i\infty}\Gamma(s)\,t^{-s}
          \prod_i\frac{\Gamma(a_i-k_is)}{\Gamma(a_i)}\,ds, \qquad 0<c<\lambda = \min_i\frac{a_i}{k_i}

The squared length of a normal vector of 2a components is twice such a variable, so that a product of even powers of
lengths of vectors, a normal crossing among them, has this integral under a Gaussian prior, and not its expansion alone.
Its multiplicity m is the number of factors with the least :math:`a_i/k_i`.

Derived: docs/free-energies.md, The limit of a curve.
"""

import functools
import itertools
import math
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.special import loggamma

Factor: TypeAlias = tuple[float, int]  # a, k
LOG_T = np.arange(-14.0, 36.0, 0.1)  # where partition functions are tabulated
DISTANCE = 0.25  # of the contour from the leading pole, at most; at most a quarter of lambda
NODES = 20  # in 2 pi distances along the contour: an error of e^-20
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
    step = 2 * math.pi * distance / NODES
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
    r"""All sums of products with a zero of order four or more that fit in so many variables.

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
    """Whether a product is among those considered: with more factors, only of fewer components."""
    if len(sizes) == FACTORS:
        return max(sizes) <= 0.5
    return len(sizes) < 3 or max(sizes) <= (1.0 if max(powers) > 1 else 4.0)
