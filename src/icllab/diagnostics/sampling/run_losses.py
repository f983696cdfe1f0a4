"""The task's loss as a function of the parameters of a network, or of a run at any step that it kept."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.core.errors import expected, kind_of, require_integer, require_key
from icllab.core.protocols import Predictor, declared, require_randomness, require_task
from icllab.diagnostics.behaviour.answers import prompts_at_once
from icllab.diagnostics.sampling.sampled_losses import BLOCK
from icllab.models.pytorch import from_module
from icllab.models.torch_derivatives import with_autograd
from icllab.training.ensembles import Ensemble
from icllab.training.runs import Run
from icllab.training.streams import (
    chosen_positions,
    losses_at,
    require_prediction,
    require_scored,
    scored_at,
    set_size,
)
from icllab.training.sweeps import replaced

PROMPTS = 4096  # number of prompts by default


class RunLoss(eqx.Module):
    """A member's loss on prompts: the mean over prompts and positions, or a vector of what each position adds to it.

    Two steps of one run, and two members, have the same program.
    """

    static: Any  # what is not trained of the predictor
    task: Any  # with the member's own numbers
    positions: tuple[int, ...] = eqx.field(static=True)  # that count
    total: int = eqx.field(static=True)  # positions of a prompt
    per_position: bool = eqx.field(static=True)
    targets: float | None = None  # mean number of targets of a prompt, of prompts with a mask
    at_once: int | None = eqx.field(static=True, default=None)  # prompts whose activations are in memory; None: all

    def __call__(self, params: Any, prompts: Any) -> Float[Array, "..."]:
        """The loss, or its terms."""
        predictor = eqx.combine(params, self.static)
        losses = losses_at(predictor, self.task, prompts, self.positions, self.total, block=self.at_once)
        scored = scored_at(prompts, self.positions)
        if scored is None or self.targets is None:
            return losses / len(self.positions) if self.per_position else jnp.mean(losses)
        # The same denominator for all parts of the data, so that their mean is that of the whole.
        count = jnp.sum(scored, axis=0).astype(losses.dtype)
        terms = jnp.where(count > 0, losses, 0) * count / (scored.shape[0] * self.targets)
        return terms if self.per_position else jnp.sum(terms)


def run_loss(
    run: Run,
    step: int | None,
    member: int,
    task: Any,
    *,
    per_position: bool,
    prompt: Any,
    data: Any = None,
) -> tuple[RunLoss, Any]:
    """The loss of one member, and its trained arrays after ``step`` updates; None: as they are at the end.

    Swept numbers of the task are those of the member; ``prompt`` is the shape of one prompt. Of ``data`` with a mask
    the loss is the mean over all their targets.

    Raises:
        InputError: The step was not kept.
    """
    members = run.members if step is None else run.trajectory.at(step)
    predictor = members.member(member)
    trained = jax.tree.map(lambda leaf: leaf is None, run.trajectory.rest, is_leaf=lambda leaf: leaf is None)
    params, static = eqx.partition(predictor, trained)
    swept = {name: values for name, values in run.members.coordinates.items() if name.startswith("task.")}
    task = replaced(task, "task", {name: jnp.asarray(values[member]) for name, values in swept.items()})
    prediction = require_prediction(predictor, task, prompt)
    indices = chosen_positions("every", prompt.positions, prediction)
    targets = None if data is None else _mean_targets(task, data, indices)
    return RunLoss(static, task, indices, prompt.positions, per_position, targets), params


def _mean_targets(task: Any, prompts: Any, indices: tuple[int, ...]) -> float | None:
    """Mean number of targets of a prompt with a mask; None without one."""
    require_scored("data", task, prompts, indices, prompts.positions)
    scored = scored_at(prompts, indices)
    return None if scored is None else float(np.asarray(scored).sum(axis=1).mean())


def network_loss(
    network: Any,
    task: Any,
    *,
    key: Any,
    data: Any = None,
    per_position: bool = False,
) -> tuple[RunLoss, Any, Any]:
    """The loss of one network on a fixed sample of a task, its floating-point arrays, and the prompts of the sample.

    The arguments of a sampler or a spectrum: the loss is the mean over prompts, and the point is the network as it is.
    Of a large vocabulary, a gradient holds the activations of as many prompts as have 2**23 logits.

    Raises:
        InputError: The network is not one predictor with floating-point arrays that JAX can differentiate.
    """
    require_task(task)
    if key is not None or data is None or isinstance(data, int):
        require_key(key)
    model: Any = network.predictor if isinstance(network, Run) else network
    if not callable(model) or isinstance(model, type):
        hint = "ensemble.member(i) is one of several" if isinstance(model, Ensemble) else ""
        raise expected("loss", "one network before its task, or a function of parameters", kind_of(model), hint)
    prompts = prompts_for(task, data, key=key)
    prompt = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), prompts)
    model = with_autograd(from_module(model, prompt), prompts)
    for name in ("traceable", "differentiable"):
        if not declared(cast(Predictor, model), name):
            raise expected("loss", f"a network that is {name}", kind_of(model))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    if not jax.tree.leaves(params):
        raise expected("loss", "a network with floating-point arrays before its task", kind_of(model))
    indices = chosen_positions("every", prompt.positions, require_prediction(model, task, prompt))
    targets = _mean_targets(task, prompts, indices)
    block = prompts_at_once(cast(Predictor, model), prompt, 4 * BLOCK) // 4
    small = None if block == BLOCK else max(block, 1)  # of large vocabularies; a gradient holds more than the logits
    return RunLoss(static, task, indices, prompt.positions, per_position, targets, small), params, prompts


def prompts_for(task: Any, data: Any, *, key: Any) -> Any:
    """The given prompts, or a number of prompts sampled from the task."""
    if task is None:
        raise expected("task", "the task, which owns the loss", task)
    require_task(task)
    data = PROMPTS if data is None else data
    if not isinstance(data, int):
        set_size("data", data)
        return data
    require_integer("data", data, least=2)
    return _sample(task, data, key)


@eqx.filter_jit
def _sample(task: Any, count: int, key: Any) -> Any:
    require_randomness(task, count)
    return task.sample_many(count, key=key)
