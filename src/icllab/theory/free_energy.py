r"""Free energies of phases, and the sample size at which the posterior moves from one to another.

A phase is a set of parameters :math:`W_a`. What the posterior gives to it is :math:`e^{-F_n}` of its free energy,

.. math:: F_n(W_a) = -\log\int_{W_a}e^{-nL_n(w)}\varphi(w)\,dw
          = n L_n(w_a^*) + \lambda_a\log n - (m_a-1)\log\log n + O_p(1),

in nats, with :math:`w_a^*` the best parameter of the phase: accuracy, linear in n, against complexity, logarithmic
in n.

The expansion is a theorem under conditions:

- The minimum lies in the interior of :math:`W_a`, or its coefficient is that of the part inside.
- :math:`K_a = L - L(w_a^*)\ge0` throughout :math:`W_a`. A phase with :math:`L(w_a^*)` above the least loss of the
  model is no neighbourhood of a minimum of the model: outside :math:`W_a`, :math:`K_a` changes sign, and a set that
  reaches there has another free energy.
- The loss has relatively finite variance, :math:`\operatorname{Var}[\ell_w-\ell_{w_a^*}] \le c\,K_a(w)`. A truth
  within the model has it, and so has a regular model. Of a phase that is not true it must be assumed:
  :math:`\ell_w - \ell_{w_a^*}` may fluctuate where its mean vanishes.

The remainder is a random number of order one, so that a sample size of equal free energies is known up to that
order in :math:`n\,\Delta L`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from icllab.core.domains import FINITE, Domain
from icllab.core.errors import InputError, expected, require_instance
from icllab.core.views import fields_html, fields_repr
from icllab.theory.learning_coefficients import LearningCoefficient
from icllab.theory.parameters import Array, Number, Numbers, plain, read

_SAMPLES = Domain(above=1, hint="the expansion is in log n and log log n")
_LARGEST = 600.0  # log n, beyond which no crossing is looked for


class Phase(NamedTuple):
    """The properties of a set of parameters that determine its free energy.

    Attributes:
        loss: Its least loss in nats per sample, or that above the loss of another phase.
        coefficient: Learning coefficient and multiplicity of its neighbourhood.
        constant: What stands for the term of order one: nats, zero if it is not known.
    """

    loss: float
    coefficient: LearningCoefficient
    constant: float = 0.0

    __repr__ = fields_repr
    _repr_html_ = fields_html


def asymptotic(phase: Phase, n: Numbers) -> Number:
    r"""The free energy of a phase up to its term of order one.

    .. math:: F_n = nL + \lambda\log n - (m-1)\log\log n + c

    in nats, with the numbers L, :math:`\lambda`, m and c of ``phase``, and any shape of ``n``. An n that is not above
    1, or a number that is not finite, raises an ``InputError``.

    Args:
        phase: The phase: its least loss :math:`L` in nats per sample, learning coefficient :math:`\lambda`,
            multiplicity :math:`m` and constant :math:`c` in nats; finite.
        n: :math:`n`, the number of samples, :math:`> 1`.

    Source: [Watanabe09].
    """
    _check(phase)
    (n,) = read(n=(n, _SAMPLES))
    value, multiplicity = phase.coefficient
    log_n = np.log(n)
    return plain(n * phase.loss + value * log_n - (multiplicity - 1) * np.log(log_n) + phase.constant)


def posterior_weights(phases: Sequence[Phase], n: Numbers) -> Array:
    r"""Posterior probability of each phase, if these are all phases.

    .. math:: p_a = \frac{e^{-F_n(W_a)}}{\sum_b e^{-F_n(W_b)}}

    The axis of phases, of which there must be one at least, comes before those of ``n``. Errors are those of
    :func:`asymptotic`.

    Derived: docs/singular-learning.md, Competition of phases.
    """
    if not phases:
        raise expected("phases", "at least one", "none")
    energies = np.stack([np.asarray(asymptotic(phase, n)) for phase in phases])
    weights = np.exp(energies.min(axis=0) - energies)
    return weights / weights.sum(axis=0)


def crossings(first: Phase, second: Phase) -> Array:
    r"""The sample sizes at which two phases have the same free energy.

    The difference, in :math:`t = \log n`,

    .. math:: \Delta F = e^t\,\Delta L + \Delta\lambda\,t - \Delta m\,\log t + \Delta c,

    has a derivative whose product with t, :math:`te^t\Delta L + \Delta\lambda\,t - \Delta m`, has a monotone
    derivative. So there are at most three crossings, and all are found. One is the rule: a phase of less loss and a
    larger coefficient wins from some n on, :math:`n\,\Delta L \approx \Delta\lambda\log n`. A phase of less loss and a
    smaller coefficient has won from the start.

    Args:
        first: The first phase: its least loss :math:`L` in nats per sample, learning coefficient :math:`\lambda`,
            multiplicity :math:`m` and constant :math:`c` in nats; finite.
        second: The second phase, likewise.

    Returns:
        All n above 1 with :math:`\Delta F = 0`, ascending; empty if there are none. The expansion says nothing of
        small n: a crossing at a few samples is one of the formula only.

    Raises:
        InputError: A number of a phase is not finite, or all are equal: then every n is a crossing.

    Derived: docs/singular-learning.md, Competition of phases.
    """
    _check(first)
    _check(second)
    loss = second.loss - first.loss
    slope = second.coefficient.value - first.coefficient.value
    fold = second.coefficient.multiplicity - first.coefficient.multiplicity
    constant = second.constant - first.constant
    if loss == slope == fold == constant == 0:
        raise InputError(
            "phases: expected two different phases, got the same phase twice; its free energy equals itself at every n"
        )

    def curvature(t: float) -> float:
        return (1 + t) * np.exp(t) * loss + slope

    def steepness(t: float) -> float:
        return t * np.exp(t) * loss + slope * t - fold

    def difference(t: float) -> float:
        return np.exp(t) * loss + slope * t - fold * np.log(t) + constant

    turns = _roots(steepness, _roots(curvature, []))
    return np.exp(_roots(difference, turns))


def _check(phase: Phase) -> None:
    require_instance("phase", phase, Phase, "a Phase(loss, coefficient)")
    read(loss=(phase.loss, FINITE), value=(phase.coefficient.value, FINITE), constant=(phase.constant, FINITE))


def _roots(function: Callable[[float], float], turns: Sequence[float] | Array) -> Array:
    """All roots of a function that is monotone between consecutive ``turns``."""
    ends = [np.finfo(float).tiny, *turns, _LARGEST]
    values = [function(end) for end in ends]
    roots = []
    for left, right, low, high in zip(ends[:-1], ends[1:], values[:-1], values[1:], strict=True):
        if low == 0 and left in turns:
            roots.append(left)
        elif low * high < 0:
            roots.append(brentq(function, left, right, xtol=1e-14, maxiter=2000))
    return np.unique(roots)
