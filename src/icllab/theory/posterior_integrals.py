r"""Posteriors that are low-dimensional integrals: free energies and moments of singular models, by quadrature.

They hold at every n, under a standard normal prior, where expansions in :math:`\log n` have still a remainder of order
one. In each model all parameters but one or two are Gaussian given the others, and are integrated out exactly.
"""

from typing import NamedTuple

import numpy as np
from scipy.integrate import simpson
from scipy.optimize import root_scalar
from scipy.special import i0e

from icllab.core.domains import FINITE, NON_NEGATIVE, POSITIVE
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Numbers, read


class Half(NamedTuple):
    """One side of the cusp: its free energy in nats, and the mean of x there."""

    free_energy: float
    mean: float

    __repr__ = fields_repr
    _repr_html_ = fields_html


class Term(NamedTuple):
    """One of several terms of a loss: the mean of :math:`n\beta K_c`, its variance, and its covariance with another."""

    mean: float
    variance: float
    covariance: float

    __repr__ = fields_repr
    _repr_html_ = fields_html


def cusp(side: str, n: float, *, split: float, tilt: float, free: float) -> Half:
    r"""The posterior of a tilted cusp on one side of x = 0; one of its wells determines more directions than the other.

    .. math::
        L(x, y) = \frac{x^4}4 - \frac p2x^2 - qx + \frac12(x+1)^2|y|^2, \quad y\in\mathbb R^d, \qquad
        Z = \int\varphi(x)\,e^{-n(\frac{x^4}4-\frac p2x^2-qx)}\bigl(1+n(x+1)^2\bigr)^{-d/2}dx

    with p ``split``, q ``tilt``, d ``free`` and :math:`\varphi` the normal density. The free energy is
    :math:`-\log Z`, for wells within :math:`|x| < 4`.

    Raises:
        InputError: An unknown side, or a number out of its range: n > 0, d >= 0.

    Derived: docs/free-energies.md, A family with a known diagram.
    """
    if side not in ("left", "right"):
        raise expected("side", "'left' or 'right'", side)
    read(n=(n, POSITIVE), split=(split, FINITE), tilt=(tilt, FINITE), free=(free, NON_NEGATIVE))
    x = (1 if side == "right" else -1) * np.linspace(0, 4, 4001)
    logarithm = -n * (x**4 / 4 - split * x**2 / 2 - tilt * x) - x**2 / 2 - np.log(2 * np.pi) / 2
    logarithm -= free / 2 * np.log1p(n * (x + 1) ** 2)
    top = logarithm.max()
    density = np.exp(logarithm - top)
    total = simpson(density, dx=0.001)
    return Half(float(-top - np.log(total)), float(simpson(x * density, dx=0.001) / total))


def cusp_line(n: float, *, split: float, free: float) -> float:
    r"""The tilt q at which the two sides of the :func:`cusp` have equal posterior probability.

    Without free directions it is 0. With them it is :math:`\frac{d\log n}{4n}` at p = 1, to leading order.

    Args:
        n: :math:`n`, the number of samples, :math:`> 0`.
        split: :math:`p`, minus the curvature at 0: the wells are at about :math:`-\sqrt p` and :math:`\sqrt p`; finite.
        free: :math:`d\ge 0`, the number of directions that the right well determines and the left one does not.

    Raises:
        InputError: As :func:`cusp`, or where the tilt is not between -2 and 3.

    Derived: docs/free-energies.md, A family with a known diagram.
    """

    def gap(tilt: float) -> float:
        left, right = (cusp(side, n, split=split, tilt=tilt, free=free) for side in ("left", "right"))
        return right.free_energy - left.free_energy

    if not gap(-2.0) >= 0 >= gap(3.0):
        raise expected(
            "cusp_line", "equal shares at a tilt between -2 and 3", f"n={n:g}, split={split:g}, free={free:g}"
        )
    return float(root_scalar(gap, bracket=(-2, 3), xtol=1e-10).root)


def gated(phase: str, means: Numbers, n: float, *, barrier: float, effect: float, layers: int = 2) -> float:
    r"""The free energy of one phase of a gated model, in nats, for given data.

    A sample has unit noise and the mean :math:`\bigl(Bs(1-s), \delta s^2(3-2s), su_1v_1, \dots, su_dv_d\bigr)`. Given
    the means :math:`\bar y` of n samples,

    .. math::
        Z = \int_{W}\varphi(s)\,e^{-\frac n2[(Bs(1-s)-\bar y_0)^2 + (\delta s^2(3-2s)-\bar y_1)^2]}
            \prod_j\int\varphi(v)\frac{e^{-\frac n2\bar y_j^2/(1+ns^2v^2)}}{\sqrt{1+ns^2v^2}}\,dv\,ds

    with :math:`\varphi` normal, of s around :math:`\frac12`; W is :math:`s < \frac12` of the simple phase and
    :math:`s > \frac12` of the rich one.

    Args:
        phase: ``"simple"`` or ``"rich"``.
        means: The means of the samples, [d + 2].
        n: Number of samples, positive.
        barrier: B, any finite number.
        effect: :math:`\delta`, any finite number.
        layers: 2; or 1, where every v is 1.

    Raises:
        InputError: An unknown phase, another number of layers, or a number out of its range.

    Derived: docs/free-energies.md, Two phases of a model.
    """
    if phase not in ("simple", "rich"):
        raise expected("phase", "'simple' or 'rich'", phase)
    if layers not in (1, 2):
        raise expected("layers", "1 or 2", layers)
    read(n=(n, POSITIVE), barrier=(barrier, FINITE), effect=(effect, FINITE))
    (means,) = read(means=(means, FINITE))
    s = 0.5 + (1 if phase == "rich" else -1) * np.linspace(0, 2, 2001)
    logarithm = -((s - 0.5) ** 2) / 2 - np.log(2 * np.pi) / 2
    logarithm -= n / 2 * ((barrier * s * (1 - s) - means[0]) ** 2 + (effect * s**2 * (3 - 2 * s) - means[1]) ** 2)
    x = np.linspace(-16, 2.2, 183)
    v, weight = np.exp(x), 2 * np.exp(x - np.exp(2 * x) / 2) * (x[1] - x[0]) / np.sqrt(2 * np.pi)
    if layers == 1:
        v, weight = np.ones(1), np.ones(1)
    variance = 1 + n * s[:, None] ** 2 * v**2
    for mean in means[2:]:
        logarithm += np.log((np.exp(-n / 2 * mean**2 / variance) / np.sqrt(variance)) @ weight)
    top = logarithm.max()
    return float(-top - np.log(np.trapezoid(np.exp(logarithm - top), dx=0.001)))


def circle(n: float, *, radius: float) -> float:
    r"""The mean free energy of a circle of normal distributions, minus n times its least loss, in nats.

    A sample is normal in the plane with unit noise, and the model's mean is :math:`(\cos w, \sin w)` with w uniform.
    The true mean is :math:`(r, 0)`, so that :math:`K = r\,(1-\cos w)` and
    :math:`\operatorname{Var}[\ell_w-\ell_0] = \frac2rK`. Given the mean :math:`\bar x` of n samples,

    .. math::
        F_n - nL_n(0) = n\bar x_1 - \log I_0(n|\bar x|), \qquad
        E[F_n] - nL = nr - E\log I_0(\sqrt n\,\rho), \quad \rho\sim\mathrm{Rice}(\sqrt n\,r).

    For r > 0 the model is regular and the value grows as :math:`\frac12\log n`. For r = 0 every w is optimal, the
    variance is not bounded by a multiple of K = 0, and the value falls as :math:`-\sqrt{\pi n/2}`.

    Args:
        n: :math:`n`, the number of samples, :math:`> 0`.
        radius: :math:`r\ge0`, the distance of the true mean from the centre of the circle.

    Derived: docs/free-energies.md, Outside the conditions.
    """
    read(n=(n, POSITIVE), radius=(radius, NON_NEGATIVE))
    root = np.sqrt(n)
    centre = root * radius
    rho = np.linspace(max(0.0, centre - 12), centre + 12, 8001)
    density = rho * np.exp(-((rho - centre) ** 2) / 2) * i0e(rho * centre)
    return float(-simpson(density * (root * (rho - centre) + np.log(i0e(root * rho))), x=rho))


def shared_units(terms: int, units: int, outputs: int, nbeta: float) -> Term:
    r"""Contributions of T contexts to which two linear layers answer zero through the same k hidden units.

    With :math:`K_c = \frac12\lVert BAh_c\rVert^2`, orthonormal :math:`h_c` and :math:`t = n\beta`, the eigenvalues s of
    :math:`B^\top B` have Wishart's density times :math:`\prod_i(1+ts_i)^{-T/2}`, and with
    :math:`g(s) = \frac12\sum_i\frac{ts_i}{1+ts_i}`

    .. math:: E[tK_c] = E[g], \qquad \mathrm{Cov}[tK_c, tK_{c'}] = \mathrm{Var}\,g, \qquad
              \mathrm{Var}[tK_c] = \mathrm{Var}\,g + \tfrac12E\sum_i\Bigl(\frac{ts_i}{1+ts_i}\Bigr)^2.

    Args:
        terms: T, at least 1.
        units: k, one or two.
        outputs: Rows of B, at least k.
        nbeta: t, positive, in units of one over the loss.

    Raises:
        InputError: A number out of its range.

    Derived: docs/singular-learning.md, Terms that share weights.
    """
    require_integer("terms", terms)
    if units not in (1, 2):
        raise expected("units", "1 or 2", units)
    require_integer("outputs", outputs, least=units)
    read(nbeta=(nbeta, POSITIVE))
    s, density = _eigenvalues(units, outputs)
    share = nbeta * s / (1 + nbeta * s)
    weight = density * np.prod(1 + nbeta * s, axis=0) ** (-terms / 2)
    weight, g = weight / weight.sum(), share.sum(axis=0) / 2
    mean = float((weight * g).sum())
    between = float((weight * (g - mean) ** 2).sum())
    return Term(mean, between + float((weight * (share**2).sum(axis=0) / 2).sum()), between)


def _eigenvalues(units: int, dim: int) -> tuple[Array, Array]:
    """Quadrature for a Wishart matrix of one or two units with d degrees of freedom: points [unit, ...], weights."""
    if units == 1:
        x = np.linspace(-160, 6, 40_001)
        return np.exp(x)[None], np.exp(dim / 2 * x - np.exp(x) / 2)
    large, share = np.exp(np.linspace(-160, 6, 1601)[:, None]), np.exp(np.linspace(-160, 0, 1601)[None])
    weights = (1 - share) * share ** ((dim - 1) / 2) * large**dim * np.exp(-large * (1 + share) / 2)
    return np.stack(np.broadcast_arrays(large, large * share)), weights
