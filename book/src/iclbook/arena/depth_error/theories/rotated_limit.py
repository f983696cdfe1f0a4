"""Errors of the best steps in the limit of large d, where rotated covariances have their own polynomial.

Source: the setting [Bordelon26]; the errors are those of ``rotated_covariances`` with the claim's spectrum: of steps
of different sizes, or of one size if layers share a matrix. Only the scale is fitted.
"""

import numpy as np

from iclbook.claims.descent.depth_needs_rotation.claim import eigenvalues
from icllab.arena import fit_log_linear, predict_log_linear
from icllab.theory.rotated_covariances import free_steps, tied_steps

RATIO = 16.0  # of the largest eigenvalue to the least


def fit(train):
    """Fit the scale."""
    return fit_log_linear(train, {}, errors(train), constant=False)


def predict(numbers, conditions):
    """The error in the limit."""
    return predict_log_linear(numbers, {}, errors(conditions), constant=False)


def errors(conditions):
    """Logarithm of the error of the best steps, for each cell."""
    return np.log([error(**cell) for cell in cells(conditions)])


def cells(conditions):
    """The conditions of each cell by name."""
    names = ("dim", "layers", "alpha", "rotates", "shared")
    return [dict(zip(names, row, strict=True)) for row in zip(*(conditions[n].values for n in names), strict=True)]


def error(dim, layers, alpha, rotates, shared):
    """Logarithm of the error of one cell; a fixed covariance is whitened by a matrix."""
    spectrum = eigenvalues(int(dim), RATIO) if rotates else np.ones(1)
    best = tied_steps if shared else free_steps
    return best(spectrum, alpha=float(alpha), layers=int(layers), tasks=1 / spectrum).loss
