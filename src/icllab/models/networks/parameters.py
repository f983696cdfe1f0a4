"""Number of parameters of a model, and the width at which another model has the same number."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from icllab.core.domains import Domain
from icllab.core.errors import expected


def parameter_count(model: Any) -> int:
    """The number of trainable parameters: floating-point entries of a model's leaves.

    Members of an ensemble count each.
    """
    leaves = jax.tree.leaves(eqx.filter(model, lambda leaf: eqx.is_inexact_array(leaf) or _promised(leaf)))
    return sum(math.prod(leaf.shape) for leaf in leaves)


def _promised(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct) and jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact)


def width_for(build: Callable[[int], Any], parameters: int) -> int:
    """The largest width at which ``build(width)`` has at most ``parameters`` parameters; no weights are drawn.

    They are counted by :func:`parameter_count`, and grow with the width. A model of width 1 that has more is refused.
    """

    def count(width: int) -> int:
        return parameter_count(eqx.filter_eval_shape(lambda: build(width)))

    if not callable(build):
        raise expected("build", "a function of a width that makes a model", type(build).__name__)
    Domain(least=1).require("parameters", parameters)
    if count(1) > parameters:
        raise expected("parameters", f"at least {count(1)}, the number at width 1", parameters)
    low, high = 1, 2
    while count(high) <= parameters:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= parameters else (low, middle)
    return low
