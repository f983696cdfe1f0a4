r"""Smallest error of L steps of gradient descent, or of GD++, in context with step sizes that are fixed in advance.

Inputs :math:`x\sim\mathcal N(0, \Sigma)`, tasks :math:`w\sim\mathcal N(0, \Sigma^{-1})` (for the identity: the
isotropic case), n examples without noise. What is left of the task after L steps is a polynomial in the sample
covariance S of the whitened inputs, and the error on the query is

.. math:: \mathbb E\,(y - \hat y)^2 = \mathbb E\,\mathrm{tr}\,p_L(S)^2 = d\int p_L(s)^2\,d\mu(s),

an integral over the mean spectrum alone, taken by a Gauss rule that is exact for it. Nothing is sampled: a few draws
would carry the sample mean. Throughout ``dim`` is d, ``length`` n and ``layers`` L, integers of at least 1: another
number raises an ``InputError``.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, least_squares

from icllab.core.domains import FINITE
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.finite_wishart import gauss_rule, sample_rule
from icllab.theory.parameters import Array, read

_SETTINGS: Any = {"method": "lm", "xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14}


class Steps(NamedTuple):
    """Step sizes of L layers, contractions (0 without GD++; the last has effect 0), and the error they reach."""

    rates: Array
    contractions: Array
    loss: float

    __repr__ = fields_repr
    _repr_html_ = fields_html


class Search(NamedTuple):
    """Result of a search from many starting points: the lowest end point, and all end values in ascending order."""

    best: Steps
    losses: Array

    __repr__ = fields_repr
    _repr_html_ = fields_html


def loss(rates: npt.ArrayLike, contractions: npt.ArrayLike | None = None, *, dim: int, length: int) -> float:
    r"""The error of L steps of gradient descent or GD++ with given numbers.

    .. math::
        p_l(s) = p_{l-1}(s)\,\bigl(1 - a_ls\,h_{l-1}(s)^2\bigr), \qquad
        h_l(s) = h_{l-1}(s)\,\bigl(1 - a_lb_ls\,h_{l-1}(s)^2\bigr), \qquad p_0 = h_0 = 1,

    and the error is :math:`\mathbb E\,\mathrm{tr}\,p_L(S)^2`. Without ``contractions`` (all :math:`b_l = 0`),
    :math:`p_L(s) = \prod_l(1 - a_ls)`. Exact to rounding: the Gauss rule has :math:`\deg p_L + 1` points, which is
    :math:`L+1` for gradient descent and :math:`(3^L+1)/2` for GD++. ``rates`` are the :math:`a_l` and ``contractions``
    the :math:`b_l`, finite and as many; the last contraction has no effect.

    Args:
        rates: :math:`a_l`, the step size of each layer, in inverse units of the covariance's eigenvalues; finite.
        contractions: :math:`b_l`, which make the steps those of GD++; finite, as many as ``rates``. None for 0 in every
            layer.
        dim: :math:`d`, the dimension of inputs and tasks; an integer of at least 1.
        length: :math:`n`, the number of examples in a context; an integer of at least 1.

    Source: [vonOswald23].
    Derived: docs/constructions.md, Steps as a polynomial.
    """
    a, b = _numbers(rates, contractions)
    points, weights = _rule(dim, length, len(a), plain=not b[:-1].any())
    return float(weights @ _left(points, a, a * b)[0] ** 2)


def free_steps(*, dim: int, length: int, layers: int) -> Steps:
    r"""The best step sizes for L steps of gradient descent, one for each layer.

    .. math:: \min_{\deg p\le L,\;p(0)=1}\mathbb E\,\mathrm{tr}\,p(S)^2 = \frac1{[H^{-1}]_{00}}, \qquad
              H_{jk} = \mathbb E\,\mathrm{tr}\,S^{j+k}, \quad j, k = 0,\dots,L

    The minimiser is the polynomial of degree L orthogonal to lower ones under :math:`s\,d\mu(s)`, so its roots are
    real, positive and distinct, and the step sizes are their inverses: one over the points of the Gauss rule of
    :math:`s\,d\mu(s)`. One step has size :math:`n/(n+d+1)` and error :math:`d(d+1)/(n+d+1)`. Steps are in descending
    order, which has no effect.

    Args:
        dim: :math:`d`, the dimension of inputs and tasks; an integer of at least 1.
        length: :math:`n`, the number of examples in a context; an integer of at least 1.
        layers: :math:`L`, the number of steps; an integer of at least 1.

    Derived: docs/constructions.md, The best steps are the nodes of a Gauss rule.
    """
    require_integer("layers", layers)
    rates = 1 / gauss_rule(dim, length, layers, tilt=1).points
    return Steps(rates, np.zeros(layers), loss(rates, dim=dim, length=length))


def tied_steps(*, dim: int, length: int, layers: int) -> Steps:
    r"""The best step size that all L steps of gradient descent share.

    .. math:: \min_a\;\mathbb E\,\mathrm{tr}\,(I - aS)^{2L}

    a convex function of a, minimised where its derivative is zero.

    Args:
        dim: :math:`d`, the dimension of inputs and tasks; an integer of at least 1.
        length: :math:`n`, the number of examples in a context; an integer of at least 1.
        layers: :math:`L`, the number of steps; an integer of at least 1.

    Derived: docs/constructions.md, Steps as a polynomial.
    """
    require_integer("layers", layers)
    points, weights = gauss_rule(dim, length, layers + 1)

    def slope(a: float) -> float:
        return float(-(weights * points) @ (1 - a * points) ** (2 * layers - 1))

    # At zero the slope is -1; at two over the smallest point every term has turned.
    rate = brentq(slope, 0.0, 2 / points[0], xtol=1e-15, rtol=4 * np.finfo(float).eps)
    rates = np.full(layers, rate)
    return Steps(rates, np.zeros(layers), loss(rates, dim=dim, length=length))


def plus_plus(
    *, dim: int, length: int, layers: int, tied: bool = False, starts: int = 64, spectra: npt.ArrayLike | None = None
) -> Search:
    r"""The best step sizes and contractions of GD++ that a search from many starting points finds.

    .. math:: \min_{a,b}\;\mathbb E\,\mathrm{tr}\,p_L(S)^2 = \min_{a,b}\sum_i\bigl(\sqrt{d\,w_i}\,p_L(s_i)\bigr)^2

    with the recursion of :func:`loss`: a sum of squares over the points of a Gauss rule that is exact for it, minimised
    by Levenberg and Marquardt's method from drawn starting points (the same ones in every call). There are many local
    minima, so the value is an upper bound of the least error, exact for the numbers returned; ``losses`` tells how many
    starts reached it. For three layers one in four does at d = 5, n = 20 and one in nine at d = 10, n = 20; for four
    layers one in two hundred.

    From three layers on the exact error is in part that of eigenvalues that no simulation will ever draw. With
    ``spectra`` the mean over given draws is minimised instead.

    The Gauss rule takes a second for four layers and about a minute for five.

    Args:
        dim: :math:`d`, the dimension of inputs and tasks; an integer of at least 1.
        length: :math:`n`, the number of examples in a context; an integer of at least 1.
        layers: :math:`L`, the number of steps; an integer of at least 1.
        tied: Whether all layers share :math:`a` and :math:`b`.
        starts: Number of starting points; an integer of at least 1.
        spectra: Eigenvalues of drawn sample covariances, [draw, d], finite; None for the exact mean.

    Source: [vonOswald23], [Ahn23].
    Derived: docs/constructions.md, Steps as a polynomial.
    """
    require_integer("layers", layers)
    require_integer("starts", starts)
    points, weights = _rule(dim, length, layers, plain=layers == 1, spectra=spectra)
    scale = np.sqrt(weights)
    unknowns = 1 + (layers > 1)

    def parts(unknown: Array) -> tuple[Array, Array]:
        """Split the parameters into rates, and rates times contractions."""
        if tied:
            return np.full(layers, unknown[0]), np.full(layers, unknown[-1] if layers > 1 else 0.0)
        return unknown[:layers], np.append(unknown[layers:], 0.0)

    def residuals(unknown: Array) -> Array:
        return scale * _left(points, *parts(unknown))[0]

    def jacobian(unknown: Array) -> Array:
        _, by_rate, by_product = _left(points, *parts(unknown))
        columns = [by_rate.sum(axis=0), by_product.sum(axis=0)][:unknowns] if tied else [*by_rate, *by_product[:-1]]
        return scale[:, None] * np.stack(columns, axis=1)

    rng = np.random.default_rng(layers)
    ends: list[tuple[float, tuple[float, ...]]] = []
    for _ in range(starts):
        growth = rng.uniform(1.0, 4.0)  # later layers see smaller inputs, and take larger steps
        rates = rng.uniform(0.1, 0.9, layers) * growth ** np.arange(layers)
        products = rng.uniform(0.1, 0.9, layers - 1) * (growth / 1.5) ** np.arange(layers - 1)
        first = np.append(rates[:1], products[:1]) if tied else np.append(rates, products)
        fit = least_squares(residuals, first, jacobian, **_SETTINGS)  # pyright: ignore[reportArgumentType]
        ends.append((2 * float(fit.cost), tuple(fit.x)))
    ends.sort()
    rates, products = parts(np.array(ends[0][1]))
    return Search(Steps(rates, products / rates, ends[0][0]), np.array([value for value, _ in ends]))


def _rule(dim: int, length: int, layers: int, *, plain: bool, spectra: object = None) -> tuple[Array, Array]:
    """Points, and weights times d, of a quadrature that is exact for the squared polynomial of L layers."""
    nodes = 1 + (layers if plain else (3**layers - 1) // 2)
    if spectra is None:
        points, weights = gauss_rule(dim, length, nodes)
    else:
        (eigenvalues,) = read(spectra=(spectra, FINITE))
        if eigenvalues.ndim != 2 or eigenvalues.shape[1] != dim:
            raise expected("spectra", f"eigenvalues [draw, {dim}]", f"shape {eigenvalues.shape}")
        points, weights = sample_rule(eigenvalues.reshape(-1), nodes)
    return points, dim * weights


def remainder(eigenvalues: npt.ArrayLike, rates: npt.ArrayLike, contractions: npt.ArrayLike | None = None) -> Array:
    r"""Part of the task that remains after L steps along an eigenvector of the sample covariance.

    .. math:: w - w_L = p_L(S)\,w

    with the polynomial and the arguments of :func:`loss`, and eigenvalues of any shape. The sum of its squares over the
    eigenvalues of one drawn S is that draw's share of the error; the mean over draws is carried by few of them where L
    is 3 or more.

    Args:
        eigenvalues: :math:`s`, eigenvalues of a sample covariance; finite.
        rates: :math:`a_l`, the step size of each layer, in inverse units of the covariance's eigenvalues; finite.
        contractions: :math:`b_l`, which make the steps those of GD++; finite, as many as ``rates``. None for 0 in every
            layer.

    Derived: docs/constructions.md, Steps as a polynomial.
    """
    (points,) = read(eigenvalues=(eigenvalues, FINITE))
    a, b = _numbers(rates, contractions)
    return _left(points.reshape(-1), a, a * b)[0].reshape(points.shape)


def _numbers(rates: npt.ArrayLike, contractions: npt.ArrayLike | None) -> tuple[Array, Array]:
    a = np.array(read(rates=(rates, FINITE))[0])
    b = np.zeros_like(a) if contractions is None else np.array(read(contractions=(contractions, FINITE))[0])
    for name, values in (("rates", a), ("contractions", b)):
        if values.ndim != 1 or not values.size:
            raise expected(name, "a list of numbers, one for each layer", f"shape {values.shape}")
    if len(a) != len(b):
        raise expected("contractions", f"{len(a)} numbers, one for each rate", len(b))
    return a, b


def _left(points: Array, rates: Array, products: Array) -> tuple[Array, Array, Array]:
    """p_L at the points, and its derivatives in each rate and in each product of a rate and its contraction."""
    layers = len(rates)
    p, h = np.ones_like(points), np.ones_like(points)
    # Derivatives of (p, h) by each number, carried along.
    p_by, h_by = np.zeros((2, 2, layers, len(points)))
    for i, (a, c) in enumerate(zip(rates, products, strict=True)):
        square = points * h**2
        twice = 2 * points * h
        p_by = p_by * (1 - a * square) - p * a * twice * h_by
        h_by = h_by * (1 - 3 * c * square)
        p_by[0, i] -= p * square
        h_by[1, i] -= h * square
        p, h = p * (1 - a * square), h * (1 - c * square)
    return p, p_by[0], p_by[1]
