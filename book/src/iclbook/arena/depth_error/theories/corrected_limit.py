"""The limit of large d for rotated covariances, with a first correction in 1/d that is fitted.

Source: the setting [Bordelon26]. The logarithm of the error is that of the limit plus c/d.
"""

from iclbook.arena.depth_error.theories.rotated_limit import errors
from icllab.arena import fit_log_linear, predict_log_linear


def fit(train):
    """Fit the correction c and the scale."""
    return fit_log_linear(train, {"correction": 1 / train["dim"].values}, errors(train), constant=False)


def predict(numbers, conditions):
    """The corrected limit."""
    columns = {"correction": 1 / conditions["dim"].values}
    return predict_log_linear(numbers, columns, errors(conditions), constant=False)
