r"""The time of the flow on the landscape of three strengths, from an attention set by the start.

.. math:: T = \tau\,t_N(a s^2)

with the time :math:`t_N(\alpha_0)` at which the loss of the flow from :math:`(0, \alpha_0, 0)` falls through half of
ln N, the scale s of queries and keys at the start, and two fitted numbers. Source: [Reddy24]; the flow is
``induction_landscape.flow``.
"""

import functools

import numpy as np

from iclbook.arena.induction_head.phenomenon import LABELS
from icllab.arena import fit_log_linear, log_likelihood, predict_log_linear
from icllab.theory import induction_landscape

STRENGTHS = (0.02, 0.2, 0.6, 2.0, 6.0, 20.0)  # at which the flow is solved; between them it is interpolated
FACTORS = np.geomspace(0.08, 5.0, 25)


def fit(train):
    """Fit the factor a by a search, and tau and scale by likelihood."""
    fits = [fit_log_linear(train, {}, time(train, factor)) | {"factor": factor} for factor in FACTORS]
    return max(fits, key=lambda numbers: log_likelihood(train, predict(numbers, train)))


def predict(numbers, conditions):
    """The time of the flow."""
    return predict_log_linear(numbers, {}, time(conditions, numbers["factor"]))


def time(conditions, factor):
    """The logarithm of the flow's time for every cell."""
    cells = zip(conditions["pairs"].values, conditions["start"].values, strict=True)
    return np.array([np.interp(np.log(factor * s**2), np.log(STRENGTHS), times(int(pairs))) for pairs, s in cells])


@functools.cache
def times(pairs):
    """Logarithms of the times at :data:`STRENGTHS`."""
    sizes = {"pairs": pairs, "labels": LABELS, "time": 5000.0, "levels": (0.5,)}
    flows = [induction_landscape.flow((0.0, strength, 0.0), **sizes) for strength in STRENGTHS]
    return np.log([flow.crossings[0.5] for flow in flows])
