"""Transformers that learn many programs at once, and the loss of each program along training."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import icllab as icl
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractTask
from icllab.models import BlockOptions, Tokens, Transformer
from icllab.models.torch_derivatives import with_autograd
from icllab.tasks import StringPrograms
from icllab.training import Record


class Counted(AbstractTask):
    """Prompts of all programs; the loss of each is multiplied by the weight of its program."""

    task: StringPrograms
    weights: Float[Array, " context"]

    def sample(self, *, key: PRNGKeyArray) -> TokenPrompt:
        """Sample a prompt of the task."""
        return self.task.sample(key=key)

    def loss(self, prediction: Float[Array, "position token"], prompt: TokenPrompt) -> Float[Array, " position"]:
        """The weighted loss of the task."""
        return self.weights[self.task.context_of(prompt)] * self.task.loss(prediction, prompt)


def task(
    names: Sequence[str], point: Any, *, exponent: float, by_data: bool = False, key: PRNGKeyArray
) -> StringPrograms:
    """Programs by the letters of their functions, the most frequent first: ``"ab"`` is a, then b.

    There are as many functions as ``point.functions`` says, otherwise as the last letter tells.
    """
    programs = [[ord(letter) - ord("a") for letter in name] for name in names]
    count = getattr(point, "functions", 1 + max(map(max, programs)))
    sizes = {"functions": count, "symbols": point.symbols, "lengths": (point.length,), "turned": True}
    return StringPrograms.init(**sizes, programs=programs, exponent=exponent, by_data=by_data, key=key)


def alike(task: StringPrograms) -> StringPrograms:
    """The task with the first function instead of all others."""
    same = [jnp.broadcast_to(leaf[:1], leaf.shape) for leaf in (task.tables, task.turns)]
    return eqx.tree_at(lambda t: (t.tables, t.turns), task, same)


def transformer(task: Any, point: Any, *, key: PRNGKeyArray) -> Transformer:
    """Transformer of the point's width, layers and heads: pre-norm blocks, learned positions."""
    return _transformer(task, point.width, point.layers, point.heads, key)


@eqx.filter_jit
def _transformer(task: Any, width: int, layers: int, heads: int, key: PRNGKeyArray) -> Transformer:
    block = BlockOptions(heads=heads, mlp=(2 * width,), norm="pre")
    sizes = {"dim": task.vocabulary, "width": width, "layers": layers, "length": task.length}
    return Transformer(Tokens(task.vocabulary), **sizes, positions="learned", block=block, key=key)


def train(
    task: AbstractTask, network: Transformer, point: Any, *, optimizer: Any, steps: Sequence[int], key: PRNGKeyArray
) -> Any:
    """Train a network on ``point.batch`` fresh prompts per step, and keep its parameters at ``steps``."""
    record = Record([0], keep=steps, progress=False)
    return icl.fit(network, task, steps=max(steps), batch=point.batch, optimizer=optimizer, key=key, record=record)


def program_losses(
    run: Any, task: StringPrograms, *, prompts: int, key: PRNGKeyArray
) -> Float[np.ndarray, "context step"]:
    """Loss of each program's answers above their entropy, in nats per symbol, on ``prompts`` prompts of each."""
    return np.asarray(kept_losses(run, task, held_out(task, prompts, key))).T - task.answer_entropy()


def held_out(task: StringPrograms, prompts: int, key: PRNGKeyArray) -> TokenPrompt:
    """Prompts of each program, [program, prompt]."""
    count = len(task.programs)
    of_each = [sample(task.only(c), prompts, jax.random.fold_in(key, c)) for c in range(count)]
    return jax.tree.map(lambda *parts: jnp.stack(parts), *of_each)


def kept_losses(run: Any, task: StringPrograms, prompts: TokenPrompt) -> Float[Array, "step context"]:
    """The mean loss of a symbol of the answer after each kept step of a run of one network."""
    return _losses(*trajectory(run), task, prompts)


def losses_of(network: Any, task: StringPrograms, prompts: TokenPrompt) -> Float[np.ndarray, " context"]:
    """The mean loss of a symbol of the answer of each program, of one network."""
    params, static = eqx.partition(with_autograd(network), eqx.is_inexact_array)
    return np.asarray(_losses(jax.tree.map(lambda leaf: leaf[None], params), static, task, prompts))[0]


def trajectory(run: Any) -> tuple[Any, Any]:
    """Parameters of a run's only network at the kept steps, stacked, and its static part."""
    params, static = jax.tree.map(jnp.asarray, run.trajectory.stacked()), run.trajectory.rest
    return params, jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, static)


@eqx.filter_jit
def sample(task: AbstractTask, count: int, key: PRNGKeyArray) -> TokenPrompt:
    """Draw ``count`` stacked prompts."""
    return task.sample_many(count, key=key)


@eqx.filter_jit
def _losses(params: Any, static: Any, task: StringPrograms, prompts: TokenPrompt) -> Float[Array, "step context"]:
    def at(step: Any) -> Array:
        network = eqx.combine(step, static)

        def sums(prompt: TokenPrompt) -> tuple[Array, Array]:
            answers = task.answers(prompt)
            losses = task.loss(network(prompt), prompt)
            return jnp.sum(jnp.where(answers, losses, 0)), jnp.sum(answers, dtype=losses.dtype)

        total, count = jax.vmap(jax.vmap(sums))(prompts)
        return jnp.sum(total, axis=1) / jnp.sum(count, axis=1)

    return jax.lax.map(at, params)
