"""One number under all conditions."""

from icllab.arena import fit_log_linear, predict_log_linear


def fit(train):
    """Mean and scale of the logarithm."""
    return fit_log_linear(train, {})


def predict(numbers, conditions):
    """The same distribution for every cell."""
    return predict_log_linear(numbers, {})
