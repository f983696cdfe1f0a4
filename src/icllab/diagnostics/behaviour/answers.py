r"""A question put to predictors on many prompts: compiled once where it can be, prompt by prompt where not."""

import abc
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from icllab.core.errors import require_integer, require_key
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor, declared
from icllab.training.ensembles import Ensemble, alone


class Question(eqx.Module):
    """What is measured on one prompt: losses, one number per answer. Its fields are static."""

    @abc.abstractmethod
    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Prompt) -> Float[Array, " answer"]:
        """The losses on one prompt."""


class EveryPosition(Question):
    """The loss at every position that the predictor answers."""

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Prompt) -> Float[Array, " answer"]:
        """The task's loss of the prediction."""
        return task.loss(predictor(prompt), prompt)


def answers(
    question: Question,
    predictor: Predictor | Ensemble,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    prompts: int,
    block: int = 256,
) -> Float[np.ndarray, "*member prompt answer"]:
    """The answers on freshly drawn prompts of a task; the same ones for every predictor and question under one key.

    A ``traceable`` predictor runs compiled, with its arrays, the task's and the prompts as arguments, so that
    another key or another value compiles nothing again. All members of an ensemble are one compiled program. Any
    other predictor is called prompt by prompt. There are at least two ``prompts``, and ``block`` of them at once in
    memory.
    """
    require_integer("prompts", prompts, least=2)  # for a standard error
    require_integer("block", block)
    require_key(key)
    keys = jax.random.split(key, prompts)
    blocks = ((_prompts(task, keys[rows]), count) for rows, count in _blocks(prompts, min(block, prompts)))
    return np.concatenate([_asked(question, predictor, task, some, count) for some, count in blocks], axis=-2)


def drawn(task: AbstractTask, *, key: PRNGKeyArray, prompts: int, block: int = 256) -> Any:
    """Prompts stacked on a leading axis: those that :func:`answers` has under the same key."""
    keys = jax.random.split(key, prompts)
    parts = [_prompts(task, keys[rows]) for rows, _ in _blocks(prompts, block)]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:prompts], *parts)


def answers_to(
    question: Question, predictor: Predictor | Ensemble, task: AbstractTask, prompts: Any, *, block: int = 256
) -> Float[np.ndarray, "*member prompt answer"]:
    """The answers to prompts that are there, stacked on a leading axis.

    What is compiled is one block, whatever the number of prompts: the last is filled up.
    """
    total = len(jax.tree.leaves(prompts)[0])
    blocks = ((jax.tree.map(lambda leaf, r=rows: leaf[r], prompts), count) for rows, count in _blocks(total, block))
    return np.concatenate([_asked(question, predictor, task, some, count) for some, count in blocks], axis=-2)


def mean_and_error(samples: Float[np.ndarray, "prompt *rest"]) -> tuple[np.ndarray, np.ndarray]:
    """The mean over prompts and its standard error; a NaN in one prompt is NaN in both, never left out."""
    return np.asarray(samples.mean(0)), np.asarray(samples.std(0, ddof=1) / np.sqrt(len(samples)))


def means_and_errors(samples: Mapping[str, Float[np.ndarray, "prompt *rest"]]) -> dict[str, np.ndarray]:
    """The means over prompts by name, each with an ``_error``."""
    return {
        f"{name}{end}": part
        for name, some in samples.items()
        for end, part in zip(("", "_error"), mean_and_error(some), strict=True)
    }


def _asked(
    question: Question, predictor: Predictor | Ensemble, task: AbstractTask, prompts: Any, count: int
) -> Float[np.ndarray, "*member prompt answer"]:
    """The answers to the first ``count`` prompts of a block."""
    members = predictor if isinstance(predictor, Ensemble) else alone(predictor)
    if declared(members.stacked, "traceable"):
        arrays, rest = eqx.partition(members.stacked, eqx.is_array)
        numbers = jnp.arange(members.size)
        found = np.asarray(_compiled(question, arrays, rest, numbers, task, prompts), dtype=float)[:, :count]
    else:
        # On the host: to slice arrays of a device one prompt at a time takes longer than most estimators.
        held = jax.device_get(prompts)
        one_by_one = [jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), held) for i in range(count)]
        networks = [members.member(i) for i in range(members.size)]
        found = np.array([[np.asarray(question(one, task, p), float) for p in one_by_one] for one in networks])
    return found if isinstance(predictor, Ensemble) else found[0]


@eqx.filter_jit
def _compiled(
    question: Question, arrays: Any, rest: Any, numbers: Int[Array, " member"], task: AbstractTask, prompts: Any
) -> Float[Array, "member prompt answer"]:
    """One member after the other, its prompts side by side."""

    def one(member: tuple[Any, Array]) -> Float[Array, "prompt answer"]:
        predictor = eqx.combine(member[0], rest)
        return jax.vmap(lambda prompt: question(predictor, task, prompt))(prompts)

    return jax.lax.map(one, (arrays, numbers))


def _blocks(count: int, block: int) -> list[tuple[np.ndarray, int]]:
    """Rows of ``block`` each, those beyond the last being the last once more; and how many of them count."""
    starts = range(0, count, block)
    return [(np.minimum(np.arange(first, first + block), count - 1), min(block, count - first)) for first in starts]


@eqx.filter_jit
def _prompts(task: AbstractTask, keys: Key[Array, " prompt"]) -> Prompt:
    """One prompt for each key, stacked."""
    return jax.vmap(lambda key: task.sample(key=key))(keys)
