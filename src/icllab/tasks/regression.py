"""Tasks whose answer is a number, and checks of fields and predictions for all tasks."""

from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from icllab.core.errors import expected, require_integer
from icllab.core.prompt import RegressionPrompt, scored_positions
from icllab.core.protocols import AbstractTask


def answered(prediction: Array, prompt: Any, *answer: int) -> int:
    """Number of positions of a prediction: all positions of the prompt, or 1 for the last.

    Raises:
        InputError: Its shape is not that number, followed by the shape ``answer`` of one answer.
    """
    shape, wishes = jnp.shape(prediction), ((prompt.positions, *answer), (1, *answer))
    if shape not in wishes:
        without_units = tuple(size for size in shape if size != 1)
        wish = wishes[shape[:1] == (1,) and without_units != wishes[0]]
        is_wide = without_units == tuple(size for size in wish if size != 1) and len(shape) > len(wish)
        hint = "squeeze the axis of length 1" if is_wide else "answer every position, or the last"
        raise expected("prediction", str(wish), shape, hint)
    return shape[0]


def answered_mask(count: int, prompt: Any) -> Bool[Array, " answered"] | None:
    """Mask of the last ``count`` positions that have a target; None: all have one."""
    mask = scored_positions(prompt)
    return None if mask is None else mask[-count:]


def require_sizes(task: AbstractTask, *names: str) -> None:
    """Raise unless each of these static fields is an int >= 1."""
    for name in names:
        require_integer(name, getattr(task, name))


def real(name: str, value: Any) -> Array:
    """``value`` as an array of its own type; raise unless it holds real numbers."""
    if any(isinstance(leaf, str | bytes) for leaf in jax.tree.leaves(value)):  # NumPy takes some for types
        raise expected(name, "real numbers", value)
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        raise expected(name, "real numbers", type(value).__name__) from None
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise expected(name, "real numbers", f"numbers of type {array.dtype.name}")
    return array


def number(name: str, value: Any) -> Array:
    """A number that may be swept, as a floating-point array; raise unless it is real."""
    if isinstance(value, bool) or not isinstance(value, Real):
        real(name, value)
    return jnp.asarray(value, float)


class AbstractRegression(AbstractTask):
    """A task whose answers are real numbers, with the squared error as its loss."""

    def loss(self, prediction: Array, prompt: RegressionPrompt) -> Float[Array, " answered"]:
        r"""Squared error :math:`(\hat y - y)^2`, no factor 1/2, at the positions answered (every, or the last).

        NaN where the prompt is masked.

        Raises:
            InputError: There is not one number for every position, or for the last.
        """
        count = answered(prediction, prompt)
        mask, targets = answered_mask(count, prompt), prompt.y[-count:]
        if mask is None:
            return (prediction - targets) ** 2
        # The mask comes first too: no gradient of what is masked.
        return jnp.where(mask, (jnp.where(mask, prediction, 0) - targets) ** 2, jnp.nan)
