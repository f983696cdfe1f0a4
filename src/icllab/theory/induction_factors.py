r"""Loss landscape of an induction head without exponentials, and with strengths that are products of weights.

:mod:`icllab.theory.induction_landscape` has three exponentials: those of two softmax operations and that of the
cross-entropy. Each has a replacement here. Attention of *first order* in its scores is as even as softmax where the
scores are zero,

.. math::
    y = \frac{e^\beta}{e^\beta+N} \ \text{or}\ \frac{1+\beta}{1+N}, \qquad
    (z, z') = \frac{(e^{\alpha y},\ 1)}{e^{\alpha y}+2N} \ \text{or}\ \frac{(1+\alpha y,\ 1)}{1+2N},

and the *squared error* is that of the same logits, :math:`\xi z` of the right label, :math:`\xi z'` of each other label
of the context and 0 of the rest, from 1 and 0:

.. math::
    \mathcal L = \ln\bigl[1 + (N-1)\,e^{-\xi(z-z')} + (L-N)\,e^{-\xi z}\bigr] \ \text{or}\
    \tfrac12\bigl[(1-\xi z)^2 + (N-1)\,\xi^2z'^2\bigr].

A strength that is a product of k equal weights descends by :math:`\dot w = -k\,w^{2-2/k}\,\partial_w\mathcal L`.

Throughout ``pairs`` is N, at least 2, ``labels`` is L, at least N; ``attention`` is ``"softmax"`` or ``"first order"``,
of both layers, and ``objective`` is ``"cross-entropy"`` or ``"squared error"``. Anything else raises an ``InputError``.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import expit

from icllab.core.domains import FINITE, POSITIVE
from icllab.core.errors import expected, require_integer, require_known
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Number, Numbers, plain, read, require_pairs

ATTENTION = ("softmax", "first order")
OBJECTIVES = ("cross-entropy", "squared error")
LEVELS = (0.9, 0.25)  # shares of the loss of guessing whose crossings are timed


class FactorFlow(NamedTuple):
    """A path of steepest descent, at the solver's own steps.

    Attributes:
        time: Time of each step.
        strengths: beta, alpha, xi, [step, strength].
        loss: At each step; in nats if it is the cross-entropy.
        crossings: Share of the loss of guessing -> when the loss first falls through it; NaN if it does not in the
            time given.
    """

    time: Array
    strengths: Array
    loss: Array
    crossings: dict[float, float]

    __repr__ = fields_repr
    _repr_html_ = fields_html


def loss(
    beta: Numbers,
    alpha: Numbers,
    xi: Numbers,
    *,
    pairs: int,
    labels: int,
    attention: str = "softmax",
    objective: str = "cross-entropy",
) -> Number:
    r"""The loss :math:`\mathcal L` of this module; ``beta``, ``alpha`` and ``xi`` broadcast.

    At the origin it is :math:`\ln L` or 1/2, whichever the attention.

    Source: [Reddy24].
    Derived: docs/abrupt-learning.md, Exponentials or products.
    """
    return plain(_value_and_slopes(beta, alpha, xi, pairs, labels, attention, objective)[0])


def gradient(
    beta: Numbers,
    alpha: Numbers,
    xi: Numbers,
    *,
    pairs: int,
    labels: int,
    attention: str = "softmax",
    objective: str = "cross-entropy",
) -> Array:
    r"""The gradient of the loss, in closed form; the last axis is in the order beta, alpha, xi.

    .. math::
        \partial_\xi\mathcal L = g\,z + g'z', \qquad \partial_s\mathcal L = \xi\,(g\,\partial_sz + g'\,\partial_sz'),
        \qquad \partial_\alpha\mathcal L = y\,\partial_s\mathcal L, \quad
        \partial_\beta\mathcal L = \alpha\,\partial_\beta y\,\partial_s\mathcal L

    with :math:`s = \alpha y` and the derivatives :math:`g, g'` of the loss in :math:`\xi z` and :math:`\xi z'`: of the
    cross-entropy :math:`p - 1` and :math:`(N-1)\,p'`, p the probability of the right label and p' that of each other
    one in the context; of the squared error :math:`\xi z - 1` and :math:`(N-1)\,\xi z'`.

    Derived: docs/abrupt-learning.md, Exponentials or products.
    """
    return np.stack(_value_and_slopes(beta, alpha, xi, pairs, labels, attention, objective)[1], axis=-1)


def guessing_loss(*, pairs: int, objective: str = "cross-entropy") -> float:
    r"""Smallest loss of an answer that tells the labels of the context from other labels, but not from each other.

    .. math:: \ln N \quad\text{or}\quad \tfrac12\Bigl(1 - \frac1N\Bigr)

    Derived: docs/abrupt-learning.md, Exponentials or products.
    """
    require_integer("pairs", pairs, least=2)
    require_known("objective", objective, OBJECTIVES)
    return float(np.log(pairs)) if objective == "cross-entropy" else (1 - 1 / pairs) / 2


def right_share(beta: Numbers, alpha: Numbers, *, pairs: int, attention: str = "softmax") -> Number:
    """Fraction of the attention to labels that the right label gets: :math:`z/(z + (N-1)z')`, or 1/N without attention.

    Derived: docs/abrupt-learning.md, Exponentials or products.
    """
    require_integer("pairs", pairs, least=2)
    require_known("attention", attention, ATTENTION)
    b, a = read(beta=(beta, FINITE), alpha=(alpha, FINITE))
    right, _, other, _ = _attention(a * _attention(b, pairs, attention)[0], 2 * pairs, attention)
    return plain(right / (right + (pairs - 1) * other))


def flow(
    start: Sequence[float],
    *,
    pairs: int,
    labels: int,
    time: float,
    attention: str = "softmax",
    objective: str = "cross-entropy",
    factors: int = 1,
    levels: Sequence[float] = LEVELS,
) -> FactorFlow:
    r"""Steepest descent in the weights whose products are the strengths, and the times at which the loss falls.

    .. math:: \dot w_i = -k\,w_i^{2-2/k}\,\partial_i\mathcal L, \qquad w_i = v_i^k

    for k weights :math:`v_i` that begin alike, and so stay alike. From :math:`w_i = 0` a product of two or more never
    moves.

    Args:
        start: beta, alpha, xi; positive if they are products.
        pairs: N.
        labels: L.
        time: How long, above 0.
        attention: Softmax, or of first order, in both layers.
        objective: What is descended.
        factors: k, weights of which each strength is the product; 1: the strengths are weights themselves.
        levels: Shares of :func:`guessing_loss` to time, above 0.

    Derived: docs/abrupt-learning.md, Exponentials or products.
    """
    require_integer("factors", factors)
    (w,) = read(start=(np.asarray(start), FINITE if factors == 1 else POSITIVE))
    if w.shape != (3,):
        raise expected("start", "beta, alpha, xi", f"shape {w.shape}")
    (shares,), (until,) = read(levels=(np.atleast_1d(levels), POSITIVE)), read(time=(time, POSITIVE))

    def at(v: Array) -> tuple[Any, tuple[Any, Any, Any]]:
        b, a, x = v**factors
        return _value_and_slopes(b, a, x, pairs, labels, attention, objective)

    guess = guessing_loss(pairs=pairs, objective=objective)

    def velocity(_: float, v: Array) -> Array:
        slopes = np.stack(at(v)[1])
        return -(v ** (factors - 1)) * slopes

    def falls_through(share: float) -> Any:
        def event(_: float, v: Array) -> float:
            return float(at(v)[0] - share * guess)

        event.direction = -1  # pyright: ignore[reportFunctionMemberAccess]
        return event

    solution = solve_ivp(
        velocity,
        (0.0, float(until)),
        w ** (1 / factors),
        method="LSODA",
        rtol=1e-9,
        atol=1e-12,
        events=[falls_through(share) for share in shares],
    )
    first = [float(times[0]) if len(times) else np.nan for times in solution.t_events]  # pyright: ignore[reportOptionalIterable]
    losses = np.asarray(at(solution.y)[0])
    return FactorFlow(solution.t, solution.y.T**factors, losses, dict(zip(shares.tolist(), first, strict=True)))


def _value_and_slopes(
    beta: Numbers, alpha: Numbers, xi: Numbers, pairs: int, labels: int, attention: str, objective: str
) -> tuple[Any, tuple[Any, Any, Any]]:
    """The loss, and its derivatives in beta, alpha and xi."""
    require_integer("pairs", pairs, least=2)
    require_pairs(pairs, labels)
    require_known("attention", attention, ATTENTION)
    require_known("objective", objective, OBJECTIVES)
    b, a, x = read(beta=(beta, FINITE), alpha=(alpha, FINITE), xi=(xi, FINITE))
    y, y1, _, _ = _attention(b, pairs, attention)
    z, z1, z_other, z_other1 = _attention(a * y, 2 * pairs, attention)
    value, slope_right, slope_other = _objective(x * z, x * z_other, pairs, labels, objective)
    by_score = x * (slope_right * z1 + slope_other * z_other1)
    return value, (by_score * a * y1, by_score * y, slope_right * z + slope_other * z_other)


def _attention(score: Any, count: int, kind: str) -> tuple[Any, Any, Any, Any]:
    """Attention to one token with a score and to each of ``count`` tokens with score 0, with their derivatives."""
    if kind == "first order":
        even = 1 / (1 + count) + 0 * score
        return (1 + score) * even, even, even, 0 * score
    attention, elsewhere = expit(score - np.log(count)), expit(np.log(count) - score) / count
    return attention, attention * elsewhere * count, elsewhere, -attention * elsewhere


def _objective(right: Any, wrong: Any, pairs: int, labels: int, kind: str) -> tuple[Any, Any, Any]:
    """The loss, and its derivatives in the logits of the right label and of each other label of the context."""
    if kind == "squared error":
        return ((1 - right) ** 2 + (pairs - 1) * wrong**2) / 2, right - 1, (pairs - 1) * wrong
    with np.errstate(divide="ignore"):
        logits = [right, wrong + np.log(pairs - 1), np.log(labels - pairs) + 0 * right]
    total = np.logaddexp.reduce(np.stack(logits))
    return total - right, np.expm1(right - total), np.exp(logits[1] - total)
