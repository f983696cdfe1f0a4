r"""The mean spectrum of a sample covariance at finite size, without sampling: exact moments and exact quadrature.

:math:`S = \frac1n\sum_{i\le n} x_ix_i^\top` with :math:`x_i\sim\mathcal N(0, I_d)`, and the mean spectral measure

.. math:: \int f\,d\mu = \frac1d\,\mathbb E\,\mathrm{tr}\,f(S) .

Moments are rational numbers, and are computed as such. A Gauss rule of N points, made of :math:`2N` of them,
integrates every polynomial of degree below :math:`2N` exactly: what a sample mean resolves badly, since a few draws
with a large eigenvalue carry it, is here a sum of N positive terms. Throughout ``dim`` is d, ``length`` n and ``nodes``
N, integers of at least 1: another number raises an ``InputError``.
"""

from fractions import Fraction
from functools import lru_cache
from math import comb
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh_tridiagonal

from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array


def moments(dim: int, length: int, order: int) -> tuple[Fraction, ...]:
    r"""The exact moments of the mean spectrum of a finite Wishart matrix.

    .. math::
        m_k = \frac1d\,\mathbb E\,\mathrm{tr}\,S^k
        = \frac1{n^k}\sum_{(k_1,\dots,k_h)} \prod_{j=1}^{h-1}\binom{k_j+k_{j+1}-1}{k_{j+1}}
          \prod_{j=1}^{h} r_j(r_j+2)\cdots(r_j+2k_j-2)

    over the compositions of k into positive parts, with :math:`r = n, d-1, n-1, d-2, n-2, \dots`: the walks on the
    bidiagonal form of a Wishart matrix. O(order^3 min(dim, length, order)) products of integers. Returned are
    :math:`m_0, \dots, m_{\text{order}}` as fractions.

    Derived: docs/constructions.md, Moments of a sample covariance.
    """
    for name, value, least in (("dim", dim, 1), ("length", length, 1), ("order", order, 0)):
        require_integer(name, value, least=least)
    return _moments(int(dim), int(length), int(order))


@lru_cache(maxsize=64)
def _moments(dim: int, length: int, order: int) -> tuple[Fraction, ...]:
    total = [1] + [0] * order
    # walks[k][s]: walks with k steps up the last edge met so far, and s steps up in all.
    walks = [[0] * (order + 1) for _ in range(order + 1)]
    # Degrees of freedom along the bidiagonal form: n, d-1, n-1, d-2, ...; the walk ends at the first zero.
    steps_down = range(max(dim, length) + 1)
    for edge, degrees in enumerate(r for step in steps_down for r in (length - step, dim - step - 1)):
        if degrees == 0 or edge >= order:
            break
        chi = [1]
        for k in range(order):
            chi.append(chi[-1] * (degrees + 2 * k))
        after = [[0] * (order + 1) for _ in range(order + 1)]
        for k in range(1, order + 1 - edge):
            if edge == 0:
                after[k][k] = chi[k]
                continue
            for s in range(edge + k, order + 1):
                steps = sum(comb(before + k - 1, k) * walks[before][s - k] for before in range(1, s - k + 1))
                after[k][s] = chi[k] * steps
        walks = after
        for s in range(1, order + 1):
            total[s] += sum(walks[k][s] for k in range(1, s + 1))
    return tuple(Fraction(value, length**k) for k, value in enumerate(total))


class Rule(NamedTuple):
    """A Gauss rule: the mean of ``f`` is about ``weights @ f(points)``."""

    points: Array
    weights: Array

    __repr__ = fields_repr
    _repr_html_ = fields_html


@lru_cache(maxsize=64)
def gauss_rule(dim: int, length: int, nodes: int, tilt: int = 0) -> Rule:
    r"""Points and weights that integrate polynomials over the mean spectrum exactly.

    .. math:: \int s^t f(s)\,d\mu(s) = \sum_{i=1}^N w_i f(s_i), \qquad \deg f < 2N, \quad w_i > 0,\; s_i > 0

    The recurrence coefficients are made of exact moments in rational arithmetic, where nothing is rounded; the points
    are the eigenvalues of the Jacobi matrix, and :math:`1/w_i = \sum_{k<N}\pi_k(s_i)^2/\|\pi_k\|^2`. ``tilt`` is t, 0
    or 1: the measure, or the measure times s.

    Derived: docs/constructions.md, A Gauss rule for the spectrum.
    """
    require_integer("nodes", nodes)
    if tilt not in (0, 1):
        raise expected("tilt", "0 or 1", tilt)
    return _rule(*recurrence(moments(dim, length, 2 * nodes - 1 + tilt)[tilt:]))


def sample_rule(values: Array, nodes: int) -> Rule:
    r"""The Gauss rule of a sample: exact for the sample mean of every polynomial of low degree.

    .. math:: \frac1m\sum_{j\le m}f(v_j) = \sum_{i=1}^Nw_if(s_i), \qquad \deg f < 2N

    N points that stand for more than N different values :math:`v_j`: Lanczos's method on the diagonal matrix of values,
    with full orthogonalisation. O(m N^2).

    Derived: docs/constructions.md, A Gauss rule for the spectrum.
    """
    require_integer("nodes", nodes)
    if len(np.unique(values)) <= nodes:
        raise expected("values", f"more than {nodes} different numbers", len(np.unique(values)))
    basis = [np.full(len(values), len(values) ** -0.5)]
    diagonal, squares = [], []
    for _ in range(nodes):
        vector = values * basis[-1]
        diagonal.append(basis[-1] @ vector)
        for _ in range(2):  # once leaves the rounding of the first projection
            for earlier in basis:
                vector = vector - (earlier @ vector) * earlier
        squares.append(vector @ vector)
        basis.append(vector / np.sqrt(squares[-1]))
    return _rule(1.0, np.array(diagonal), np.array(squares[:-1]))


def _rule(mass: float, diagonal: Array, squares: Array) -> Rule:
    points = np.asarray(eigh_tridiagonal(diagonal, np.sqrt(squares), eigvals_only=True), np.float64)
    # The first entries of the eigenvectors, squared, are the weights too, but small ones are lost to rounding there.
    before, now, total = np.zeros_like(points), np.ones_like(points), np.ones_like(points)
    for k in range(len(squares)):
        below = np.sqrt(squares[k - 1]) * before if k else 0.0
        before, now = now, ((points - diagonal[k]) * now - below) / np.sqrt(squares[k])
        total = total + now**2
    return Rule(points, mass / total)


def recurrence(values: tuple[Fraction, ...]) -> tuple[float, Array, Array]:
    r"""The recurrence coefficients of the orthogonal polynomials of a measure with given moments.

    .. math:: \pi_{k+1}(s) = (s - \alpha_k)\,\pi_k(s) - \beta_k\,\pi_{k-1}(s)

    Chebyshev's algorithm in exact arithmetic, from :math:`m_0, \dots, m_{2N-1}` to :math:`m_0`, the N values of
    :math:`\alpha` and the N - 1 values of :math:`\beta`, rounded once.

    Derived: docs/constructions.md, A Gauss rule for the spectrum.
    """
    count = len(values) // 2
    before: list[Fraction] = [Fraction(0)] * len(values)
    row = list(values)
    alpha, beta = [values[1] / values[0]], [Fraction(0)]
    for k in range(1, count):
        after = [Fraction(0)] * len(values)
        for j in range(k, 2 * count - k):
            after[j] = row[j + 1] - alpha[-1] * row[j] - beta[-1] * before[j]
        alpha.append(after[k + 1] / after[k] - row[k] / row[k - 1])
        beta.append(after[k] / row[k - 1])
        before, row = row, after
    return float(values[0]), np.array([float(a) for a in alpha]), np.array([float(b) for b in beta[1:]])
