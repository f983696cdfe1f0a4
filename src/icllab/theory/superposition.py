r"""A toy model of superposition: more features than dimensions, and the polygons that they make.

Features x in n coordinates pass through two dimensions and come back:

.. math:: f(x) = \operatorname{ReLU}(W^\top Wx + b), \qquad L(W, b) = E\lVert x - f(x)\rVert^2,
          \qquad x = \lambda e_i,

with one of n features present, i uniform, and :math:`\lambda` uniform on [0, 1]. Columns of W that are the corners of
a regular polygon, and zero for the other features, are critical points with losses of their own.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import root

from icllab.core.domains import FINITE
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.learning_coefficients import LearningCoefficient
from icllab.theory.parameters import Array

LEAST, MOST = 4, 6  # corners
IDLE = -0.5  # bias of a feature that is not answered


class Polygon(NamedTuple):
    """A critical point.

    Attributes:
        weights: W, [2, feature]; the corners first.
        bias: b, [feature].
        loss: L there.
        coefficient: Learning coefficient of its neighbourhood.
    """

    weights: Array
    bias: Array
    loss: float
    coefficient: LearningCoefficient

    __repr__ = fields_repr
    _repr_html_ = fields_html


def loss(weights: Array, bias: Array) -> float:
    r"""The population loss, exactly.

    .. math::
        L = \frac1n\sum_{ij}\int_0^1\bigl(\delta_{ij}\lambda - \max(0, g_{ji}\lambda + b_j)\bigr)^2d\lambda,
        \qquad g = W^\top W

    with ``weights`` W, [dimension, feature], and ``bias`` b, [feature]: as many as W has columns.

    Source: [Elhage22]; [Chen23].
    Derived: docs/singular-training.md, Polygons of superposition.
    """
    weights, bias = FINITE.read("weights", weights), FINITE.read("bias", bias)
    g, b, target, (cube, square, width) = _pairs(weights, bias)
    terms = target / 3 - 2 * target * (g * cube + b * square) + g**2 * cube + 2 * g * b * square + b**2 * width
    return float(np.sum(terms) / len(bias))


def gradient(weights: Array, bias: Array) -> tuple[Array, Array]:
    """The gradient of the population loss, exactly.

    What is cut off by the rectifier vanishes at the cut, so that only the integrands are differentiated. Arguments and
    errors are those of :func:`loss`; the two parts have the shapes of ``weights`` and ``bias``.

    Derived: docs/singular-training.md, Polygons of superposition.
    """
    weights, bias = FINITE.read("weights", weights), FINITE.read("bias", bias)
    g, b, target, (cube, square, width) = _pairs(weights, bias)
    by_overlap = 2 * (g * cube + b * square - target * cube) / len(bias)
    by_bias = 2 * (g * square + b * width - target * square) / len(bias)
    return weights @ (by_overlap + by_overlap.T), np.sum(by_bias, axis=1)


def polygon(vertices: int, *, features: int = 6, positive: int = 0) -> Polygon:
    r"""A regular polygon of features in the plane, its loss and its learning coefficient.

    The corners have the length and the bias at which the loss is least. A feature without a corner has zero weight and
    is answered by a constant: :math:`\frac1{2n}` at best, or nothing if its bias is negative (here
    :math:`-\frac12`; all negative ones have the same loss). The rotations are a circle of equal loss. Across it,

    .. math:: \lambda = \tfrac12\bigl(3k - 1 + 3p + 2q\,[k = 4]\bigr), \qquad m = 1

    of k corners (``vertices``, 4 to 6), p features of positive and q of negative bias, n in all: the other three
    numbers of those do nothing in a neighbourhood, unless the corners' biases are at the kink of the rectifier, as
    those of the square are.

    Source: [Elhage22]; [Chen23].
    Derived: docs/singular-training.md, Polygons of superposition.
    """
    require_integer("vertices", vertices, least=LEAST)
    if vertices > MOST:
        raise expected("vertices", f"an integer from {LEAST} to {MOST}", vertices)
    require_integer("features", features, least=vertices)
    require_integer("positive", positive, least=0)
    negative = features - vertices - positive
    if negative < 0:
        raise expected("positive", f"at most the {features - vertices} features without a corner", positive)
    length, shift = (1.0, 0.0) if vertices == LEAST else _corner(vertices)
    angles = 2 * math.pi * np.arange(vertices) / vertices
    weights = np.zeros((2, features))
    weights[:, :vertices] = length * np.array([np.cos(angles), np.sin(angles)])
    bias = np.concatenate([np.full(vertices, shift), np.full(positive, 1 / (2 * features)), np.full(negative, IDLE)])
    directions = 3 * vertices - 1 + 3 * positive + (2 * negative if vertices == LEAST else 0)
    return Polygon(weights, bias, loss(weights, bias), LearningCoefficient(directions / 2, 1))


def _corner(vertices: int) -> tuple[float, float]:
    """Length and bias of the corners of a polygon of all features, which do not depend on how many others there are."""
    angles = 2 * math.pi * np.arange(vertices) / vertices
    unit = np.array([np.cos(angles), np.sin(angles)])

    def slopes(at: Array) -> Array:
        by_weights, by_bias = gradient(at[0] * unit, np.full(vertices, at[1]))
        return np.array([np.sum(by_weights * unit), np.sum(by_bias)])

    solution = root(slopes, np.array([1.2, -0.4]), tol=1e-14)
    return float(solution.x[0]), float(solution.x[1])


def _pairs(weights: Array, bias: Array) -> tuple[Array, Array, Array, tuple[Array, Array, Array]]:
    """Slope, bias and identity of all pairs [answered, present], and integrals over the part above zero."""
    if bias.ndim != 1 or weights.ndim != 2 or weights.shape[1:] != bias.shape:
        raise expected("bias", f"one for each column of weights, {weights.shape[-1]}", list(bias.shape))
    g = weights.T @ weights
    b = np.broadcast_to(bias[:, None], g.shape)
    cut = np.clip(-b / np.where(g == 0, 1, g), 0, 1)
    low = np.where(g > 0, cut, 0.0)
    high = np.where(g < 0, cut, np.where((g == 0) & (b <= 0), 0.0, 1.0))
    return g, b, np.eye(len(bias)), ((high**3 - low**3) / 3, (high**2 - low**2) / 2, high - low)
