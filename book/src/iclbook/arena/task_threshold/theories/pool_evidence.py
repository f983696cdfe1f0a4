r"""Free energies with the evidence of the pool's own parameters instead of Kd/2 times ln N.

.. math:: \eta = \gamma N^{1-\alpha}\,\Delta L - w\,\tfrac12\ln\det(1 + nF), \qquad n = 64N

with the Fisher matrix F of the logits of K urns, for a prompt of 32 draws from their mixture, a standard normal prior
and the n prompts of N steps. Derived: docs/memorising-generalising.md, Coefficients of the pool. Three numbers are
fitted.
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_expit

from icllab.arena import Prediction, log_likelihood

STEPS = (50, 100, 200, 400, 800, 1600)
EVIDENCE = {
    2: (55.7, 60.5, 65.4, 70.2, 75.1, 79.9),
    4: (103.3, 113.0, 122.7, 132.4, 142.1, 151.8),
    8: (189.3, 208.7, 228.1, 247.5, 266.9, 286.3),
    16: (332.6, 371.2, 409.8, 448.5, 487.2, 525.9),
    32: (576.5, 653.1, 730.2, 807.4, 884.8, 962.3),
    64: (953.3, 1104, 1257, 1411, 1565, 1720),
    128: (1501, 1792, 2090, 2392, 2698, 3005),
}
"""Urns of a pool -> half the logarithm of the determinant, at each number of steps: means of four pools."""


def fit(train):
    """Fit the numbers of the log odds and the scale; the best of several starts."""

    def numbers(x):
        return {"odds": np.clip(x[:3], -20.0, 20.0), "scale": max(np.exp(x[3]), 1e-3)}

    def loss(x):
        return -log_likelihood(train, predict(numbers(x), train))

    starts = [(0.5, -6.0, 0.0, -1.0), (0.3, -4.0, 2.0, -1.0), (0.8, -7.0, 1.0, -1.0), (0.2, -5.0, 3.0, -1.0)]
    fits = [minimize(loss, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-6}) for start in starts]
    return numbers(min(fits, key=lambda result: result.fun).x)


def predict(numbers, conditions):
    """The weight from the log odds, with a log-normal distribution."""
    growth, log_weight, log_gamma = numbers["odds"]
    tasks, steps, gap = (conditions[name].values for name in ("tasks", "steps", "gap"))
    evidence = np.array([EVIDENCE[int(k)][STEPS.index(int(n))] for k, n in zip(tasks, steps, strict=True)])
    odds = np.exp(log_gamma) * steps**growth * gap - np.exp(log_weight) * evidence
    return Prediction(log_expit(np.clip(odds, -13.0, 30.0)), numbers["scale"])
