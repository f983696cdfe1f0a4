r"""The spectrum of the sample covariance of Gaussian tasks, through its resolvent.

:math:`R_k = \frac1k\sum_{j\le k} w_j w_j^\top` with :math:`w_j\sim\mathcal N(0, I_d)`, in the limit
:math:`k, d\to\infty` with :math:`\kappa = k/d` fixed; :math:`\mathrm{tr}_d` is the trace over
:math:`d`. Every trace is written so that nothing cancels: neither where :math:`q\to0` and the atom of
weight :math:`1-\kappa` at zero dominates, nor where :math:`q\to\infty` and the traces of powers of
:math:`R_k` would be small differences of numbers near 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from icllab.core.domains import NON_NEGATIVE, POSITIVE_OR_INF
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Floats, Number, Numbers, plain, read


@np.errstate(all="ignore")
def stieltjes(q: Numbers, kappa: Numbers) -> Number:
    r"""The normalised trace of the resolvent of a Wishart matrix.

    .. math::
        M_\kappa(q) = \lim_{d\to\infty} \mathrm{tr}_d\,(R_k + qI)^{-1}
        = \frac{2}{q + 1 - 1/\kappa + \sqrt{(q + 1 - 1/\kappa)^2 + 4q/\kappa}}

    It is the positive root of :math:`\frac q\kappa M^2 + (q + 1 - \frac1\kappa)M - 1 = 0`; where the
    linear coefficient is negative the conjugate of the form above is used. :math:`M_\infty(q) = 1/(1+q)`;
    at :math:`q = 0` it is :math:`\kappa/(\kappa-1)` for :math:`\kappa > 1` and ``inf`` otherwise.
    Relative error against 80-digit arithmetic, :math:`q` in [1e-14, 1e14], :math:`\kappa` in
    [1e-3, 1e3]: below 6e-16 (1.2e-15 for the derivative).

    Args:
        q: :math:`q\ge 0`, minus the argument of the Stieltjes transform; broadcasts with ``kappa``.
        kappa: Tasks (samples) over dimension, :math:`\kappa = k/d > 0`; ``inf`` allowed.

    Returns:
        A float for two scalars, else a float64 array.

    Raises:
        InputError: A parameter is not a number of its domain, or the shapes do not broadcast.

    Source: [MarchenkoPastur67].
    """
    q, kappa = read(q=(q, NON_NEGATIVE), kappa=(kappa, POSITIVE_OR_INF))
    return plain(resolvent(q, kappa))


@np.errstate(all="ignore")
def stieltjes_derivative(q: Numbers, kappa: Numbers) -> Number:
    r"""The derivative of :func:`stieltjes` in its first argument, a negative number.

    .. math::
        M_\kappa'(q) = -\lim_{d\to\infty} \mathrm{tr}_d\,(R_k + qI)^{-2}
        = -\frac{M_\kappa(q)\,\bigl(1 + M_\kappa(q)/\kappa\bigr)}{\sqrt{(q + 1 - 1/\kappa)^2 + 4q/\kappa}}

    Arguments, shapes, errors and accuracy are those of :func:`stieltjes`; at :math:`q = 0` it is
    :math:`-(1-1/\kappa)^{-3}` for :math:`\kappa > 1` and ``-inf`` otherwise.

    Source: [MarchenkoPastur67].
    """
    q, kappa = read(q=(q, NON_NEGATIVE), kappa=(kappa, POSITIVE_OR_INF))
    scale, ratio, gap = _aspect(kappa)
    m = resolvent(q, kappa)
    return plain(-m * (scale + ratio * m) / _root(q, scale, ratio, gap))


class Traces(NamedTuple):
    r"""Traces of :math:`RG` and :math:`qG` with :math:`R = R_k`, a ridge :math:`q > 0` and :math:`G = (R_k + qI)^{-1}`.

    Since :math:`RG + qG = I`, ``gain + shrinkage`` and ``gain_squared + 2 * cross + shrinkage_squared`` are 1,
    and ``gain_squared + cross`` is ``gain``; each is a number in [0, 1] to full relative accuracy.
    """

    gain: Floats
    r""":math:`\mathrm{tr}_d\,RG`, the degrees of freedom per dimension."""
    shrinkage: Floats
    r""":math:`\mathrm{tr}_d\,qG = qM_\kappa(q)`."""
    gain_squared: Floats
    r""":math:`\mathrm{tr}_d\,(RG)^2 = 1 - 2qM_\kappa(q) - q^2M_\kappa'(q)`."""
    cross: Floats
    r""":math:`\mathrm{tr}_d\,RG\,qG`."""
    shrinkage_squared: Floats
    r""":math:`\mathrm{tr}_d\,(qG)^2 = -q^2M_\kappa'(q)`."""

    __repr__ = fields_repr
    _repr_html_ = fields_html


def traces(q: Floats, kappa: Floats) -> Traces:
    r"""All first and second traces at once; the arguments are arrays and are not checked.

    .. math::
        \mathrm{tr}_d\,RG = \frac{M}{1 + M/\kappa}, \qquad
        \mathrm{tr}_d\,RG\,qG = \frac qS\,\mathrm{tr}_d\,RG, \qquad
        \mathrm{tr}_d\,(RG)^2 = \frac{2q(1+\tfrac1\kappa) + (1-\tfrac1\kappa)^2}{S\,(S+q)}\,\mathrm{tr}_d\,RG

    with :math:`S` the square root in :func:`stieltjes`.

    Derived: docs/asymptotics.md, Traces that do not cancel.
    """
    scale, ratio, gap = _aspect(kappa)
    x, root = scale * q, _root(q, scale, ratio, gap)
    shrinkage = positive_root(ratio, x + gap, x)
    gain = scale * shrinkage / (x + ratio * shrinkage)
    return Traces(
        gain=gain,
        shrinkage=shrinkage,
        gain_squared=gain * ((2 * x * (scale + ratio) + gap**2) / (root + x)) / root,
        cross=gain * x / root,
        shrinkage_squared=shrinkage * (x + ratio * shrinkage) / root,
    )


def resolvent(q: Floats, kappa: Floats, tau: Floats | float = 1.0) -> Floats:
    r""":math:`M_{\kappa/\tau}(q)` for arrays that are not checked, without rounding :math:`\kappa - \tau` first."""
    scale, ratio, gap = _aspect(kappa, tau)
    return positive_root(ratio * q, scale * q + gap, scale)


@np.errstate(all="ignore")
def positive_root(square: Floats, linear: Floats, constant: Floats) -> Floats:
    r"""The positive root of ``square`` :math:`x^2` + ``linear`` :math:`x` = ``constant``, without cancellation."""
    root = np.hypot(linear, 2 * np.sqrt(square) * np.sqrt(constant))
    return np.where(linear >= 0, 2 * constant / (linear + root), (root - linear) / (2 * square))


def climbed(x: Floats, relative_step: Callable[[Floats], Floats]) -> Floats:
    """Newton's method on an increasing concave function; it climbs to the root from below in 1 to 60 steps."""
    for _ in range(200):
        step = relative_step(x)
        x = x * (1 + step)
        if np.all(np.abs(step) < 1e-10):  # convergence is quadratic: the next step would be rounding
            break
    return x


def least_terms(sums: Array) -> Floats:
    """The most accurate of equal sums, on axes (sum, term, ...): the one whose largest term is smallest."""
    largest = np.where(np.isfinite(sums), np.abs(sums), np.inf).max(axis=1)
    return np.take_along_axis(sums.sum(axis=1), largest.argmin(axis=0)[None], axis=0)[0]


def surplus(tau: Floats) -> Floats:
    r""":math:`1 - 1/\tau`, to full relative accuracy near 1."""
    return np.where(np.isinf(tau), 1.0, (tau - 1) / tau)


def _aspect(kappa: Floats, tau: Floats | float = 1.0) -> tuple[Floats, Floats, Floats]:
    r""":math:`(1, r, 1-r)\min(1, 1/r)` for :math:`r = \tau/\kappa`: never infinite, :math:`1-r` not rounded twice."""
    larger = np.maximum(kappa, tau)
    scale, gap = (np.where(np.isinf(kappa), 1.0, part / larger) for part in (kappa, kappa - tau))
    return scale, tau / larger, gap


def _root(q: Floats, scale: Floats, ratio: Floats, gap: Floats) -> Floats:
    """``scale`` times the square root in :func:`stieltjes`; positive for q > 0."""
    return np.hypot(scale * q + gap, 2 * np.sqrt(scale * ratio * q))
