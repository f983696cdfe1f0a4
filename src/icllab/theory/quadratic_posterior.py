r"""The exact posterior of a quadratic loss, and the learning coefficients that estimators must find for it.

The target is :math:`\exp(-n\beta K(w) - \frac\gamma2|w|^2)` with :math:`K = \frac12\sum_ih_iw_i^2`, in coordinates
around :math:`w^*` along the Hessian's eigenvectors: a Gaussian. Where a model is regular at the resolution
:math:`n\beta`, this is all there is to see.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from icllab.core.domains import FINITE, NON_NEGATIVE, POSITIVE
from icllab.core.errors import expected
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import read


def gaussian_coefficient(
    eigenvalues: Sequence[float] | np.ndarray, *, nbeta: float, localization: float = 0.0, step_size: float = 0.0
) -> float:
    r"""The estimate of a learning coefficient under the exact posterior, or under Langevin dynamics of a finite step.

    .. math::
        n\beta\,E[K] = \frac12\sum_i \frac{n\beta\,h_i}{n\beta\,h_i+\gamma}\cdot
                       \frac1{1-\frac\epsilon4(n\beta\,h_i+\gamma)}

    The first factor is the posterior's: directions with :math:`h_i\gg\gamma/n\beta` count a half each, and half the
    rank is the limit. The second is the bias of :math:`w \leftarrow w - \frac\epsilon2\nabla U + \sqrt\epsilon\,\xi`
    without a correction, whose stationary distribution has the variance of the posterior times it.

    Args:
        eigenvalues: :math:`h_i\ge 0` of the Hessian, in nats per squared unit of a parameter.
        nbeta: :math:`n\beta > 0`, the inverse temperature: samples over temperature.
        localization: :math:`\gamma\ge 0`, the inverse variance of the localizing prior.
        step_size: :math:`\epsilon\ge 0` of the dynamics; 0 for the posterior itself.

    Raises:
        InputError: A number is out of its range, or the chain diverges: :math:`\epsilon(n\beta\,h_i+\gamma) \ge 4`.

    Derived: docs/singular-learning.md, What an estimate estimates.
    """
    (h,) = read(eigenvalues=(eigenvalues, NON_NEGATIVE))
    beta, gamma = read(nbeta=(nbeta, POSITIVE), localization=(localization, NON_NEGATIVE))
    (step,) = read(step_size=(step_size, NON_NEGATIVE))
    pull = np.atleast_1d(beta * h)
    steepest = float(np.max(pull, initial=0.0) + gamma)
    if step * steepest >= 4:
        raise expected("step_size", f"below {4 / steepest:.3g}, where the chain diverges", float(step))
    share = np.divide(pull, pull + gamma, out=np.zeros_like(pull), where=pull > 0)
    return float(np.sum(share / (1 - step * (pull + gamma) / 4)) / 2)


class Terms(NamedTuple):
    r"""Contributions of the terms of a loss to a learning coefficient.

    Attributes:
        estimate: :math:`n\beta\,E[L_t - L_t(w^*)]`, which sum to the coefficient of the whole.
        covariance: Covariance of :math:`n\beta\,(L_t - L_t(w^*))` under the posterior.
    """

    estimate: np.ndarray
    covariance: np.ndarray

    __repr__ = fields_repr
    _repr_html_ = fields_html


def contributions(
    hessians: Sequence[np.ndarray] | np.ndarray,
    *,
    nbeta: float,
    localization: float = 0.0,
    gradients: Sequence[np.ndarray] | np.ndarray | None = None,
) -> Terms:
    r"""The contributions of terms that are quadratic in the same parameters.

    .. math::
        L_t = L_t(w^*) + g_t^\top\delta + \frac12\delta^\top H_t\delta, \qquad \delta = w - w^*, \qquad
        A = n\beta\sum_tH_t + \gamma

    .. math::
        n\beta\,E[L_t - L_t(w^*)] = \frac{n\beta}2\operatorname{tr}H_tA^{-1}, \qquad
        \operatorname{Cov}_{ts} = (n\beta)^2\Bigl(g_t^\top A^{-1}g_s
                                + \frac12\operatorname{tr}H_tA^{-1}H_sA^{-1}\Bigr)

    A term by itself need not be least at :math:`w^*`, nor have a Hessian without negative eigenvalues: only the sum
    has. A term's contribution may therefore be negative.

    Args:
        hessians: :math:`H_t`, one symmetric matrix for each term.
        nbeta: The inverse temperature :math:`n\beta`.
        localization: :math:`\gamma`.
        gradients: :math:`g_t`, which sum to zero; None: all are zero.

    Raises:
        InputError: An argument has another shape, or A has an eigenvalue that is not positive: there is no posterior.

    Derived: docs/learning-machine.md, Contributions of terms that share parameters.
    """
    beta, gamma = read(nbeta=(nbeta, POSITIVE), localization=(localization, NON_NEGATIVE))
    h = FINITE.read("hessians", hessians)
    if h.ndim != 3 or h.shape[1] != h.shape[2]:
        raise expected("hessians", "square matrices, one for each term", list(h.shape))
    scale = float(np.abs(h).max(initial=0.0)) or 1.0
    if not np.abs(h - h.transpose(0, 2, 1)).max(initial=0.0) <= 1e-10 * scale:
        raise expected("hessians", "symmetric matrices", "matrices that are not")
    g = np.zeros(h.shape[:2]) if gradients is None else np.asarray(gradients, np.float64)
    if g.shape != h.shape[:2]:
        raise expected("gradients", f"one vector for each term, of shape {h.shape[:2]}", g.shape)
    if not np.abs(g.sum(axis=0)).max(initial=0.0) <= 1e-8 * np.abs(g).max(initial=1.0):
        raise expected("gradients", "vectors that sum to zero, as at a minimum of the sum", "another sum")
    values, vectors = np.linalg.eigh(float(beta) * h.sum(axis=0) + float(gamma) * np.eye(h.shape[1]))
    if not values.min(initial=np.inf) > 0:
        raise expected("hessians", "a sum that is positive definite, with the localization", float(values.min()))
    # In coordinates that are standard normal under the posterior.
    standard = vectors / np.sqrt(values)
    curvatures = float(beta) * (standard.T @ h @ standard)
    slopes = float(beta) * (g @ standard)
    covariance = slopes @ slopes.T + np.einsum("tij,sji->ts", curvatures, curvatures) / 2
    return Terms(np.trace(curvatures, axis1=1, axis2=2) / 2, covariance)
