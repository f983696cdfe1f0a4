r"""A race of in-context and in-weights learning: the time each takes, and the number of classes at which they tie.

A prompt has N items with labels :math:`\pm1`, one of them of the query's class, and the query. The answer has the logit

.. math:: \varphi(x_q) + w\sum_i a_il_i, \qquad a = \mathrm{softmax}(\beta\,x_q\cdot x_i),

where :math:`\varphi` memorises the labels of K classes. Of orthogonal unit items the one of the query's class has the
attention :math:`p = e^\beta/(e^\beta+N-1)`, and the others' labels add a noise of variance :math:`(1-p)^2/(N-1)`. Both
parts descend the cross-entropy at one rate; time is that of gradient flow. What the in-weights part leaves of the
error, :math:`s(t) = E\,\sigma(-l\varphi)`, is all that drives the context: it wins where the *drive*
:math:`I_K = \int_0^\infty s\,dt` of memorising alone exceeds what it needs, which grows as N.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from scipy.special import erfcx, expit

from icllab.core.domains import FINITE, POSITIVE, Domain
from icllab.core.errors import IclError, expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, Number, Numbers, plain, read

_HALF = Domain(above=0, below=np.log(2.0))


class Memorising(NamedTuple):
    """Time and drive of memorising."""

    time: Number
    drive: Number

    __repr__ = fields_repr
    _repr_html_ = fields_html


class Race(NamedTuple):
    """Times, logit of the table, value w and match beta of the attention [time], and the copy's logit w p [time]."""

    time: Array
    table: Array
    value: Array
    match: Array
    copy: Array

    __repr__ = fields_repr
    _repr_html_ = fields_html


def drive_per_pair(match: Numbers = 0.0, value: Numbers = 0.0) -> Number:
    r"""Drive that the context needs for each pair of a long prompt, without the noise of other labels.

    .. math:: \frac{I_N}N = e^{-\beta_0}\sqrt{\tfrac\pi2}\,e^{w_0^2/2}\,\mathrm{erfc}(w_0/\sqrt2)

    This is not the limit of ``context_time(N) / 2N`` for long prompts: the noise :math:`w/4N` of the labels is of the
    order of :math:`e^\beta/2N` at any length. At :math:`w_0 = \beta_0 = 0` that limit is 1.37, and this is 1.253.

    Args:
        match: :math:`\beta_0` at the start, a finite number.
        value: :math:`w_0` at the start, a finite number.

    Derived: docs/races.md, What the context needs.
    """
    beta, w = read(match=(match, FINITE), value=(value, FINITE))
    return plain(np.exp(-beta) * np.sqrt(np.pi / 2) * erfcx(w / np.sqrt(2)))


def context_time(pairs: int, match: float = 0.0, value: float = 0.0, *, logit: float = 1.0) -> float:
    r"""Time at which the copy's logit w p reaches a level, if nothing can be memorised.

    .. math:: \dot w = p\,\sigma(-wp) - \frac{(1-p)^2}{N-1}\,w\,\sigma'(wp), \qquad
              \dot\beta = wp(1-p)\Bigl(\sigma(-wp) + \frac{1-p}{N-1}\,w\,\sigma'(wp)\Bigr)

    to first order in 1/N. Half of it is the drive that the context needs.

    Args:
        pairs: :math:`N`, an integer of at least 2.
        match: :math:`\beta_0` at the start, a finite number.
        value: :math:`w_0` at the start, a finite number.
        logit: Level of the copy's logit, :math:`> 0`.

    Derived: docs/races.md, What the context needs.
    """
    require_integer("pairs", pairs, least=2)
    beta, w, level = (
        float(part) for part in read(match=(match, FINITE), value=(value, FINITE), logit=(logit, POSITIVE))
    )

    def rate(_: float, state: Array) -> list[float]:
        return list(_attention_rates(float(state[0]), float(state[1]), pairs, 0.0))

    def reached(_: float, state: Any) -> float:
        return state[0] * _attention(state[1], pairs) - level

    reached.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    if reached(0.0, np.array([w, beta])) >= 0:
        return 0.0
    horizon = 1e3 * pairs * max(1.0, np.exp(-beta))
    solution = solve_ivp(rate, (0.0, horizon), [w, beta], method="LSODA", events=reached, rtol=1e-8, atol=1e-10)
    if solution.status != 1:
        raise IclError(f"context_time: expected a copy's logit of {level:g} by t = {horizon:g}, got {solution.message}")
    return float(solution.t[-1])


def table_memorising(classes: Numbers, *, loss: Numbers) -> Memorising:
    r"""Time and drive that a table with one logit per class needs to reach a mean loss, trained alone.

    .. math:: K\dot\varphi = \sigma(-\varphi), \qquad t = K(\varphi + e^\varphi - 1), \qquad I = K\varphi, \qquad
              \varphi = -\ln(e^{L}-1)

    Both are proportional to K: the exponent :math:`\nu` of a table is 1.

    Args:
        classes: :math:`K>0`.
        loss: :math:`0 < L < \ln 2`, in nats.

    Derived: docs/races.md, What memorising leaves.
    """
    k, level = read(classes=(classes, POSITIVE), loss=(loss, _HALF))
    phi = -np.log(np.expm1(level))
    return Memorising(plain(k * (phi + np.expm1(phi))), plain(k * phi))


def threshold_classes(context_drive: Numbers, *, prefactor: Numbers, exponent: Numbers) -> Number:
    r"""Number of classes above which the context wins, if memorising K classes has the drive :math:`cK^\nu`.

    .. math:: K^* = (I_N/c)^{1/\nu} \propto N^{1/\nu}e^{-\beta_0/\nu}

    Args:
        context_drive: :math:`I_N>0`, what the context needs.
        prefactor: :math:`c>0`.
        exponent: :math:`\nu>0`.

    Source: the power of N and of the start's exponential [Nguyen25].
    Derived: docs/races.md, The threshold.
    """
    drive, c, nu = read(
        context_drive=(context_drive, POSITIVE), prefactor=(prefactor, POSITIVE), exponent=(exponent, POSITIVE)
    )
    return plain((drive / c) ** (1 / nu))


def table_race(classes: float, pairs: int, match: float = 0.0, value: float = 0.0, *, times: Numbers) -> Race:
    r"""Flow of a table and attention together, to first order in 1/N.

    .. math:: K\dot\varphi = \sigma(-m) + \frac{(1-p)^2w^2}{2(N-1)}\sigma''(-m), \qquad m = \varphi + wp

    and :math:`\dot w, \dot\beta` of :func:`context_time` with m in the place of wp.

    Args:
        classes: :math:`K\ge1`.
        pairs: :math:`N`, an integer of at least 2.
        match: :math:`\beta_0` at the start, a finite number.
        value: :math:`w_0` at the start, a finite number.
        times: Times of the answer, increasing, from 0.

    Derived: docs/races.md, The threshold.
    """
    require_integer("pairs", pairs, least=2)
    k, beta, w = (
        float(part) for part in read(classes=(classes, Domain(least=1)), match=(match, FINITE), value=(value, FINITE))
    )
    t = np.atleast_1d(read(times=(times, FINITE))[0])
    if t.ndim != 1 or t[0] < 0 or np.any(np.diff(t) <= 0):
        raise expected("times", "increasing numbers from 0", "other times")

    def rate(_: float, state: Array) -> list[float]:
        phi, v, b = map(float, state)
        m = phi + v * _attention(b, pairs)
        noise = (1 - _attention(b, pairs)) ** 2 / (pairs - 1)
        bend = expit(-m) * expit(m) * (expit(m) - expit(-m))  # second derivative of sigma at -m
        return [(expit(-m) + noise * v**2 / 2 * bend) / k, *_attention_rates(v, b, pairs, phi)]

    solution = solve_ivp(rate, (0.0, float(t[-1])), [0.0, w, beta], method="LSODA", t_eval=t, rtol=1e-8, atol=1e-10)
    if not solution.success:
        raise IclError(f"table_race: expected an integration to t = {t[-1]:g}, got: {solution.message}")
    table, values, matches = solution.y
    return Race(t, table, values, matches, values * _attention(matches, pairs))


def table_threshold(pairs: int, match: float = 0.0, value: float = 0.0, *, time: float) -> float:
    r"""Number of classes at which table and copy each contribute half the logit of the race after a time.

    Args:
        pairs: :math:`N`, an integer of at least 2.
        match: :math:`\beta_0` at the start, a finite number.
        value: :math:`w_0` at the start, a finite number.
        time: :math:`t > 0`, duration of the race: many times N.

    Derived: docs/races.md, The threshold.
    """
    (end,) = read(time=(time, POSITIVE))

    def excess(log_classes: float) -> float:
        race = table_race(float(np.exp(log_classes)), pairs, match, value, times=[float(end)])
        return float(race.copy[-1] - race.table[-1])

    low, high = 0.0, np.log(100.0 * pairs * np.exp(max(-match, 0.0)))
    if excess(low) > 0 or excess(high) < 0:
        raise IclError(f"table_threshold: expected a crossing between 1 and {np.exp(high):.3g} classes, got none")
    return float(np.exp(brentq(excess, low, high, xtol=1e-6)))


def _attention(match: Numbers, pairs: int) -> Numbers:
    """Attention to the copy."""
    return expit(match - np.log(pairs - 1))


def _attention_rates(value: float, match: float, pairs: int, phi: float) -> tuple[float, float]:
    """Rates of change of w and beta, given an in-weights logit."""
    p = _attention(match, pairs)
    m = phi + value * p
    error, slope = expit(-m), expit(m) * expit(-m) * value / (pairs - 1)
    return p * error - (1 - p) ** 2 * slope, value * p * (1 - p) * (error + (1 - p) * slope)
