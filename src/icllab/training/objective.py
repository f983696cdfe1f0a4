"""What is minimised: the task's own loss, averaged over the prompts of a step and the chosen positions."""

from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.core.errors import IclError, expected
from icllab.core.prompt import Prompt

Positions = str | Sequence[int]


def chosen_positions(positions: Positions, total: int, answered: int) -> tuple[int, ...]:
    """Which of a prompt's ``total`` positions are trained on, from 0; the predictor answers the last ``answered``."""
    if isinstance(positions, str):
        if positions not in ("every", "last"):
            raise expected("positions", "'every', 'last' or integers", positions)
        return tuple(range(total - answered, total)) if positions == "every" else (total - 1,)
    if not isinstance(positions, Iterable):
        raise expected("positions", "'every', 'last' or integers", positions, "positions=[3] is one of them")
    which = tuple(positions)
    first = total - answered
    if not which or not all(isinstance(i, int) and first <= i < total for i in which) or len(set(which)) < len(which):
        raise expected("positions", f"different integers from {first} to {total - 1}", list(which))
    return which


def require_prediction(predictor: Any, task: Any, prompt: Prompt) -> int:
    """How many positions ``predictor`` answers; one whose answer the task cannot judge is refused."""
    total = prompt.positions
    wanted = f"a prediction with {total} positions, or 1 for the last"
    try:
        prediction = eqx.filter_eval_shape(predictor, prompt)
    except IclError:
        raise
    except Exception as error:
        fitting = "that JAX can trace" if isinstance(error, jax.errors.JAXTypeError) else "for prompts of this task"
        name = getattr(predictor, "__name__", None) or type(predictor).__name__
        first = (str(error).splitlines() or [""])[0]
        raise expected("predictor", f"one {fitting}", f"{name}, {type(error).__name__}: {first}") from error
    if not isinstance(prediction, jax.ShapeDtypeStruct):
        raise expected("predictor", wanted, type(prediction).__name__)
    if not prediction.shape or prediction.shape[0] not in (1, total):
        raise expected("predictor", wanted, list(prediction.shape), "it is called on one prompt")
    answered = prediction.shape[0]
    try:
        loss = eqx.filter_eval_shape(task.loss, prediction, prompt)
    except IclError:
        raise
    except Exception as error:
        came = f"{prediction.dtype}{list(prediction.shape)}"
        raise expected("predictor", "a prediction that task.loss can judge", came) from error
    if loss.shape != (answered,):
        raise expected("task.loss", f"one number for each of {answered} positions", list(loss.shape))
    return answered


def losses_at(
    predictor: Any, task: Any, prompts: Any, positions: tuple[int, ...], total: int
) -> Float[Array, " position"]:
    """The mean over prompts of the loss at the chosen positions."""

    def one(prompt: Any) -> Array:
        found = task.loss(predictor(prompt), prompt)
        first = total - found.shape[0]
        if positions == tuple(range(first, total)):
            return found
        if positions == (total - 1,):
            return found[-1:]
        return found[jnp.asarray([i - first for i in positions])]

    return jnp.mean(jax.vmap(one)(prompts), axis=0)
