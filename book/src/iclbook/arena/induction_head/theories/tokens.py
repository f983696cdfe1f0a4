"""The number of tokens until an induction head forms is proportional to the root of batch and length.

Source: [Aoyama25]; the constant, which the paper has from language models, is fitted.
"""

import numpy as np

from icllab.arena import fit_log_linear, predict_log_linear


def fit(train):
    """Fit a constant and the scale."""
    return fit_log_linear(train, {}, steps(train))


def predict(numbers, conditions):
    """A constant divided by the root of the tokens of a step."""
    return predict_log_linear(numbers, {}, steps(conditions))


def steps(conditions):
    """Logarithm of the steps up to a constant: the root of batch and length divided by their product."""
    return -np.log(conditions["batch"].values * (2 * conditions["pairs"].values + 1)) / 2
