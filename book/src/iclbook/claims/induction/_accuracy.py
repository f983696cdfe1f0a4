"""Item-label networks trained until their averaged training loss is small, and their accuracy on any task."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import icllab as icl
from iclbook.claims.induction import _networks
from icllab.training import Record, TargetLoss, Until

TOGETHER = _networks.TOGETHER
RATE, BATCH = 0.1, 128


def train_until(
    task: Any,
    network: Any,
    *,
    loss: float,
    memory: float,
    steps: int,
    key: Any,
    keep: Sequence[int] = (),
    rate: float = RATE,
    batch: int = BATCH,
    trainable: Any = None,
) -> Any:
    """Run of one network by SGD until its loss, averaged over ``memory`` steps, is at most ``loss`` nats."""
    return icl.fit(
        network,
        task,
        steps=Until(steps, TargetLoss(loss, memory=float(memory))),
        key=key,
        batch=batch,
        optimizer=_networks.descent(),
        sweep={"optimizer.rate": [rate]},
        record=Record([0], keep=keep, progress=False),
        trainable=trainable,
    )


def stages(run: Any, steps: Sequence[int]) -> list[Any]:
    """The run's only network after each kept step; once training has ended, it stays."""
    return [(run.trajectory.at(step) if step in run.trajectory else run.members).member(0) for step in steps]


def stack(networks: Sequence[Any]) -> tuple[Any, Any]:
    """Arrays of networks, stacked, and their static part. One shape however soon a run has ended: one compilation."""
    arrays, static = zip(*(eqx.partition(network, eqx.is_array) for network in networks), strict=True)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), static[0]


def accuracy(network: Any, task: Any, *, key: Any, prompts: int) -> float:
    """Accuracy on fresh prompts of a task."""
    return float(_accuracy(network, task, key, prompts))


@eqx.filter_jit
def sample(task: Any, *, key: Any, prompts: int) -> Any:
    """Prompts of :func:`accuracy`, stacked."""
    return task.sample_many(prompts, key=key)


def accuracy_curve(run: Any, task: Any, *, key: Any, prompts: int, steps: Sequence[int]) -> np.ndarray:
    """Accuracy of a run's only network on the same prompts after each kept step."""
    return np.asarray(_curve(*stack(stages(run, steps)), task, key, prompts), float)


@eqx.filter_jit
def _accuracy(network: Any, task: Any, key: Any, prompts: int) -> Any:
    batch = task.sample_many(prompts, key=key)

    def correct(prompt: Any) -> Any:
        return task.accuracy(network(prompt), prompt)[-1]

    return jnp.mean(jax.lax.map(correct, batch, batch_size=min(TOGETHER, prompts)))


@eqx.filter_jit
def _curve(arrays: Any, static: Any, task: Any, key: Any, prompts: int) -> Any:
    return jax.lax.map(lambda step: _accuracy(eqx.combine(step, static), task, key, prompts), arrays)
