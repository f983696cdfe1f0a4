r"""A question put to a predictor on many prompts: compiled once where it can be, prompt by prompt where not."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor, declared


class Question(eqx.Module):
    """What is measured on one prompt: losses, one number per answer. Its fields are static."""

    @abc.abstractmethod
    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Prompt) -> Float[Array, " answer"]:
        """The losses on one prompt."""


class EveryPosition(Question):
    """The loss at every position that the predictor answers."""

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Prompt) -> Float[Array, " answer"]:
        """``task.loss(predictor(prompt), prompt)``."""
        return task.loss(predictor(prompt), prompt)


def answers(
    question: Question, predictor: Predictor, task: AbstractTask, *, key: PRNGKeyArray, prompts: int, block: int = 256
) -> Float[np.ndarray, "prompt answer"]:
    """The answers on ``prompts`` prompts of ``task``; the same ones for every predictor and question under one key.

    A ``traceable`` predictor runs compiled, with its arrays, the task's and the key as arguments, so that
    another key or another value compiles nothing again. Any other is called prompt by prompt.

    Args:
        question: What is measured on a prompt.
        predictor: Any ``predictor(prompt) -> prediction``.
        task: Samples the prompts and owns the loss.
        key: Of the prompts.
        prompts: How many; at least 2.
        block: How many are held in memory at once.
    """
    if prompts < 2:
        raise expected("prompts", "an integer of at least 2, for a standard error", prompts)
    if block < 1:
        raise expected("block", "an integer of at least 1", block)
    keys = jax.random.split(key, prompts)
    if declared(predictor, "traceable"):
        return np.asarray(_compiled(question, predictor, task, keys, block), dtype=float)
    rows = []
    for start in range(0, prompts, block):
        some = _prompts(task, keys[start : start + block])
        one_by_one = (jax.tree.map(lambda leaf, i=i: leaf[i], some) for i in range(min(block, prompts - start)))
        rows += [np.asarray(question(predictor, task, prompt), dtype=float) for prompt in one_by_one]
    return np.stack(rows)


def drawn(task: AbstractTask, *, key: PRNGKeyArray, prompts: int, block: int = 256) -> Any:
    """Prompts stacked on a leading axis: those that :func:`answers` has under the same key."""
    keys = jax.random.split(key, prompts)
    parts = [_prompts(task, keys[rows]) for rows in _blocks(prompts, block)]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:prompts], *parts)


def answers_to(
    question: Question, predictor: Predictor, task: AbstractTask, prompts: Any, *, block: int = 256
) -> Float[np.ndarray, "prompt answer"]:
    """The answers to prompts that are there, stacked on a leading axis.

    What is compiled is one block, whatever the number of prompts: the last is filled up.
    """
    count = len(jax.tree.leaves(prompts)[0])
    if declared(predictor, "traceable"):
        parts = [
            np.asarray(_block(question, predictor, task, jax.tree.map(lambda leaf, r=rows: leaf[r], prompts)), float)
            for rows in _blocks(count, block)
        ]
        return np.concatenate(parts)[:count]
    # On the host: to slice arrays of a device one prompt at a time takes longer than most estimators.
    held = jax.device_get(prompts)
    one_by_one = (jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), held) for i in range(count))
    return np.stack([np.asarray(question(predictor, task, prompt), dtype=float) for prompt in one_by_one])


def mean_and_error(samples: Float[np.ndarray, "prompt *rest"]) -> tuple[np.ndarray, np.ndarray]:
    """The mean over prompts and its standard error; a NaN in one prompt is NaN in both, never left out."""
    return np.asarray(samples.mean(0)), np.asarray(samples.std(0, ddof=1) / np.sqrt(len(samples)))


@eqx.filter_jit
def _compiled(
    question: Question, predictor: Predictor, task: AbstractTask, keys: Key[Array, " prompt"], block: int
) -> Float[Array, "prompt answer"]:
    return jax.lax.map(lambda key: question(predictor, task, task.sample(key=key)), keys, batch_size=block)


@eqx.filter_jit
def _block(question: Question, predictor: Predictor, task: AbstractTask, prompts: Any) -> Float[Array, "prompt answer"]:
    return jax.vmap(lambda prompt: question(predictor, task, prompt))(prompts)


def _blocks(count: int, block: int) -> list[np.ndarray]:
    """Rows of ``block`` each, those beyond the last being the last once more."""
    return [np.minimum(np.arange(first, first + block), count - 1) for first in range(0, count, block)]


@eqx.filter_jit
def _prompts(task: AbstractTask, keys: Key[Array, " prompt"]) -> Prompt:
    """One prompt for each key, stacked."""
    return jax.vmap(lambda key: task.sample(key=key))(keys)
