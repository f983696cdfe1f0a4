r"""Phases of a model that answers two contexts: free energies and cross-susceptibilities at every n, by quadrature.

Three gates and d products of two weights for each block. The zero-shot machine has the weights
:math:`(o, e, g, p, q)` and, with unit noise, the answer

.. math:: m(o, e, g, p, q) = \bigl(Bo(1-o),\ e,\ oBg(1-g),\ \delta\rho(o)\rho(g),\ ogp_1q_1, \dots, ogp_dq_d\bigr),
          \qquad \rho(x) = x^2(3-2x).

Context c selects :math:`f_c(w) = (r, \pm\alpha\rho(r), s_c, u^{(c)}, v^{(c)})`: the gate r, which both share, decides
whether the context is recognised, and :math:`s_c` whether its daughter is the simple or the rich one. A model is
``private``, with products for each context, or ``shared``, with the same for both. The truth of a context is
:math:`(0, \pm\alpha, 0, \delta, 0, \dots, 0)`, and with :math:`n_c` samples of each the posterior is
:math:`e^{-n_1K_1-n_2K_2}\varphi`, under a normal prior of unit variance around gates of a half and products of zero.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import k0e, k1e

from icllab.core.domains import FINITE, NON_NEGATIVE, POSITIVE
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Number, Numbers, plain, read

PHASES = {"ignored": (-1, 0, 0), "00": (1, -1, -1), "10": (1, 1, -1), "01": (1, -1, 1), "11": (1, 1, 1)}
"""Side of 1/2 on which each of the gates :math:`r, s_1, s_2` of a phase lies; 0 stands for both sides."""
NODES = 24  # energies are exact to 1e-4 nats
REACH, WIDEST = 10.0, 5.0  # standard deviations of a gate that are integrated over, and of its prior at most
SMALLEST = 1e-7  # below which the series in X is exact to rounding


class ContextPhase(NamedTuple):
    """A phase of two contexts: its free energy in nats, and means and covariances of :math:`n_cK_c` in it."""

    free_energy: float
    means: tuple[float, float]
    variances: tuple[float, float]
    covariance: float

    __repr__ = fields_repr
    _repr_html_ = fields_html


def product_energy(precision: Numbers) -> Number:
    r"""The free energy of a product of two normal weights, in nats.

    .. math:: g(X) = -\log E\,e^{-\frac X2u^2v^2} = -\log\frac{e^{z}K_0(z)}{\sqrt{2\pi X}}, \quad z = \frac1{4X},
              \qquad g(X) \to \tfrac12\log2\pi X - \log(\log8X-\gamma_E)

    Args:
        precision: X >= 0, a number of samples times a squared factor.

    Raises:
        InputError: A number is negative.

    Derived: docs/singular-learning.md, Two contexts in one posterior.
    """
    (x,) = read(precision=(precision, NON_NEGATIVE))
    return plain(_product(x)[0])


def _product(x: Array) -> tuple[Array, Array, Array]:
    """g and its first two derivatives by log X."""
    small = x < SMALLEST
    z = 1 / (4 * np.where(small, 1.0, x))
    ratio = k1e(z) / k0e(z)
    energy = 0.5 * np.log(2 * np.pi / (4 * z)) - np.log(k0e(z))
    first = 0.5 + z * (1 - ratio)
    second = -z * ((1 - ratio) + z * (1 + ratio / z - ratio**2))
    series = (x / 2 - x**2, x / 2 - 2 * x**2, x / 2 - 4 * x**2)
    return tuple(np.where(small, a, b) for a, b in zip(series, (energy, first, second), strict=True))  # pyright: ignore[reportReturnType]


def context_phase(
    phase: str,
    first: float,
    second: float,
    *,
    shared: bool,
    barrier: float,
    sign: float,
    effect: float,
    products: int,
) -> ContextPhase:
    r"""One phase of two contexts at given numbers of samples of each.

    Given the gates the products are integrated out, with :math:`X_c = n_cr^2s_c^2`:

    .. math:: Z = \int\varphi(r)\varphi(s_1)\varphi(s_2)\,e^{-\sum_cn_cG_c(r, s_c)}\,J^d\,dr\,ds_1ds_2, \qquad
              -\log J = \begin{cases}g(X_1)+g(X_2) & \text{private}\\ g(X_1+X_2) & \text{shared}\end{cases}

    with :math:`G_c` the terms of :math:`K_c` without products and g of :func:`product_energy`. With shared weights and
    :math:`X = X_1+X_2`, :math:`S = \sum_ju_j^2v_j^2`, the loss :math:`\frac12X_cS` has the mean
    :math:`\frac{X_c}Xdg'`, and the two have the covariance :math:`\frac{X_1X_2}{X^2}d(g'-g'')`; derivatives are by
    :math:`\log X`.

    Args:
        phase: ``"ignored"``, where r < 1/2; or ``"00"``, ``"10"``, ``"01"``, ``"11"``: which daughters are rich.
        first: :math:`n_1`, above 0.
        second: :math:`n_2`, above 0.
        shared: Whether both contexts have the same products.
        barrier: B, above 0.
        sign: :math:`\alpha`, in which the contexts differ.
        effect: :math:`\delta`, which the simple daughter misses.
        products: d, at least 1.

    Raises:
        InputError: An unknown phase, or a number out of its range.

    Derived: docs/singular-learning.md, Two contexts in one posterior.
    """
    if phase not in PHASES:
        raise expected("phase", f"one of {', '.join(PHASES)}", phase)
    require_integer("products", products)
    read(first=(first, POSITIVE), second=(second, POSITIVE), barrier=(barrier, POSITIVE))
    read(sign=(sign, FINITE), effect=(effect, FINITE))
    sides, ignored = PHASES[phase], phase == "ignored"
    of_r = _nodes(sides[0], barrier * math.sqrt(first + second))
    of_s = [
        _nodes(side, 0.0 if ignored else barrier * math.sqrt(n))
        for side, n in zip(sides[1:], (first, second), strict=True)
    ]
    r, *s = np.meshgrid(of_r[0], of_s[0][0], of_s[1][0], indexing="ij", sparse=True)
    weight = of_r[1][:, None, None] * of_s[0][1][:, None] * of_s[1][1]
    gates, x = [], []
    for n, gate in zip((first, second), s, strict=True):
        bends = (barrier * r * (1 - r)) ** 2 + (barrier * r * gate * (1 - gate)) ** 2
        misses = sign**2 * (_rho(r) - 1) ** 2 + effect**2 * (_rho(r) * _rho(gate) - 1) ** 2
        gates.append(n / 2 * (bends + misses))
        x.append(n * (r * gate) ** 2)
    if shared:
        whole = x[0] + x[1]
        energy, slope, bend = (products * part for part in _product(whole))
        shares = [part / np.maximum(whole, SMALLEST**2) for part in x]
        means = [share * slope for share in shares]
        variances = [share**2 * (slope - bend) for share in shares]
        covariance = shares[0] * shares[1] * (slope - bend)
    else:
        parts = [[products * part for part in _product(values)] for values in x]
        energy = parts[0][0] + parts[1][0]
        means = [slope for _, slope, _ in parts]
        variances = [slope - bend for _, slope, bend in parts]
        covariance = np.zeros(())
    logarithm = -gates[0] - gates[1] - energy
    top = logarithm.max()
    weight = weight * np.exp(logarithm - top)
    total = weight.sum()
    losses = [np.broadcast_to(gate + mean, weight.shape) for gate, mean in zip(gates, means, strict=True)]
    averages = [float((weight * loss).sum() / total) for loss in losses]
    centred = [loss - average for loss, average in zip(losses, averages, strict=True)]
    within = [
        float((weight * (of_gates**2 + of_products)).sum() / total)
        for of_gates, of_products in zip(centred, variances, strict=True)
    ]
    between = float((weight * (centred[0] * centred[1] + covariance)).sum() / total)
    return ContextPhase(float(-top - np.log(total)), (averages[0], averages[1]), (within[0], within[1]), between)


def cross_susceptibility(phases: list[ContextPhase]) -> float:
    r"""The covariance of :math:`n_1K_1` and :math:`n_2K_2` over several phases.

    .. math:: \sum_ap_a\bigl[C_a + (\mu_{1a}-\bar\mu_1)(\mu_{2a}-\bar\mu_2)\bigr], \qquad p_a\propto e^{-F_a}

    Args:
        phases: The phases, one at least.

    Raises:
        InputError: There is none.

    Derived: docs/singular-learning.md, Two contexts in one posterior.
    """
    if not phases:
        raise expected("phases", "at least one", "none")
    energies = np.array([phase.free_energy for phase in phases])
    weight = np.exp(energies.min() - energies)
    weight = weight / weight.sum()
    means = np.array([phase.means for phase in phases])
    centred = means - weight @ means
    return float(weight @ (np.array([phase.covariance for phase in phases]) + centred[:, 0] * centred[:, 1]))


def _rho(x: Array) -> Array:
    return x**2 * (3 - 2 * x)


def _nodes(side: int, steepness: float) -> tuple[Array, Array]:
    """Quadrature nodes and weights of a gate with its prior, on one side of 1/2 or both, as narrow as the gate's peak.

    They crowd at a gate of 0, which multiplies other weights: the far values of those are narrow in it.
    """
    if side == 0:
        pairs = [_nodes(half, steepness) for half in (-1, 1)]
        return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])
    corner = (1 + side) / 2
    reach = REACH / steepness if steepness else math.inf
    low = max(0.5 if side > 0 else 0.5 - WIDEST, corner - reach)
    high = min(0.5 + WIDEST if side > 0 else 0.5, corner + reach)
    node, weight = np.polynomial.legendre.leggauss(NODES)
    if side < 0:
        node, weight = (1 + node) / 2, weight / 2
        x = np.concatenate([corner + (end - corner) * node**3 for end in (low, high)])
        weight = np.concatenate([abs(end - corner) * 3 * node**2 * weight for end in (low, high)])
    else:
        x, weight = (low + high) / 2 + (high - low) / 2 * node, weight * (high - low) / 2
    return x, weight * np.exp(-((x - 0.5) ** 2) / 2) / math.sqrt(2 * np.pi)
