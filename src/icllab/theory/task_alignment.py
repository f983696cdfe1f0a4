r"""In-context learning by linear attention with anisotropic tasks, whose covariance at test differs from pretraining.

The setting of :mod:`icllab.theory.linear_attention`, but the pool is drawn from
:math:`w_j\sim\mathcal N(0, C)` and tested on tasks of another second moment :math:`\tilde C` and on
contexts of another length :math:`\tilde\alpha d`; inputs stay isotropic. With
:math:`\mathrm{tr}_d` the trace over :math:`d`,

.. math::
    q = \frac{\mathrm{tr}_d C+\rho}\alpha, \quad \tilde q = \frac{\mathrm{tr}_d\tilde C+\rho}{\tilde\alpha}, \quad
    \nu = q + \xi, \quad G = (R_k + \nu I)^{-1}, \quad A = R_k + qI .

:math:`R_k = \frac1k\sum_jw_jw_j^\top` meets the ridge :math:`\nu` as :math:`C` meets a larger one, :math:`t` of
:mod:`icllab.theory.sample_covariance`. So covariances matter only through the eigenvalues :math:`c_i` of
:math:`C` and the second moments :math:`\tilde c_i = u_i^\top\tilde C u_i` along its eigenvectors.

Translation: Letey et al.'s fixed point for :math:`s` is :math:`s = \nu/t`; our :math:`C` and :math:`\tilde C` are
their training and test task covariances.
"""

from typing import NamedTuple

import numpy as np

from icllab.core.domains import POSITIVE_OR_INF
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Floats, Number, Numbers, plain, read, scalings
from icllab.theory.sample_covariance import Covariance, in_eigenbasis, shares
from icllab.theory.wishart import climbed, least_terms, positive_root, surplus

_ENDLESS = "contexts of infinite length are for test_alpha alone"


@np.errstate(all="ignore")
def icl_error(
    train: Covariance,
    test: Covariance,
    *,
    tau: Numbers,
    alpha: Numbers,
    kappa: Numbers,
    rho: Numbers,
    ridge: Numbers = 0.0,
    test_alpha: Numbers = None,
) -> Number:
    r"""Error on tasks whose covariance is not the one of pretraining.

    .. math::
        e(\tilde C) = \rho + \nu^2\,\mathrm{tr}_d\,\tilde C G^2 + \tilde q\,\mathrm{tr}_d\,R_k^2G^2
        + \frac{e_{\mathrm{IDG}}}\tau\,\mathrm{tr}_d\,(\tilde C + \tilde qI)\,AG^2

    with :math:`e_{\mathrm{IDG}}` of :func:`idg_error` at the length of pretraining, and

    .. math::
        \nu^2\,\mathrm{tr}_d\,\tilde CG^2 = \frac1d\sum_i\tilde c_iv_i\,(v_i + (1-\epsilon)u_i), \qquad
        u_i = \frac{c_i}{c_i+t}, \quad v_i = 1 - u_i, \quad
        \epsilon = \frac{d\log t}{d\log\nu}

    and alike for the other traces. It is linear in the :math:`\tilde c_i`. Where :math:`\xi\le q`, their weight falls
    with :math:`c_i`: of test covariances of one trace that along the first eigenvector of ``train`` is the easiest,
    and a matched one is easier than an isotropic one.
    At ``train = test = 1`` it is :func:`icllab.theory.linear_attention.icl_error`.

    Args:
        train: Covariance :math:`C` of the pretraining tasks, of :func:`icllab.theory.sample_covariance.in_eigenbasis`.
            Its trace is not normalised.
        test: Second moment :math:`\tilde C` of the test tasks, likewise. Only its diagonal in the eigenbasis of
            ``train`` enters. Of a finite set of test tasks it is their :math:`\frac1m\sum_jw_jw_j^\top`, if they are
            independent of the pretraining pool.

    The other arguments, their ranges and shapes are those of :func:`icllab.theory.linear_attention.icl_error`.

    Raises:
        InputError: As there, or a parameter is not a number of its domain, or shapes do not broadcast.

    Relative error against 80-digit arithmetic: below 1e-13 at all points of the tests. At the identity it is within
    1.4e-15 of the isotropic formula, at 4000 points of the grid described there.

    Source: [LeteyTask25].
    Derived: docs/alignment.md, The error on other tasks.
    """
    state = _solve(train, test, tau, alpha, kappa, rho, ridge, test_alpha)
    test_values, rho, tau, test_q = state.test, state.rho, state.tau, state.test_q
    shrinkage = (test_values * state.shrinkage_squared).mean(-1)
    noise_gain = ((test_values + np.expand_dims(test_q, -1)) * state.variance).mean(-1)
    return plain(rho + shrinkage + test_q * state.gain_squared.mean(-1) + state.idg / tau * noise_gain)


@np.errstate(all="ignore")
def idg_error(
    train: Covariance,
    *,
    tau: Numbers,
    alpha: Numbers,
    kappa: Numbers,
    rho: Numbers,
    ridge: Numbers = 0.0,
    test_alpha: Numbers = None,
) -> Number:
    r"""Error on new contexts of the pretraining tasks, drawn with covariance ``train``.

    .. math::
        e_{\mathrm{IDG}} = \frac{\rho + \nu^2\,\mathrm{tr}_d\,R_kG^2 + q\,\mathrm{tr}_d\,R_k^2G^2}{1 - D/\tau},
        \qquad D = \mathrm{tr}_d\,A^2G^2,

    and on contexts of another length

    .. math::
        \rho + \nu^2\,\mathrm{tr}_d\,R_kG^2 + \tilde q\,\mathrm{tr}_d\,R_k^2G^2
        + \frac{e_{\mathrm{IDG}}}\tau\,\mathrm{tr}_d\,(R_k+\tilde qI)\,AG^2 .

    Arguments, shapes and errors are those of :func:`icl_error`.

    Derived: docs/alignment.md, The error on the pool.
    """
    state = _solve(train, None, tau, alpha, kappa, rho, ridge, test_alpha)
    rho, tau, test_q = state.rho, state.tau, state.test_q
    gain, cross, shrinkage = (part.mean(-1) for part in (state.gain_squared, state.cross, state.shrinkage_squared))
    noise_gain = gain + (state.q + test_q) / state.nu * cross + state.q / state.nu * (test_q / state.nu) * shrinkage
    other_length = rho + state.nu * cross + test_q * gain + state.idg / tau * noise_gain
    return plain(np.where(test_q == state.q, state.idg, other_length))


@np.errstate(all="ignore")
def effective_ridge(
    train: Covariance, *, tau: Numbers, alpha: Numbers, kappa: Numbers, rho: Numbers, ridge: Numbers = 0.0
) -> Number:
    r"""The effective ridge that stands for a finite number of contexts, for tasks of covariance ``train``.

    The root :math:`\xi` of

    .. math::
        1 - \tau + \tau\,\frac\lambda\xi = \xi\,M(q+\xi), \qquad
        M(\nu) = \lim\,\mathrm{tr}_d\,(R_k+\nu I)^{-1} = \frac1{\nu d}\sum_i\frac t{c_i+t},

    zero without ridge at :math:`\tau\ge1`. It is unique, at least :math:`\lambda`, increases with
    :math:`\lambda` and decreases with :math:`\tau`.
    Arguments, shapes and errors are those of :func:`icl_error`.

    Derived: docs/alignment.md, The effective ridge of other tasks.
    """
    return plain(_solve(train, None, tau, alpha, kappa, rho, ridge, None).xi)


class Noise(NamedTuple):
    r"""Mean squared deviation per dimension of :math:`\Gamma` from its mean :math:`\bar\Gamma = R_kG`."""

    square: Number
    r""":math:`\frac1d\mathbb E\lVert\Gamma_{:,1:d} - \bar\Gamma\rVert^2`, spread over :math:`d^2` entries."""
    last_column: Number

    __repr__ = fields_repr
    _repr_html_ = fields_html
    r""":math:`\mathbb E\lVert\Gamma_{:,d+1}\rVert^2`, of the :math:`d` entries on the labels' mean square."""


@np.errstate(all="ignore")
def gamma_noise(
    train: Covariance, *, tau: Numbers, alpha: Numbers, kappa: Numbers, rho: Numbers, ridge: Numbers = 0.0
) -> Noise:
    r"""Variance of the fitted matrix around the function of the pool that it estimates.

    Given the pool, :math:`\Gamma` is :math:`[R_kG,\ 0]` plus

    .. math::
        \frac1d\,\mathbb E\,\lVert\Gamma_{:,1:d} - R_kG\rVert^2
        &= \frac{e_{\mathrm{IDG}}}\tau\,\mathrm{tr}_d\,AG^2, \\
        \mathbb E\,\lVert\Gamma_{:,d+1}\rVert^2
        &= \frac\beta{s^2}\Bigl[\frac{e_{\mathrm{IDG}}}\tau
        \Bigl(\frac\nu t - \frac\xi\kappa\,\mathrm{tr}_d\,R_kG^2\Bigr)
        + \frac{\nu^2}\kappa\,\mathrm{tr}_d\,R_kG^2\Bigr], \qquad
        \beta = (\mathrm{tr}_d C + \rho)^2, \quad s = \beta\,\frac\nu t + \xi .

    In the eigenbasis of :math:`R_k` an entry of column :math:`j` has variance
    :math:`\frac{e_{\mathrm{IDG}}}{\tau d}\,\frac{r_j + q}{(r_j+\nu)^2}`. Inputs :math:`x\sim\mathcal N(0,\Sigma/d)`
    are the same without ridge at :math:`\tau>1`, with ``train`` :math:`=\Sigma^{1/2}C\Sigma^{1/2}` and
    :math:`\Sigma^{1/2}\Gamma` (of the square part :math:`\Sigma^{1/2}\Gamma\Sigma^{1/2}`) for :math:`\Gamma`.

    Arguments, shapes of the two fields, and errors are those of :func:`icl_error`.

    Derived: docs/alignment.md, The noise of the matrix.
    """
    state = _solve(train, None, tau, alpha, kappa, rho, ridge, None)
    kappa, scale = state.kappa, (state.test.mean() + state.rho) ** 2
    strength, cross = state.idg / state.tau, state.cross.mean(-1) / state.nu
    size = scale * state.share + state.xi
    last = strength * (state.share - state.xi / kappa * cross) + state.nu**2 / kappa * cross
    return Noise(plain(strength * state.variance.mean(-1)), plain(scale * last / size**2))


class _Solution(NamedTuple):
    """Arguments broadcast to one shape, and the terms of the errors, whose last axis runs over eigenvectors."""

    test: Array
    rho: Floats
    tau: Floats
    kappa: Floats
    test_q: Floats
    q: Floats
    xi: Floats
    nu: Floats
    idg: Floats
    share: Floats
    gain_squared: Floats
    cross: Floats
    shrinkage_squared: Floats
    variance: Floats


def _solve(train: Covariance, test: Covariance, *parameters: Numbers) -> _Solution:
    """Solve for the state of pretraining; if ``test`` is None, the test tasks have covariance ``train``."""
    c, test_values = in_eigenbasis(train, train if test is None else test)
    test_values = c if test is None else test_values
    *ratios, length = parameters
    length = ratios[1] if length is None else length
    tau, alpha, kappa, rho, ridge, length = read(**scalings(_ENDLESS, *ratios), test_alpha=(length, POSITIVE_OR_INF))
    q = (c.mean() + rho) / alpha
    xi = _effective_ridge(c, tau, q, kappa, ridge)
    nu = q + xi
    parts = shares(c, nu, kappa)
    shrinkage, gain_squared, cross, shrinkage_squared = (part.mean(-1) for part in parts[2:])
    spread = cross + q / nu * shrinkage_squared
    # ridge / xi, by the equation for xi where that is a sum of positive terms (and 0/0 without ridge).
    ridge_share = np.where(tau >= 1, surplus(tau) + xi / nu * shrinkage / tau, ridge / xi)
    idg = (rho + nu * cross + q * gain_squared) / (ridge_share + xi / nu * spread / tau)
    variance = (parts.cross + np.expand_dims(q / nu, -1) * parts.shrinkage_squared) / np.expand_dims(nu, -1)
    arguments = (test_values, rho, tau, kappa, (test_values.mean() + rho) / length)
    return _Solution(*arguments, q, xi, nu, idg, nu / parts.ridge, *parts[3:], variance)


def _effective_ridge(c: Array, tau: Floats, q: Floats, kappa: Floats, ridge: Floats) -> Floats:
    at_least = shares(c, q, kappa).shrinkage.mean(-1) / q  # M(q), which is larger than M(q + xi)
    fewer = np.where(tau < 1, (1 - tau) * np.maximum(1 / at_least, q / tau), 0.0)
    quadratic = positive_root(at_least / tau, surplus(tau), ridge)
    moving = (ridge > 0) | (tau < 1)
    part = np.count_nonzero(c) / c.size

    def step(xi: Floats) -> Floats:
        nu = q + xi
        parts = shares(c, nu, kappa)
        gain, shrinkage, _, cross, shrinkage_squared = (values.mean(-1) for values in parts[1:])
        shrinkage_inside = (parts.shrinkage * (c > 0)).mean(-1)
        zero, share = np.zeros_like(xi), xi / nu
        # Four sums that are equal to 1 - 1/tau - ridge/xi + xi M(q + xi) / tau, each right where its terms are small.
        sums = np.array(
            [
                [surplus(tau), -ridge / xi, share * shrinkage / tau, zero],
                [(xi - ridge) / xi, -gain / tau, -q / nu * shrinkage / tau, zero],
                [(tau - kappa) / tau, -ridge / xi, (kappa - 1) / tau * (q / nu), kappa / tau * (xi / parts.ridge)],
                [(tau - part) / tau, -ridge / xi, (part - 1) / tau * (q / nu), share * shrinkage_inside / tau],
            ]
        )
        slope = ridge / xi + share * (cross + q / nu * shrinkage_squared) / tau
        return np.where(moving, -least_terms(sums) / slope, 0.0)

    return climbed(np.where(ridge > 0, np.maximum(np.maximum(fewer, ridge), quadratic), fewer), step)
