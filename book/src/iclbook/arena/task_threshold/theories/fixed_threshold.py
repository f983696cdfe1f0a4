r"""A threshold in the number of urns that does not depend on training, with a width.

.. math:: \ln\frac p{1-p} = \frac{\ln K^* - \ln K}w

Source: after [Raventos23], where a network is on one side of a number of tasks. Two numbers are fitted.
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_expit

from icllab.arena import Prediction, log_likelihood


def fit(train):
    """Fit the logarithm of the threshold, its width and the scale by likelihood."""

    def numbers(x):
        return {"threshold": x[0], "width": np.exp(x[1]), "scale": max(np.exp(x[2]), 1e-3)}

    def loss(x):
        return -log_likelihood(train, predict(numbers(x), train))

    starts = [(np.log(k), 0.0, -1.0) for k in (4.0, 16.0, 64.0)]
    fits = [minimize(loss, start, method="Nelder-Mead", options={"maxiter": 4000}) for start in starts]
    return numbers(min(fits, key=lambda result: result.fun).x)


def predict(numbers, conditions):
    """The weight on either side of the threshold."""
    distance = numbers["threshold"] - np.log(conditions["tasks"].values)
    return Prediction(log_expit(distance / numbers["width"]), numbers["scale"])
