"""Tasks whose answer is a number; and what all tasks have for their fields and for the positions answered."""

from collections.abc import Callable
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from icllab.core.errors import expected
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractTask


def answered(prediction: Array, prompt: Any) -> int:
    """How many positions a prediction answers: all of them, or the last one; other numbers are refused."""
    if prediction.shape[0] not in (1, prompt.positions):
        raise expected("prediction", f"{prompt.positions} positions, or 1 for the last", prediction.shape[0])
    return prediction.shape[0]


def require_sizes(task: AbstractTask, *names: str) -> None:
    """Refuse a static field that is no integer of at least 1."""
    for name in names:
        value = getattr(task, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise expected(name, "an integer of at least 1", getattr(task, name))


def require_leaf(name: str, value: Any, wanted: str, fits: Callable[[Any], Any], hint: str = "") -> None:
    """Refuse what is no scalar, or does not fit; what is traced, or stands for a number in a tree, cannot be asked."""
    if isinstance(value, jax.Array) and not isinstance(value, Tracer):
        number = np.asarray(value)
        if number.ndim or not fits(number):
            raise expected(name, wanted, number.tolist() if number.size < 8 else f"shape {number.shape}", hint)


def require_variance(name: str, value: Any) -> None:
    """Refuse a variance, or a deviation, that is negative, not finite or no scalar."""
    require_leaf(name, value, "a finite number >= 0", lambda x: (x >= 0) & np.isfinite(x))


def real(name: str, value: Any) -> Array:
    """What is given as an array, in its own type; what are no real numbers is refused."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        came = value if isinstance(value, str) else type(value).__name__
        raise expected(name, "real numbers", came) from None
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise expected(name, "real numbers", f"numbers of type {array.dtype.name}")
    return array


def number(name: str, value: Any) -> Array:
    """A number that may be swept, as a floating-point array; what is no real number is refused."""
    if isinstance(value, bool) or not isinstance(value, Real):
        real(name, value)
    return jnp.asarray(value, float)


class AbstractRegression(AbstractTask):
    """A task of real numbers, with the squared error for a loss."""

    def loss(self, prediction: Float[Array, " answered"], prompt: RegressionPrompt) -> Float[Array, " answered"]:
        r"""Squared error :math:`(\hat y - y)^2`, no factor 1/2, at the positions answered (every, or the last)."""
        return (prediction - prompt.y[-answered(prediction, prompt) :]) ** 2
