"""Exact errors of the best steps at finite d, as if one matrix whitened every context.

Source: [Ahn23] for the layers as steps; the errors are those of ``descent.free_steps``. Only the scale is fitted.
"""

import numpy as np

from icllab.arena import fit_log_linear, predict_log_linear
from icllab.theory.descent import free_steps


def fit(train):
    """Fit the scale."""
    return fit_log_linear(train, {}, errors(train), constant=False)


def predict(numbers, conditions):
    """The exact error."""
    return predict_log_linear(numbers, {}, errors(conditions), constant=False)


def errors(conditions):
    """Logarithm of the error of the best steps over the dimension, for each cell."""
    dims, lengths = conditions["dim"].values, np.round(conditions["alpha"].values * conditions["dim"].values)
    sizes = zip(dims.astype(int).tolist(), lengths.astype(int).tolist(), conditions["layers"].values, strict=True)
    return np.log([free_steps(dim=dim, length=n, layers=int(layers)).loss / dim for dim, n, layers in sizes])
