r"""The error of L layers of linear attention if covariances rotate from context to context, in a limit of large d.

A context draws a rotation O, a task :math:`w\sim\mathcal N(0, O\Omega O^\top/d)` and :math:`n = \alpha d` examples
:math:`x_i\sim\mathcal N(0, O\Lambda O^\top)` with labels of noise variance :math:`\rho`. Layers take steps of gradient
descent of sizes :math:`a_l`, multiples of the identity, since no other matrix suits every rotation. In the limit
:math:`d\to\infty`, with S the sample covariance and :math:`\mathrm{tr}_d` the trace over d, the error on a query is

.. math::
    \mathbb E(w^\top x - \hat y)^2 = \mathrm{tr}_d\,\Omega\,p(S)\Lambda p(S)
    + \frac\rho\alpha\mathrm{tr}_d\,\Lambda Sq(S)^2, \qquad
    p(s) = \prod_l(1 - a_ls) = 1 - sq(s),

a quadratic form in the coefficients of p. Its matrix consists of series with non-negative terms, and is computed in
rational arithmetic, where nothing is rounded. Formulas take the spectrum at hand, of any dimension.

A covariance :math:`\Sigma` that is *fixed* is suited by one preconditioner: steps :math:`a_l\Gamma` with a
:math:`\Gamma` that commutes with :math:`\Sigma` and the tasks' covariance err as steps :math:`a_l` do under the
spectrum of :math:`\Gamma\Sigma` with tasks :math:`\Gamma^{-1}\Omega`. With :math:`\Gamma = \Sigma^{-1}` this is the
isotropic error times :math:`\mathrm{tr}_d\,\Omega\Sigma`.

Throughout ``spectrum`` are the eigenvalues of :math:`\Lambda`, positive, ``tasks`` those of :math:`\Omega` in the same
order (or one number), ``alpha`` is :math:`\alpha > 0`, ``inf`` allowed, and ``noise_variance`` :math:`\rho\ge 0`;
anything else raises an ``InputError``.
"""

import functools
from fractions import Fraction
from math import isinf
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize

from icllab.core.domains import FINITE, NON_NEGATIVE, POSITIVE, POSITIVE_OR_INF
from icllab.core.errors import expected, require_integer
from icllab.theory.descent import Steps
from icllab.theory.parameters import Array, Numbers, read

Matrix = list[list[Fraction]]


def loss(
    rates: npt.ArrayLike, spectrum: npt.ArrayLike, *, alpha: float, tasks: Numbers = 1.0, noise_variance: float = 0.0
) -> float:
    r"""The error of steps of given sizes: the quadratic form of the module at the coefficients of their polynomial.

    Args:
        rates: :math:`a_l`, the step size of each layer; finite.
        spectrum: Eigenvalues of the inputs' covariance, as for the module.
        alpha: Examples of a context over the dimension, :math:`\alpha = \ell/d > 0`; inf allowed.
        tasks: Eigenvalues of the tasks' covariance times d, likewise.
        noise_variance: :math:`\rho \ge 0`, variance of the noise of the examples' labels.

    Source: the setting [Bordelon26].
    Derived: docs/gradient-descent.md, Depth and rotated covariances.
    """
    (sizes,) = read(rates=(rates, FINITE))
    if sizes.ndim != 1 or not sizes.size:
        raise expected("rates", "a list of numbers, one for each layer", f"shape {sizes.shape}")
    return _value(_form(spectrum, alpha, len(sizes), tasks, noise_variance), _coefficients(sizes))


def free_steps(
    spectrum: npt.ArrayLike, *, alpha: float, layers: int, tasks: Numbers = 1.0, noise_variance: float = 0.0
) -> Steps:
    r"""The best step sizes, one for each layer, in descending order.

    .. math:: \min_{\deg p\le L,\;p(0)=1} c^\top Mc = \frac1{[M^{-1}]_{00}}, \qquad p(s) = \sum_{j\le L}c_js^j

    with M the matrix of the form. The sizes are the inverse roots of the minimiser. Where :math:`\Omega` is a multiple
    of the identity and labels have no noise, M is a Hankel matrix and the roots are real: the points of a Gauss rule.
    Elsewhere they may be complex, and no steps attain the minimum over polynomials; then it is searched over real sizes
    from the real parts. With fewer than L different eigenvalues at ``alpha=inf`` the error is 0, and sizes beyond
    their number are 0. The search takes seconds from eight layers on.

    Args:
        spectrum: Eigenvalues of the inputs' covariance, as for the module.
        alpha: Examples of a context over the dimension, :math:`\alpha = \ell/d > 0`; inf allowed.
        layers: :math:`L`, the number of steps; an integer of at least 1.
        tasks: Eigenvalues of the tasks' covariance times d, likewise.
        noise_variance: :math:`\rho \ge 0`, variance of the noise of the examples' labels.

    Source: the setting [Bordelon26].
    Derived: docs/gradient-descent.md, Depth and rotated covariances.
    """
    form = _form(spectrum, alpha, layers, tasks, noise_variance)
    c = _minimiser(form)
    roots = np.roots([float(value) for value in reversed(c)])
    rates = np.zeros(layers)
    rates[: len(roots)] = np.sort((1 / roots).real)[::-1]
    if np.any(np.abs(roots.imag) > 1e-9 * np.abs(roots)):
        objective: Any = functools.partial(_value_and_slope, form)
        search = minimize(objective, rates, jac=True, method="BFGS", options={"gtol": 1e-9})
        rates = np.sort(search.x)[::-1]
    return Steps(rates, np.zeros(layers), _value(form, _coefficients(rates)))


def tied_steps(
    spectrum: npt.ArrayLike, *, alpha: float, layers: int, tasks: Numbers = 1.0, noise_variance: float = 0.0
) -> Steps:
    r"""The best step size that all L layers share: the least positive zero of the derivative of the error.

    .. math:: p(s) = (1 - as)^L

    Where :math:`\Omega` is a multiple of the identity the error is a convex function of a.

    Args:
        spectrum: Eigenvalues of the inputs' covariance, as for the module.
        alpha: Examples of a context over the dimension, :math:`\alpha = \ell/d > 0`; inf allowed.
        layers: :math:`L`, the number of steps; an integer of at least 1.
        tasks: Eigenvalues of the tasks' covariance times d, likewise.
        noise_variance: :math:`\rho \ge 0`, variance of the noise of the examples' labels.

    Source: the setting [Bordelon26].
    Derived: docs/gradient-descent.md, Depth and rotated covariances.
    """
    form = _form(spectrum, alpha, layers, tasks, noise_variance)

    def slope(a: float) -> float:
        return float(_value_and_slope(form, np.full(layers, a))[1].sum())

    largest = 1 / float(np.max(spectrum))
    while slope(largest) < 0:
        largest *= 1.25
    rates = np.full(layers, brentq(slope, 0.0, largest, xtol=1e-15, rtol=1e-14))
    return Steps(rates, np.zeros(layers), _value(form, _coefficients(rates)))


def endless_steps(spectrum: npt.ArrayLike, *, alpha: float, tasks: Numbers = 1.0) -> float:
    r"""Error after infinitely many steps without noise: the part of the task that contexts shorter than d do not span.

    .. math::
        \frac{t^2\,\mathrm{tr}_d\,\Omega\Lambda(\Lambda + t)^{-2}}
             {1 - \frac1\alpha\mathrm{tr}_d\,\Lambda^2(\Lambda + t)^{-2}}, \qquad
        \mathrm{tr}_d\,\Lambda(\Lambda + t)^{-1} = \alpha,

    and 0 from :math:`\alpha = 1` on. With isotropic inputs and tasks it is :math:`1 - \alpha`.

    Args:
        spectrum: Eigenvalues of the inputs' covariance, as for the module.
        alpha: Examples of a context over the dimension, :math:`\alpha = \ell/d > 0`; inf allowed.
        tasks: Eigenvalues of the tasks' covariance times d, likewise.

    Source: the isotropic case [Bordelon26].
    Derived: docs/gradient-descent.md, Depth and rotated covariances.
    """
    values, weights = _eigenvalues(spectrum, tasks)
    (ratio,) = read(alpha=(alpha, POSITIVE_OR_INF))
    if ratio >= 1:
        return 0.0

    def excess(t: float) -> float:
        return float(np.mean(values / (values + t)) - ratio)

    t = brentq(excess, 0.0, values.mean() / ratio, xtol=1e-300, rtol=1e-14)
    gain = values / (values + t)
    return float(np.mean(weights * values * (1 - gain) ** 2) / (1 - np.mean(gain**2) / ratio))


def skew_curvature(spectrum: npt.ArrayLike, *, layers: int, tasks: Numbers = 1.0) -> float:
    r"""Second-order effect on the error of an antisymmetric part of the matrix that all layers share.

    With endless contexts, at the best shared step size a, and K antisymmetric, in generic position and of size
    :math:`\mathrm{tr}_d\,K^\top K = 1`, the error of the matrix :math:`aI + \epsilon K` is that of :math:`aI` plus
    :math:`\epsilon^2` times

    .. math::
        \sum_{m=0}^{2L-2}\bigl(\min(m, 2L - 2 - m) + 1 - 2\max(L - 1 - m, 0)\bigr)\,
        \mathrm{tr}_d\,\Lambda r^m\;\mathrm{tr}_d\,\Omega\Lambda^2r^{2L-2-m}, \qquad r = I - a\Lambda .

    Where it is negative no multiple of the identity is a minimum. For a symmetric K of trace 0 the 2 has the other
    sign, and the sum is positive.

    Args:
        spectrum: Eigenvalues of the inputs' covariance, as for the module.
        layers: :math:`L`, the number of steps; an integer of at least 1.
        tasks: Eigenvalues of the tasks' covariance times d, likewise.

    Derived: docs/gradient-descent.md, One matrix for all layers.
    """
    values, weights = _eigenvalues(spectrum, tasks)
    rate = tied_steps(spectrum, alpha=np.inf, layers=layers, tasks=tasks).rates[0]
    powers = np.arange(2 * layers - 1)
    left = (1 - rate * values) ** powers[:, None]
    single, double = (left * values).mean(1), (left * weights * values**2).mean(1)
    counts = np.minimum(powers, powers[::-1]) + 1 - 2 * np.maximum(layers - 1 - powers, 0)
    return float(counts @ (single * double[::-1]))


def _eigenvalues(spectrum: npt.ArrayLike, tasks: Numbers) -> tuple[Array, Array]:
    values, weights = read(spectrum=(spectrum, POSITIVE), tasks=(tasks, NON_NEGATIVE))
    if np.ndim(spectrum) != 1 or values.ndim != 1 or not values.size:
        raise expected(
            "spectrum",
            "a list of eigenvalues",
            f"shape {np.shape(spectrum)}",
            "give tasks as one number or one for each eigenvalue",
        )
    return values, weights


def _form(spectrum: npt.ArrayLike, alpha: float, layers: int, tasks: Numbers, noise_variance: float) -> Matrix:
    """Matrix of the error as a form in the coefficients of p, exactly."""
    require_integer("layers", layers)
    values, weights = _eigenvalues(spectrum, tasks)
    ratio, noise = read(alpha=(alpha, POSITIVE_OR_INF), noise_variance=(noise_variance, NON_NEGATIVE))
    inverse = Fraction(0) if isinf(ratio) else 1 / Fraction(float(ratio))
    eigenvalues, order = tuple(values.tolist()), int(layers)
    form = [list(row) for row in _moments(eigenvalues, tuple(weights.tolist()), inverse, order)]
    if noise and inverse:
        scale = Fraction(float(noise)) * inverse
        plain = _moments(eigenvalues, (1.0,) * len(values), inverse, order)
        for j in range(1, layers + 1):
            for k in range(1, layers + 1):
                form[j][k] += scale * plain[j][k - 1]
    return form


@functools.lru_cache(maxsize=64)
def _moments(
    values: tuple[float, ...], weights: tuple[float, ...], inverse: Fraction, order: int
) -> tuple[tuple[Fraction, ...], ...]:
    r"""Limits of :math:`\mathrm{tr}_d\,\Omega S^j\Lambda S^k` for j, k up to ``order``, with ``inverse`` 1/alpha.

    They are the coefficients of :math:`x^jx'^k` in

    .. math::
        \frac{\sum_{jk}\mathrm{tr}_d\,\Omega\Lambda^{j+k+1}\,T^jT'^k}
             {1 - \frac1\alpha\sum_{jk}\mathrm{tr}_d\,\Lambda^{j+k+2}\,T^{j+1}T'^{k+1}}, \qquad
        T = x\Bigl(1 + \frac1\alpha\sum_{k\ge1}\mathrm{tr}_d\,\Lambda^kT^k\Bigr) .
    """
    eigenvalues, power = [Fraction(value) for value in values], [Fraction(1)] * len(values)
    plain, weighted = [], []
    for _ in range(2 * order + 2):
        plain.append(sum(power, Fraction(0)) / len(values))
        weighted.append(sum((Fraction(w) * p for w, p in zip(weights, power, strict=True)), Fraction(0)) / len(values))
        power = [value * p for value, p in zip(eigenvalues, power, strict=True)]
    span = range(order + 1)
    ratio = [[Fraction(0)] * (order + 1) for _ in span]  # the quotient, in powers of T and T'
    for j in span:
        for k in span:
            inner = sum(plain[a + b] * ratio[j - a][k - b] for a in range(1, j + 1) for b in range(1, k + 1))
            ratio[j][k] = weighted[j + k + 1] + inverse * inner
    # Lagrange: the coefficient of x^i in T^j is j/i times that of T^(i - j) in the i-th power of the bracket.
    bracket = [Fraction(1)] + [inverse * plain[k] for k in range(1, order + 1)]
    change = [[Fraction(int(i == j)) for i in span] for j in span]
    product = [Fraction(1)] + [Fraction(0)] * order
    for i in range(1, order + 1):
        product = [sum((product[a] * bracket[b - a] for a in range(b + 1)), Fraction(0)) for b in span]
        for j in range(1, i + 1):
            change[j][i] = Fraction(j, i) * product[i - j]
    half = [[sum((row[a] * change[a][k] for a in range(k + 1)), Fraction(0)) for k in span] for row in ratio]
    return tuple(tuple(sum((change[a][j] * half[a][k] for a in range(j + 1)), Fraction(0)) for k in span) for j in span)


def _minimiser(form: Matrix) -> list[Fraction]:
    """Coefficients with c_0 = 1 that minimise the form, of the lowest degree that attains the minimum."""
    rows = [[*row[1:], -row[0]] for row in form[1:]]
    size = len(rows)
    for i in range(size):
        if not rows[i][i]:  # the measure has i points: a polynomial of degree i is zero on all of them
            size = i
            break
        for r in range(i + 1, size):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
    c = [Fraction(0)] * size
    for i in reversed(range(size)):
        c[i] = (rows[i][-1] - sum(rows[i][j] * c[j] for j in range(i + 1, size))) / rows[i][i]
    return [Fraction(1), *c]


def _coefficients(rates: Array) -> list[Fraction]:
    """Coefficients of p, in ascending order of powers; the first is 1."""
    c = [Fraction(1)]
    for rate in rates.tolist():
        c = [x - Fraction(rate) * y for x, y in zip([*c, Fraction(0)], [Fraction(0), *c], strict=True)]
    return c


def _value(form: Matrix, c: list[Fraction]) -> float:
    return float(sum(x * entry * y for x, row in zip(c, form, strict=True) for entry, y in zip(row, c, strict=True)))


def _value_and_slope(form: Matrix, rates: Array) -> tuple[float, Array]:
    """The error and its derivatives in the rates, in exact arithmetic so that nothing cancels."""
    c = _coefficients(rates)
    image = [sum(entry * y for entry, y in zip(row, c, strict=True)) for row in form]
    slopes = []
    for layer in range(len(rates)):
        others = [Fraction(0), *_coefficients(np.delete(rates, layer))]
        slopes.append(-2 * float(sum(x * y for x, y in zip(others, image, strict=True))))
    return float(sum(x * y for x, y in zip(c, image, strict=True))), np.array(slopes)
