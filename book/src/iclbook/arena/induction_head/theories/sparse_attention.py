"""Power laws in length, dimension and repetition of classes.

Source: [Zucchet25]. Exponents are fitted. Repetition is that across samples: the probability that two items drawn
independently are of one class.
"""

import numpy as np

from icllab.arena import fit_log_linear, predict_log_linear


def fit(train):
    """Fit a constant, three exponents and the scale."""
    return fit_log_linear(train, columns(train))


def predict(numbers, conditions):
    """The product of the three powers."""
    return predict_log_linear(numbers, columns(conditions))


def columns(conditions):
    """Logarithms of the number of tokens, the dimension and the probability of a repetition."""
    cells = zip(conditions["classes"].values, conditions["zipf"].values, strict=True)
    return {
        "length": np.log(2 * conditions["pairs"].values + 1),
        "dim": np.log(conditions["dim"].values),
        "repetition": np.log([repetition(int(classes), zipf) for classes, zipf in cells]),
    }


def repetition(classes, zipf):
    """The sum of the squared frequencies of the classes."""
    weights = np.arange(1.0, classes + 1) ** -zipf
    return np.sum((weights / weights.sum()) ** 2)
