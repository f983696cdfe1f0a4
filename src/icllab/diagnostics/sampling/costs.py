"""Costs of functions, counted and not timed: a choice by them is the same on every machine and at every time."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jax.extend import core

from icllab.models import torch_derivatives

RATE = 2e9  # operations in a nominal second
OVERHEAD = 2e-3  # seconds of a gradient below which a step is mostly overhead, which chains side by side share


def operations(function: Callable[..., Any], *arguments: Any) -> float:
    """Scalar operations of a call, counted in its jaxpr.

    A product of matrices counts two for each pair of numbers, every other primitive one for each number that it
    returns. A loop of known length counts as often as it turns, another one once; of branches the dearest counts.
    """
    return _of(eqx.filter_make_jaxpr(function)(*arguments)[0].jaxpr)


def nominal_seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """The seconds that a processor of :data:`RATE` operations a second takes for a call."""
    return operations(function, *arguments) / RATE


def _of(jaxpr: Any) -> float:
    return sum(map(_of_equation, jaxpr.eqns))


def _of_equation(equation: Any) -> float:
    if equation.primitive.name == "torch":
        avals = [variable.aval for variable in equation.invars]
        return torch_derivatives.operations(equation.params["program"], avals)
    inner = [_of(jaxpr) for value in equation.params.values() for jaxpr in _jaxprs(value)]
    if inner:
        if equation.primitive.name == "cond":
            return max(inner)
        return equation.params.get("length", 1) * sum(inner)
    count = sum(math.prod(variable.aval.shape) for variable in equation.outvars)
    if equation.primitive.name == "dot_general":
        (axes, _), _ = equation.params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2.0 * count * math.prod(shape[axis] for axis in axes)
    return float(count)


def _jaxprs(value: Any) -> list[Any]:
    values = value if isinstance(value, list | tuple) else [value]
    return [
        item.jaxpr if isinstance(item, core.ClosedJaxpr) else item
        for item in values
        if isinstance(item, core.ClosedJaxpr | core.Jaxpr)
    ]


def chosen_mode(seconds: float) -> tuple[str, str]:
    """``"vmap"`` or ``"map"``, by the nominal ``seconds`` of a gradient, and the reason."""
    cost = f"a gradient takes nominally {1e3 * seconds:.2g} ms"
    if seconds < OVERHEAD:
        return "vmap", f"{cost}, below {1e3 * OVERHEAD:g}"
    return "map", f"{cost}, not below {1e3 * OVERHEAD:g}"
