r"""The spectrum of the sample covariance of tasks that are not isotropic, through its resolvent.

:math:`R_k = \frac1k\sum_{j\le k} w_jw_j^\top` with :math:`w_j\sim\mathcal N(0, C)` and :math:`k = \kappa d`.
All that a ridge :math:`\nu` on :math:`R_k` does to an eigenvector of :math:`C` is what a larger ridge :math:`t` does
to it on :math:`C` itself,

.. math::
    \nu = t\,\Bigl(1 - \frac1{\kappa d}\sum_i\frac{c_i}{c_i+t}\Bigr),

one equation in one unknown. At :math:`C = I` it is the quadratic one of :mod:`icllab.theory.wishart`. The
formulas take the spectrum at hand, of any dimension; nothing is a limit over the spectrum. Every trace is a sum of
non-negative terms.
"""

from typing import Annotated, NamedTuple

import numpy as np

from icllab.core.covariances import require_covariance
from icllab.core.domains import FINITE, NON_NEGATIVE, POSITIVE, POSITIVE_OR_INF
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Floats, Number, Numbers, plain, read
from icllab.theory.wishart import climbed, least_terms, positive_root

Covariance = Annotated[Numbers, "eigenvalues"]  # a number (isotropic), a vector (diagonal) or a symmetric matrix


@np.errstate(all="ignore")
def resolvent_trace(train: Covariance, q: Numbers, kappa: Numbers) -> Number:
    r"""The normalised trace of the resolvent of a sample covariance.

    .. math::
        M(q) = \lim\,\mathrm{tr}_d\,(R_k + qI)^{-1} = \frac1{qd}\sum_i\frac{t}{c_i + t}, \qquad
        q = t\,\Bigl(1 - \frac1{\kappa d}\sum_i\frac{c_i}{c_i+t}\Bigr)

    for :math:`k = \kappa d` samples of covariance ``train``. At the identity it is
    :func:`icllab.theory.wishart.stieltjes`.

    ``train`` has the errors of :func:`in_eigenbasis`. ``q``, minus the argument of the Stieltjes transform, is above 0
    and finite; ``kappa`` is above 0, ``inf`` allowed. The two broadcast.

    Args:
        train: :math:`C`, the covariance of a sample: eigenvalues or a matrix, as :func:`in_eigenbasis` takes it; none
            negative.
        q: :math:`q > 0`, minus the argument of the Stieltjes transform; finite.
        kappa: Samples over dimension, :math:`\kappa = k/d > 0`; ``inf`` allowed.

    Source: [MarchenkoPastur67].
    Derived: docs/alignment.md, The equivalent of the resolvent.
    """
    c, _ = in_eigenbasis(train, train)
    q, kappa = read(q=(q, POSITIVE), kappa=(kappa, POSITIVE_OR_INF))
    return plain(shares(c, q, kappa).shrinkage.mean(-1) / q)


def in_eigenbasis(train: Covariance, test: Covariance) -> tuple[Array, Array]:
    r"""Eigenvalues of the first covariance, and moments of the second along the eigenvectors of the first.

    .. math:: C = \sum_i c_iu_iu_i^\top, \qquad \tilde c_i = u_i^\top\tilde Cu_i

    The two commute where the :math:`\tilde c_i` are eigenvalues of :math:`\tilde C`; elsewhere they are less spread
    than those, and the rest of :math:`\tilde C` changes no error. Within an eigenspace of ``train`` of more than one
    dimension the :math:`\tilde c_i` depend on the basis, but their sum does not.

    Args:
        train: Covariance :math:`C`: a symmetric matrix [d, d], a vector [d] (a diagonal matrix), or a number (a
            multiple of the identity).
        test: :math:`\tilde C` likewise, in the same coordinates.

    Returns:
        Two float64 vectors of one length, in ascending order of the first. Two numbers are vectors of length 1.

    Raises:
        InputError: A covariance is not finite, symmetric and positive semidefinite, or of another dimension than
            the other; or ``train`` is zero.

    Derived: docs/alignment.md, The error on other tasks.
    """
    c, t = _covariance("train", train), _covariance("test", test)
    if c.ndim and t.ndim and len(c) != len(t):
        raise expected("test", f"a covariance of dimension {len(c)}, to match train", f"one of dimension {len(t)}")
    if max(c.ndim, t.ndim) == 2:
        dim = len(c) if c.ndim == 2 else len(t)
        full, test = (matrix if matrix.ndim == 2 else np.diag(np.broadcast_to(matrix, (dim,))) for matrix in (c, t))
        values, vectors = np.linalg.eigh(full)
        c = np.where(values > dim * np.finfo(float).eps * values[-1], values, 0.0)  # a rank is a whole number
        t = np.maximum(np.sum(vectors * (test @ vectors), axis=0), 0.0)
    else:
        c, t = np.broadcast_arrays(np.atleast_1d(c), np.atleast_1d(t))
        order = np.argsort(c, kind="stable")
        c, t = c[order], t[order]
    if not c.max() > 0:
        raise expected("train", "a covariance that is not zero", 0.0)
    return c, t


def power_law(dim: int, exponent: float) -> Array:
    r"""Eigenvalues that fall like a power of their rank, with mean one.

    .. math:: c_i = \frac{i^{-p}}{\frac1d\sum_jj^{-p}}, \qquad i = 1,\dots,d

    For :math:`p<1` they have a limiting distribution, that of :math:`(1-p)\,U^{-p}` with uniform :math:`U`; for
    :math:`p\ge1` they have none: a vanishing part of the directions takes the whole trace. A ``dim`` d below 1 or an
    ``exponent`` p below 0 raises an ``InputError``.

    Args:
        dim: :math:`d`, the number of eigenvalues; an integer of at least 1.
        exponent: :math:`p\ge 0`, how fast they fall with their rank.

    Derived: docs/alignment.md, Which limit is meant.
    """
    require_integer("dim", dim)
    (p,) = read(exponent=(exponent, NON_NEGATIVE))
    values = np.arange(1.0, dim + 1) ** -float(p)
    return values / values.mean()


def _covariance(name: str, value: object) -> Array:
    """A finite covariance of at most two axes, positive semidefinite to rounding."""
    (covariance,) = read(**{name: (value, FINITE)})
    if (
        covariance.ndim > 2
        or covariance.size == 0
        or (covariance.ndim == 2 and covariance.shape[0] != covariance.shape[1])
    ):
        raise expected(name, "a number, a vector [d] or a matrix [d, d]", f"shape {covariance.shape}")
    require_covariance(name, covariance)
    return covariance


class Shares(NamedTuple):
    r"""Effect of a ridge :math:`\nu` on each eigenvector of ``train``, on the last axis."""

    ridge: Floats
    r""":math:`t`, the ridge that has this effect on ``train`` itself; no last axis."""
    gain: Floats
    r""":math:`u_i`, of :math:`R_kG`."""
    shrinkage: Floats
    r""":math:`v_i`, of :math:`\nu G`."""
    gain_squared: Floats
    r""":math:`u_i(u_i+(1-\epsilon)v_i)`, of :math:`(R_kG)^2`."""
    cross: Floats
    r""":math:`\epsilon u_iv_i`, of :math:`R_kG\,\nu G`."""
    shrinkage_squared: Floats
    r""":math:`v_i(v_i+(1-\epsilon)u_i)`, of :math:`(\nu G)^2`."""

    __repr__ = fields_repr
    _repr_html_ = fields_html


def shares(c: Array, nu: Floats, kappa: Floats) -> Shares:
    r"""Effect of a ridge :math:`\nu > 0` on each eigenvector; the arguments are arrays and are not checked.

    With :math:`u_i = c_i/(c_i+t)`, :math:`v_i = 1-u_i` and
    :math:`\epsilon = \frac{d\log t}{d\log\nu} = \frac{\nu/t}{\nu/t + \frac1\kappa\mathrm{tr}_d\,uv}`,

    .. math::
        R_kG \simeq u, \quad \nu G \simeq v, \quad R_kG\,\nu G \simeq \epsilon uv, \quad
        (R_kG)^2 \simeq u\,(u + (1-\epsilon)v), \quad (\nu G)^2 \simeq v\,(v + (1-\epsilon)u)

    along the eigenvectors of :math:`C`.

    Derived: docs/alignment.md, The equivalent of the resolvent.
    """
    positive = c[c > 0]
    part = positive.size / c.size
    mean = positive.sum() / c.size
    # A lower bound: by Cauchy-Schwarz the sum over c_i / (c_i + t) is at least mean / (width + t).
    width = (positive @ positive) / positive.sum()

    def step(t: Floats) -> Floats:
        along = np.expand_dims(t, -1)
        gain = (positive / (positive + along)).sum(-1) / c.size
        shrinkage = (along / (positive + along)).sum(-1) / c.size
        product = (positive * along / (positive + along) ** 2).sum(-1) / c.size
        null_share = np.where(np.isinf(kappa), 1.0, (kappa - part) / kappa)
        sums = np.array([[np.ones_like(t), -nu / t, -gain / kappa], [null_share, -nu / t, shrinkage / kappa]])
        return -least_terms(sums) / (nu / t + product / kappa)

    t = climbed(positive_root(np.ones_like(nu), width - mean / kappa - nu, nu * width), step)
    along = np.expand_dims(t, -1)
    u, v = c / (c + along), along / (c + along)
    direct, sampled = nu / t, (u * v).mean(-1) / kappa
    slope, complement = (np.expand_dims(term / (direct + sampled), -1) for term in (direct, sampled))
    return Shares(t, u, v, u * (u + complement * v), slope * u * v, v * (v + complement * u))
