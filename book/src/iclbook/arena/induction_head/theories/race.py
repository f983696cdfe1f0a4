r"""Networks with too few classes memorise them first and never use the context; all others take the same time.

.. math:: q = \frac1{1 + (K/K^*)^{1/w}}, \qquad K^* = k_0N^{1/\nu}, \quad \nu = 0.7

is the probability that it never comes, for K classes and N pairs. Source: [Nguyen25], whose exponent is fixed here;
:math:`k_0` and w are fitted.
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from icllab.arena import Prediction, log_likelihood

NU = 0.7


def fit(train):
    """Fit time, scale, k_0 and w by likelihood, from several starts."""
    names = ("time", "scale", "threshold", "width")
    middle = np.log(train["value"].values).mean()

    def numbers(x):
        return dict(zip(names, [*x[:1], np.exp(x[1]), x[2], np.exp(x[3])], strict=True))

    def loss(x):
        return -log_likelihood(train, predict(numbers(x), train)) + 1e-3 * np.sum(np.square(x[1:]))

    starts = [np.array([middle, 0.0, threshold, 0.0]) for threshold in (0.0, 2.0, 4.0)]
    fits = [minimize(loss, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-6}) for start in starts]
    return numbers(min(fits, key=lambda best: best.fun).x)


def predict(numbers, conditions):
    """One log-normal time, and the probability that the head never forms."""
    threshold = numbers["threshold"] + np.log(conditions["pairs"].values) / NU
    excess = np.log(conditions["classes"].values) - threshold
    never = np.minimum(expit(-excess / numbers["width"]), 1 - 1e-9)
    return Prediction(np.full(len(never), numbers["time"]), numbers["scale"], never)
