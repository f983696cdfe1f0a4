r"""Time grows as the logarithm of the inverse start, at the rate of escape from the landscape's saddle.

.. math:: T = \frac\tau{h(N)}\,(\kappa - 2\ln s)

with the growth rate h of the saddle at the plateau, the scale s of queries and keys at the start, whose product goes
with its square, and two fitted numbers. Source: [Reddy24]; the rate is that of ``induction_landscape.escape_rate``.
"""

import numpy as np

from icllab.arena import fit_log_linear, log_likelihood, predict_log_linear
from icllab.theory.induction_landscape import escape_rate

ABOVE = np.geomspace(0.25, 64.0, 33)  # kappa minus its least value, at which the time of the largest start is 0


def fit(train):
    """Fit kappa by a search, and tau and scale by likelihood."""
    least = 2 * np.log(train["start"].values.max())
    fits = [fit_log_linear(train, {}, time(train, least + above)) | {"kappa": least + above} for above in ABOVE]
    return max(fits, key=lambda numbers: log_likelihood(train, predict(numbers, train)))


def predict(numbers, conditions):
    """The time of the escape."""
    return predict_log_linear(numbers, {}, time(conditions, numbers["kappa"]))


def time(conditions, kappa):
    """The logarithm of the time in units of tau, bounded for starts larger than all starts of the fit."""
    rates = np.array([float(np.asarray(escape_rate(pairs=int(pairs)))) for pairs in conditions["pairs"].values])
    return np.log(np.maximum(kappa - 2 * np.log(conditions["start"].values), ABOVE[0] / 2)) - np.log(rates)
