"""Time is quadratic in the length of the context and depends on nothing else.

Source: [Musat25], of a minimal task and a reduced network.
"""

import numpy as np

from icllab.arena import fit_log_linear, predict_log_linear


def fit(train):
    """Fit a constant and the scale."""
    return fit_log_linear(train, {}, square(train))


def predict(numbers, conditions):
    """A constant times the square of the number of tokens."""
    return predict_log_linear(numbers, {}, square(conditions))


def square(conditions):
    """The logarithm of the square of the number of tokens."""
    return 2 * np.log(2 * conditions["pairs"].values + 1)
