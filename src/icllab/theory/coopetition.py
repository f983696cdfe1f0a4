r"""Two mechanisms that share factors and compete: fixed points, the flow in eight variables, and what survives.

Vectors a, b, c, d of n entries have targets :math:`a^*, \dots, d^*`. With means over entries

.. math:: \mathcal L = (E_1+\mu_1)(E_2+\mu_2) + \tfrac\alpha2\,\overline{(a\otimes d)^2}, \qquad
          E_1 = \tfrac12\,\overline{(a\otimes b\otimes c-a^*\otimes b^*\otimes c^*)^2},

and :math:`E_2` with d in the place of a. Write :math:`v = x_vv^* + v_\perp` for each of the four, :math:`T_v` for the
mean square of :math:`v^*`, :math:`r_v^2` for that of :math:`v_\perp` and :math:`Q_v = x_v^2T_v+r_v^2`. The loss, and so
its gradient flow, depends on the eight numbers x and r alone:

.. math:: E_1 = \tfrac12(Q_aQ_bQ_c - 2x_ax_bx_cT_aT_bT_c + T_aT_bT_c).

Time is that of gradient flow on all entries: k steps of gradient descent at a small rate :math:`\eta` make
:math:`t=\eta k`. Arrays of the four vectors are in the order a, b, c, d.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp

from icllab.core.domains import FINITE, NON_NEGATIVE, POSITIVE, Domain
from icllab.core.errors import IclError, expected, require_integer, require_known
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Number, Numbers, plain, read

Vectors = Any  # four numbers, and other sequences: `read` names everything else better than a type could

NAMES = ("a", "b", "c", "d")
_MECHANISMS = np.array([[0, 1, 2], [3, 1, 2]])
_FIRST, _SECOND = [1, 0, 0], [2, 2, 1]  # the two other vectors of a mechanism, for each of its three
_ENDS = [0, 3]  # a and d, of which both cost


class Flow(NamedTuple):
    """Times, overlaps x [time, vector], sizes r [time, vector] and errors E [time, mechanism]."""

    time: Array
    overlaps: Array
    sizes: Array
    errors: Array

    __repr__ = fields_repr
    _repr_html_ = fields_html


class FixedPoint(NamedTuple):
    """A fixed point at which b and c have equal overlap.

    Attributes:
        name: What is learned: ``nothing``, ``first``, ``second`` or ``both``.
        overlaps: Overlaps x of the four vectors; there is no part beside the targets.
        loss: Loss at the point.
        curvatures: Eigenvalues of the loss's Hessian along the targets' directions, of vectors of unit mean square.
        attracts: Whether no direction leads downhill. At ``nothing`` all curvatures vanish, and the third order does.
    """

    name: str
    overlaps: Array
    loss: float
    curvatures: Array
    attracts: bool

    __repr__ = fields_repr
    _repr_html_ = fields_html


def fixed_points(
    first_floor: float,
    second_floor: float,
    *,
    cost: float,
    squares: Sequence[float] | np.ndarray = (1.0, 1.0, 1.0, 1.0),
) -> tuple[FixedPoint, ...]:
    r"""Fixed points of the flow with unit :math:`x_bx_c`, and the origin.

    With a cost only one mechanism rests, :math:`x_a=0, x_dx_bx_c=1`, and only if its own floor is zero. Its curvatures
    are :math:`\alpha T_dx_d^2`, :math:`(E_1+\mu_1)|\nabla x_dx_bx_c|^2` and two zeros. Without a cost both rest
    at :math:`x_ax_bx_c = x_dx_bx_c = 1`. With a cost and two floors nothing rests but saddles:
    :math:`x_bx_c` grows for ever, and the loss tends to :math:`\mu_1\mu_2`.

    Args:
        first_floor: :math:`\mu_1\ge0`.
        second_floor: :math:`\mu_2\ge0`.
        cost: :math:`\alpha\ge0`.
        squares: :math:`T_v > 0` of the four targets.

    Derived: docs/races.md, Fixed points.
    """
    floors = np.array(
        [
            float(part)
            for part in read(first_floor=(first_floor, NON_NEGATIVE), second_floor=(second_floor, NON_NEGATIVE))
        ]
    )
    (alpha,) = read(cost=(cost, NON_NEGATIVE))
    targets = _four("squares", squares, POSITIVE)
    candidates = {"nothing": ((0.0, 0.0, 0.0, 0.0), True)}
    candidates["first"] = ((1.0, 1.0, 1.0, 0.0), floors[0] == 0)
    candidates["second"] = ((0.0, 1.0, 1.0, 1.0), floors[1] == 0)
    candidates["both"] = ((1.0, 1.0, 1.0, 1.0), alpha == 0)
    points = []
    for name, (overlaps, rests) in candidates.items():
        if rests:
            x = np.array(overlaps)
            loss, hessian = _at_rest(x, targets, floors, float(alpha))
            points.append(FixedPoint(name, x, loss, np.asarray(np.linalg.eigvalsh(hessian), float), name != "nothing"))
    return tuple(points)


def surviving_fraction(
    shared: Numbers, *, floor: Numbers, cost: Numbers, squares: Sequence[float] | np.ndarray = (1.0, 1.0, 1.0, 1.0)
) -> Number:
    r"""Remaining product of the first mechanism after the second is learned, if only the shared factors still move.

    .. math:: x_ax_bx_c = \frac{\mu_2T_bT_cq^4}{\mu_2T_bT_cq^4+\alpha T_d}, \qquad q = x_bx_c, \quad x_dq = 1

    Zero without a floor of the second mechanism; with one it grows to 1 as the shared factors grow.

    Args:
        shared: :math:`q>0`, the shared product.
        floor: :math:`\mu_2\ge0`, floor of the mechanism that is learned.
        cost: :math:`\alpha>0`, small against 1, so that the second mechanism stays learned.
        squares: :math:`T_v > 0` of the four targets.

    Derived: docs/races.md, What survives.
    """
    q, mu, alpha = read(shared=(shared, POSITIVE), floor=(floor, NON_NEGATIVE), cost=(cost, POSITIVE))
    _, b, c, d = _four("squares", squares, POSITIVE)
    return plain(mu * b * c * q**4 / (mu * b * c * q**4 + alpha * d))


def shared_growth(
    time: Numbers, *, cost: Numbers, dim: int, squares: Sequence[float] | np.ndarray = (1.0, 1.0, 1.0, 1.0)
) -> Number:
    r"""Shared product at late times if both floors are positive.

    .. math:: q = \Bigl(\frac{40\,\alpha T_aT_d\,t}{n(T_b+T_c)}\Bigr)^{1/5}

    The cost falls as :math:`q^{-4}`, to leading order in 1/q.

    Args:
        time: :math:`t>0`.
        cost: :math:`\alpha>0`.
        dim: :math:`n`, entries of a vector; an integer of at least 1.
        squares: :math:`T_v > 0` of the four targets.

    Derived: docs/races.md, What survives.
    """
    require_integer("dim", dim)
    t, alpha = read(time=(time, POSITIVE), cost=(cost, POSITIVE))
    a, b, c, d = _four("squares", squares, POSITIVE)
    return plain((40 * alpha * a * d * t / (dim * (b + c))) ** 0.2)


def flow(
    overlaps: Vectors,
    sizes: Vectors,
    *,
    squares: Vectors,
    floors: Vectors,
    cost: float,
    dim: int,
    times: Vectors,
    held: tuple[str, ...] = (),
) -> Flow:
    r"""Gradient flow from any start, in eight numbers.

    .. math:: n\dot x_v = -\sum_m W_m\bigl(x_v\textstyle\prod_uQ_u - \prod_ux_uT_u\bigr) - \alpha x_vQ_{v'}, \qquad
              n\dot r_v = -r_v\bigl(\sum_mW_m\textstyle\prod_uQ_u + \alpha Q_{v'}\bigr)

    Sums are over the mechanisms m that have the vector v, products over the two other vectors u of m;
    :math:`W_1 = E_2+\mu_2` and :math:`W_2 = E_1+\mu_1`; the cost is that of :math:`v'=d` for a, and of a for d.

    Args:
        overlaps: :math:`x_v` of the four vectors at time 0, finite.
        sizes: :math:`r_v\ge0`, root mean squares of the parts beside the targets.
        squares: :math:`T_v > 0` of the four targets.
        floors: :math:`\mu_1, \mu_2\ge0`.
        cost: :math:`\alpha\ge0`.
        dim: :math:`n`, entries of a vector; an integer of at least 1.
        times: Times of the answer, increasing and not negative.
        held: Vectors that do not move.

    Derived: docs/races.md, Eight numbers.
    """
    require_integer("dim", dim)
    targets, moving = _four("squares", squares, POSITIVE), np.ones(4)
    start = np.concatenate([_four("overlaps", overlaps, FINITE), _four("sizes", sizes, NON_NEGATIVE)])
    (mu,) = read(floors=(floors, NON_NEGATIVE))
    alpha, t = (float(read(cost=(cost, NON_NEGATIVE))[0]), np.atleast_1d(read(times=(times, NON_NEGATIVE))[0]))
    if mu.shape != (2,):
        raise expected("floors", "two numbers", f"shape {mu.shape}")
    if t.ndim != 1 or np.any(np.diff(t) <= 0):
        raise expected("times", "increasing numbers", "times in another order")
    for name in held:
        require_known("held", name, NAMES)
        moving[NAMES.index(name)] = 0.0

    def rate(_: float, state: Array) -> Array:
        x, r = state[:4], state[4:]
        squared = x**2 * targets + r**2
        weights = (_errors(x, squared, targets) + mu)[::-1]
        decay, drive = np.zeros(4), np.zeros(4)
        for weight, vectors in zip(weights, _MECHANISMS, strict=True):
            for total, part in ((decay, squared), (drive, x * targets)):
                total[vectors] += weight * part[vectors][_FIRST] * part[vectors][_SECOND]
        decay[_ENDS] += alpha * squared[_ENDS[::-1]]
        return np.concatenate([moving * (drive - decay * x), -moving * decay * r]) / dim

    solution = solve_ivp(rate, (0.0, float(t[-1])), start, method="LSODA", t_eval=t, rtol=1e-8, atol=1e-11)
    if not solution.success:
        raise IclError(f"flow: expected an integration to t = {t[-1]:g}, got: {solution.message}")
    x, r = solution.y[:4].T, solution.y[4:].T
    return Flow(t, x, r, _errors(x, x**2 * targets + r**2, targets))


def _errors(x: Array, squared: Array, targets: Array) -> Array:
    """Errors [..., mechanism] from the overlaps and the mean squares of the vectors and of their targets."""
    whole, cross, null = (part[..., _MECHANISMS].prod(-1) for part in (squared, x * targets, targets))
    return (whole - 2 * cross + null) / 2


def _at_rest(x: Array, targets: Array, floors: Array, alpha: float) -> tuple[float, Array]:
    """Loss and Hessian of the four overlaps at a fixed point, in the coordinates of vectors of unit mean square.

    There each mechanism has either no error, or an error with the weight zero, or no slope; and a or d vanishes, or the
    cost does.
    """
    values = _errors(x, x**2 * targets, targets) + floors
    hessian = np.diag(alpha * targets[0] * targets[3] * np.array([x[3] ** 2, 0.0, 0.0, x[0] ** 2]))
    for weight, m in zip(values[::-1], _MECHANISMS, strict=True):
        slope = np.zeros(4)
        slope[m] = x[m][_FIRST] * x[m][_SECOND]
        hessian += weight * targets[m].prod() * np.outer(slope, slope)
    return float(values.prod()), hessian / np.sqrt(np.outer(targets, targets))


def _four(name: str, values: Vectors, domain: Domain) -> Array:
    (array,) = read(**{name: (values, domain)})
    if array.shape != (4,):
        raise expected(name, "one number for each of a, b, c and d", f"shape {array.shape}")
    return np.array(array)
