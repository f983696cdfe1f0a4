"""The number of tokens until an induction head forms is 10^5.7 times the root of batch and length.

Source: [Aoyama25], of language models in pretraining, whatever their size.
"""

import numpy as np

from icllab.arena import fit_log_linear, predict_log_linear

TOKENS = 10**5.7


def fit(train):
    """Fit the scale alone; constant and exponent are the paper's."""
    return fit_log_linear(train, {}, steps(train, TOKENS), constant=False)


def predict(numbers, conditions):
    """The number of steps in which the paper's number of tokens is seen."""
    return predict_log_linear(numbers, {}, steps(conditions, TOKENS), constant=False)


def steps(conditions, tokens):
    """Logarithm of the steps for ``tokens`` times the root of batch and length, with batch times length per step."""
    of_step = conditions["batch"].values * (2 * conditions["pairs"].values + 1)
    return np.log(tokens) - np.log(of_step) / 2
