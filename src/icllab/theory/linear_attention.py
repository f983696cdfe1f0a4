r"""In-context learning by linear attention: errors in the limit of large dimension.

Contexts hold :math:`\ell = \alpha d` pairs :math:`y_i = \langle x_i, w\rangle + \epsilon_i` with
:math:`x_i\sim\mathcal N(0, I_d/d)` and :math:`\epsilon_i\sim\mathcal N(0, \rho)`; pretraining sees
:math:`n = \tau d^2` of them, their :math:`w` drawn from a fixed pool of :math:`k = \kappa d` tasks
:math:`w_j\sim\mathcal N(0, I_d)`. The predictor is
:math:`\langle\Gamma, x_{\ell+1}h^\top\rangle` with :math:`h = (\frac d\ell\sum_i y_ix_i,\ \frac1\ell\sum_i y_i^2)`
and :math:`\Gamma` minimises the squared error over the :math:`n` contexts plus
:math:`\frac nd\lambda\lVert\Gamma\rVert_F^2`. Both errors count the label noise :math:`\rho`.

Everything is a function of the traces of :mod:`icllab.theory.wishart` at :math:`\nu = q + \xi`:

.. math::
    q = \frac{1+\rho}\alpha, \quad G = (R_k + \nu I)^{-1}, \quad A = R_k + qI, \quad
    D = \mathrm{tr}_d\,A^2G^2 .

Translation: :math:`q` is the slides' :math:`q^*`, which they print as :math:`(1+\rho)/\rho` by mistake;
their :math:`m^*` is :math:`M_\kappa(q)` and their :math:`\mu^*` is :math:`q\,M_{\kappa/\tau}(q)`.
"""

from typing import NamedTuple

import numpy as np

from icllab.core.domains import NON_NEGATIVE, POSITIVE_OR_INF, Domain
from icllab.theory.parameters import Floats, Number, Numbers, plain, read, scalings
from icllab.theory.wishart import Traces, climbed, least_terms, positive_root, resolvent, surplus, traces

_ENDLESS = "for alpha -> inf see large_context_limit"
_RANK = Domain(above=0, most=1, hint="the rank of the tasks is given over the dimension")
_LENGTH_RIDGE = Domain(above=0, hint="as alpha -> inf the ridge error tends to rho")


@np.errstate(all="ignore")
def icl_error(
    *, tau: Numbers, alpha: Numbers, kappa: Numbers, rho: Numbers, ridge: Numbers = 0.0, test_alpha: Numbers = None
) -> Number:
    r"""Error on fresh Gaussian tasks: in-context learning.

    .. math::
        e_{\mathrm{ICL}} = \rho + \nu^2\,\mathrm{tr}_d\,G^2 + \tilde q\,\mathrm{tr}_d\,R_k^2G^2
        + (1+\tilde q)\,\frac{e_{\mathrm{IDG}}}\tau\,\mathrm{tr}_d\,AG^2, \qquad
        \tilde q = \frac{1+\rho}{\tilde\alpha}

    with :math:`e_{\mathrm{IDG}}` from :func:`idg_error` at the length :math:`\alpha d` of pretraining, :math:`\nu`
    from :func:`effective_ridge`, and :math:`\tilde\alpha d` the length of the contexts of the test, which enters
    nowhere else.
    Without ridge it equals the two-branch formula of the slides [Letey24] once their misprint
    :math:`q^* = (1+\rho)/\rho` is read as :math:`(1+\rho)/\alpha`, and it diverges like
    :math:`1/|\tau-1|`: at :math:`\tau = 1` the answer is ``inf``.

    Args:
        tau: Pretraining contexts over squared dimension, :math:`\tau = n/d^2 > 0`; ``inf`` allowed.
        alpha: Context length over dimension, :math:`\alpha = \ell/d > 0`; finite (see :func:`large_context_limit`).
        kappa: Pretraining tasks over dimension, :math:`\kappa = k/d > 0`; ``inf`` (a fresh task in every context)
            allowed.
        rho: Variance of the label noise, :math:`\rho\ge 0`, where labels without noise have variance 1.
        ridge: Ridge of pretraining, :math:`\lambda\ge 0`; zero is the limit :math:`\lambda\to 0`, the estimator of
            minimum norm.
        test_alpha: Context length of the test over dimension, :math:`> 0`, ``inf`` allowed; None for ``alpha``.

    Returns:
        A float for scalars, else a float64 array of the broadcast shape.

    Raises:
        InputError: A parameter is not a number of its domain, or the shapes do not broadcast.

    Relative error against 110-digit arithmetic: below 1.2e-15 at 12000 points, :math:`\tau` in [1e-2, 1e3],
    :math:`\alpha` in [0.1, 1e4], :math:`\kappa` in [1e-2, 1e3], :math:`\rho` in [0, 10], :math:`\lambda`
    zero or in [1e-8, 1e2], many within 1e-15 to 0.1 of :math:`\tau = 1`, :math:`\kappa = 1` or
    :math:`\kappa = \tau`.

    Source: [Lu24].
    Derived: docs/asymptotics.md, The two errors; docs/asymptotics.md, Contexts of another length.
    """
    return plain(_solve(tau, alpha, kappa, rho, ridge, test_alpha).icl)


@np.errstate(all="ignore")
def idg_error(
    *, tau: Numbers, alpha: Numbers, kappa: Numbers, rho: Numbers, ridge: Numbers = 0.0, test_alpha: Numbers = None
) -> Number:
    r"""Error on new contexts of the pretraining tasks: in-distribution generalisation.

    .. math::
        e_{\mathrm{IDG}} = \frac{\rho + \nu^2\,\mathrm{tr}_d\,R_kG^2 + q\,\mathrm{tr}_d\,R_k^2G^2}{1 - D/\tau},
        \qquad
        1 - \frac D\tau = \frac\lambda\xi + \frac\xi\tau\,\mathrm{tr}_d\,AG^2 .

    Without ridge and for :math:`\tau > 1` this is
    :math:`\frac\tau{\tau-1}\,[\rho + q(1 - qM_\kappa(q))]`; at :math:`\tau = 1` it is ``inf``.
    On contexts of another length :math:`\tilde\alpha d`, with :math:`e_{\mathrm{IDG}}` that of the length of
    pretraining,

    .. math::
        \rho + \nu^2\,\mathrm{tr}_d\,R_kG^2 + \tilde q\,\mathrm{tr}_d\,R_k^2G^2
        + \frac{e_{\mathrm{IDG}}}\tau\,\mathrm{tr}_d\,(R_k+\tilde qI)\,AG^2 .

    At one length it is the smaller of the two errors wherever :math:`\xi\le q`, but not everywhere: for
    :math:`\rho > 1`, long contexts and :math:`\tau\to0` a fresh task is the easier one.

    Arguments, shapes, errors and accuracy are those of :func:`icl_error`.

    Derived: docs/asymptotics.md, The two errors; docs/asymptotics.md, Contexts of another length.
    """
    return plain(_solve(tau, alpha, kappa, rho, ridge, test_alpha).idg)


@np.errstate(all="ignore")
def effective_ridge(*, tau: Numbers, alpha: Numbers, kappa: Numbers, rho: Numbers, ridge: Numbers = 0.0) -> Number:
    r"""The effective ridge that stands for a finite number of contexts.

    :math:`\nu = q + \xi` takes the place of :math:`q` in the traces, and :math:`\xi` solves

    .. math::
        1 - \tau + \tau\,\frac\lambda\xi = \xi\,M_\kappa(q+\xi), \qquad
        \xi\big|_{\lambda=0} = \begin{cases} \dfrac{1-\tau}{\tau\,M_{\kappa/\tau}(q)} & \tau < 1 \\ 0 & \tau\ge1
        \end{cases}

    The root is unique, at least :math:`\lambda`, increasing in :math:`\lambda` and decreasing in
    :math:`\tau`; at :math:`\tau = \infty` it is :math:`\lambda`.
    Arguments, shapes, errors and accuracy are those of :func:`icl_error`.

    Derived: docs/asymptotics.md, The effective ridge.
    """
    tau, alpha, kappa, rho, ridge = read(**scalings(_ENDLESS, tau, alpha, kappa, rho, ridge))
    return plain(_effective_ridge(tau, (1 + rho) / alpha, kappa, ridge))


@np.errstate(all="ignore")
def ridge_error(*, alpha: Numbers, rho: Numbers) -> Number:
    r"""Error of ridge regression on one context, the Bayes predictor for isotropic Gaussian tasks.

    .. math::
        e_{\mathrm{ridge}} = \rho + \frac\rho\alpha\,M_\alpha\!\Bigl(\frac\rho\alpha\Bigr)

    (the subscript is :math:`\alpha`, for the spectrum of :math:`X^\top X`, not :math:`\kappa`). It does
    not depend on the pool of tasks. At :math:`\rho = 0` it is :math:`\max(1-\alpha, 0)`.
    Ranges: :math:`\alpha > 0` finite, :math:`\rho\ge0`; shapes and errors as for :func:`icl_error`.

    Args:
        alpha: Context length over dimension, :math:`\alpha = \ell/d > 0`; finite.
        rho: Variance of the label noise, :math:`\rho\ge 0`.

    Derived: docs/asymptotics.md, Ridge regression on one context.
    """
    alpha, rho = read(alpha=(alpha, _LENGTH_RIDGE), rho=(rho, NON_NEGATIVE))
    q = rho / alpha
    return plain(rho + np.where(q > 0, traces(q, alpha).shrinkage, np.maximum(1 - alpha, 0)))


def large_context_limit(*, kappa: Numbers, rho: Numbers, alpha_over_tau: Numbers, rank: Numbers = 1.0) -> Number:
    r"""Limit of the ridgeless :func:`icl_error` for many long contexts.

    It is the limit :math:`\alpha,\tau\to\infty` with :math:`\alpha/\tau` fixed, for tasks that are isotropic in a
    subspace of :math:`sd` dimensions and fresh tasks of the same subspace:

    .. math::
        e_{\mathrm{ICL}} \to \rho + \max\Bigl(1-\frac\kappa s, 0\Bigr)
        \Bigl(1 + \frac\rho{1+\rho}\,\frac\alpha\tau\Bigr)

    The slides [Letey24] print :math:`\tau/\alpha`; the ratio is :math:`\alpha/\tau`, and :math:`\tau`
    has to grow with :math:`\alpha`: at fixed :math:`\tau > 1` the limit is
    :math:`\rho\,[1 + \kappa/((\kappa-1)(\tau-1))]` for :math:`\kappa > 1 = s`, and there is none below.
    At :math:`\kappa = s` the excess over :math:`\rho` vanishes like :math:`\alpha^{-1/2}`.

    Ranges: :math:`\kappa > 0` (``inf`` allowed), :math:`\rho\ge0`, :math:`\alpha/\tau\ge0` finite,
    :math:`0 < s \le 1`; shapes and errors as for :func:`icl_error`.

    Args:
        kappa: Pretraining tasks over dimension, :math:`\kappa = k/d > 0`; ``inf`` allowed.
        rho: Variance of the label noise, :math:`\rho\ge 0`.
        alpha_over_tau: Limit of :math:`\alpha/\tau = \ell d/n\ge 0`; finite.
        rank: Dimensions that the tasks span over all, :math:`0 < s = r/d\le 1`; the tasks' covariance has trace d.

    Derived: docs/asymptotics.md, Long contexts and many of them; docs/alignment.md, Long contexts of low-rank tasks.
    """
    kappa, rho, alpha_over_tau, rank = read(
        kappa=(kappa, POSITIVE_OR_INF),
        rho=(rho, NON_NEGATIVE),
        alpha_over_tau=(alpha_over_tau, NON_NEGATIVE),
        rank=(rank, _RANK),
    )
    return plain(rho + np.maximum(1 - kappa / rank, 0) * (1 + rho / (1 + rho) * alpha_over_tau))


class _Errors(NamedTuple):
    idg: Floats
    icl: Floats


def _solve(tau: Numbers, alpha: Numbers, kappa: Numbers, rho: Numbers, ridge: Numbers, test_alpha: Numbers) -> _Errors:
    """Both errors, from sums of non-negative terms."""
    test = {} if test_alpha is None else {"test_alpha": (test_alpha, POSITIVE_OR_INF)}
    tau, alpha, kappa, rho, ridge, *lengths = read(**scalings(_ENDLESS, tau, alpha, kappa, rho, ridge), **test)
    q = (1 + rho) / alpha
    test_q = (1 + rho) / lengths[0] if lengths else q
    xi = _effective_ridge(tau, q, kappa, ridge)
    nu = q + xi
    t = traces(nu, kappa)
    spread = _spread(t, q / nu)
    # ridge / xi, by the equation for xi where that is a sum of positive terms (and 0/0 without ridge).
    ridge_share = np.where(tau >= 1, surplus(tau) + xi / nu * t.shrinkage / tau, ridge / xi)
    idg = (rho + nu * t.cross + q * t.gain_squared) / (ridge_share + xi / nu * spread / tau)
    icl = rho + t.shrinkage_squared + test_q * t.gain_squared + (1 + test_q) / nu * (spread / tau) * idg
    if lengths:
        noise_gain = t.gain_squared + (q + test_q) / nu * t.cross + q / nu * (test_q / nu) * t.shrinkage_squared
        idg = rho + nu * t.cross + test_q * t.gain_squared + idg / tau * noise_gain
    return _Errors(idg, icl)


def _effective_ridge(tau: Floats, q: Floats, kappa: Floats, ridge: Floats) -> Floats:
    ridgeless = np.where(tau < 1, (1 - tau) / (tau * resolvent(q, kappa, tau)), 0.0)
    # Three lower bounds on the root; the last replaces M(q + xi) by the larger M(q).
    quadratic = positive_root(resolvent(q, kappa) / tau, surplus(tau), ridge)

    def step(xi: Floats) -> Floats:
        nu = q + xi
        t = traces(nu, kappa)
        slope = ridge / xi + xi / nu * _spread(t, q / nu) / tau
        return np.where(ridge > 0, -_excess(tau, q, kappa, ridge, xi, t) / slope, 0.0)

    return climbed(np.where(ridge > 0, np.maximum(np.maximum(ridgeless, ridge), quadratic), ridgeless), step)


def _excess(tau: Floats, q: Floats, kappa: Floats, ridge: Floats, xi: Floats, t: Traces) -> Floats:
    r""":math:`1 - \frac1\tau - \frac\lambda\xi + \frac\xi\tau M_\kappa(q+\xi)`, zero at the effective ridge."""
    # Three equal sums, each right where its terms are small: the last for few tasks and long contexts, tau near kappa.
    nu, zero = q + xi, np.zeros_like(xi)
    sums = np.array(
        [
            [surplus(tau), -ridge / xi, xi / nu * t.shrinkage / tau, zero],
            [(xi - ridge) / xi, -t.gain / tau, -q / nu * t.shrinkage / tau, zero],
            [(tau - kappa) / tau, -ridge / xi, (kappa - 1) / tau * (q / nu), kappa / tau * xi * (t.gain / t.shrinkage)],
        ]
    )
    return least_terms(sums)


def _spread(t: Traces, share: Floats) -> Floats:
    r""":math:`\nu\,\mathrm{tr}_d\,AG^2` with :math:`A = R_k + qI` and ``share`` :math:`= q/\nu`."""
    return t.cross + share * t.shrinkage_squared
