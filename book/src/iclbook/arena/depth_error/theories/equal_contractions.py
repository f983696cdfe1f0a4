"""Every layer contracts the error by the same factor as the best preconditioned step on its own.

Source: [Ahn23] for that step, whose error is (d + 1)/(n + d + 1) of the labels' variance. Only the scale is fitted.
"""

import numpy as np

from icllab.arena import fit_log_linear, predict_log_linear
from icllab.theory.preconditioners import optimal


def fit(train):
    """Fit the scale."""
    return fit_log_linear(train, {}, errors(train), constant=False)


def predict(numbers, conditions):
    """The error of one step to the power of the number of layers."""
    return predict_log_linear(numbers, {}, errors(conditions), constant=False)


def errors(conditions):
    """Logarithm of the error of one step times the number of layers, for each cell."""
    dims, lengths = conditions["dim"].values.astype(int), conditions["alpha"].values * conditions["dim"].values
    steps = [optimal(np.ones(d), length=round(n)).loss / d for d, n in zip(dims, lengths, strict=True)]
    return conditions["layers"].values * np.log(steps)
