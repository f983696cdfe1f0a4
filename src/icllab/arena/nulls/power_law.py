"""A power law in every positive condition, and an exponential in every condition that can be zero."""

import numpy as np

from icllab.arena import fit_log_linear, predict_log_linear
from icllab.arena.nulls import condition_names

LN = "ln "


def fit(train):
    """Exponents by ``ln name``, coefficients by name, constant and scale."""
    names = [LN * bool((train[name] > 0).all()) + name for name in condition_names(train)]
    return fit_log_linear(train, columns(train, names))


def predict(numbers, conditions):
    """The power law."""
    names = [name for name in numbers if name not in ("constant", "scale")]
    return predict_log_linear(numbers, columns(conditions, names))


def columns(conditions, names):
    """The conditions by name, logarithms of those that ``ln`` stands before."""
    values = {name: conditions[name.removeprefix(LN)].values for name in names}
    return {name: np.log(value) if name.startswith(LN) else value for name, value in values.items()}
