"""Errors of the best steps in the limit of large d, as if one matrix whitened every context.

Source: the isotropic case [Bordelon26]. Only the scale is fitted.
"""

import numpy as np

from icllab.arena import fit_log_linear, predict_log_linear
from icllab.theory.rotated_covariances import free_steps


def fit(train):
    """Fit the scale."""
    return fit_log_linear(train, {}, errors(train), constant=False)


def predict(numbers, conditions):
    """The error in the limit."""
    return predict_log_linear(numbers, {}, errors(conditions), constant=False)


def errors(conditions):
    """Logarithm of the error of the best steps on isotropic inputs, for each cell."""
    cells = zip(conditions["layers"].values, conditions["alpha"].values, strict=True)
    return np.log([free_steps(np.ones(1), alpha=float(alpha), layers=int(layers)).loss for layers, alpha in cells])
