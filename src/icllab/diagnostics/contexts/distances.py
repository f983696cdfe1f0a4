r"""Divergences between answers that match the task's loss: squares, or KL divergences of softmax distributions."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.core.errors import expected
from icllab.core.protocols import AbstractTask
from icllab.tasks.classification import AbstractClassification
from icllab.tasks.fixed_prompts import FixedPrompts
from icllab.tasks.mixture import Mixture

KINDS = ("squares", "logits")


def divergence_kind(task: AbstractTask, answer: jax.ShapeDtypeStruct) -> str:
    """``logits`` for a classification task, else ``squares``; raise unless answers are real vectors."""
    if not jnp.issubdtype(answer.dtype, jnp.floating) or len(answer.shape) > 1:
        raise expected("model", "an answer of real numbers along one axis", f"{answer.dtype}{list(answer.shape)}")
    while isinstance(task, FixedPrompts | Mixture):  # the loss is that of a task within
        task = task.tasks[0] if isinstance(task, Mixture) else task.task
    return "logits" if isinstance(task, AbstractClassification) else "squares"


def divergence(kind: str, target: Float[Array, "*query output"], answer: Float[Array, "*query output"]) -> Any:
    r"""Divergence of every answer z from its target t.

    .. math:: \tfrac12 \lVert z - t \rVert^2 \quad (\text{squares}), \qquad
              \mathrm{KL}\big(\operatorname{softmax} t \,\Vert\, \operatorname{softmax} z\big) \quad (\text{logits})

    Both are in nats; the first is the divergence of two normal distributions of variance 1.
    """
    if kind == "squares":
        return jnp.sum((answer - target) ** 2, axis=-1) / 2
    log_target, log_answer = jax.nn.log_softmax(target), jax.nn.log_softmax(answer)
    return jnp.sum(jnp.exp(log_target) * (log_target - log_answer), axis=-1)


def squared_size(kind: str, target: Float[Array, "*query output"], change: Float[Array, "*query output"]) -> Any:
    r"""Twice the divergence of a small change v of an answer t, to leading order.

    .. math:: \lVert v \rVert^2 \quad (\text{squares}), \qquad
              v^\top (\operatorname{diag} s - s s^\top)\, v, \quad s = \operatorname{softmax} t \quad (\text{logits})
    """
    if kind == "squares":
        return jnp.sum(change**2, axis=-1)
    share = jax.nn.softmax(target)
    centred = change - jnp.sum(share * change, axis=-1, keepdims=True)
    return jnp.sum(share * centred**2, axis=-1)


def metric_root(kind: str, target: Float[Array, " output"], change: Float[Array, "output *rest"]) -> Array:
    r"""Columns :math:`G^{1/2} v`, whose squares sum to the :func:`squared_size` of each of several changes."""
    if kind == "squares":
        return change
    share = jax.nn.softmax(target).reshape(-1, *(1,) * (change.ndim - 1))
    return jnp.sqrt(share) * (change - jnp.sum(share * change, axis=0, keepdims=True))
