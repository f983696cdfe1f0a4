"""Item-label networks trained until their averaged training loss is small, and their accuracy on any task."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import icllab as icl
from icllab.claims.induction import _networks
from icllab.training import Record, TargetLoss, Until

TOGETHER = 256  # prompts that are answered side by side
RATE, BATCH = 0.1, 128


def trained_until(
    task: Any, network: Any, *, loss: float, memory: int, steps: int, key: Any, keep: Sequence[int] = (), **options: Any
) -> Any:
    """The run of one network by SGD until its loss, averaged over ``memory`` steps, is at most ``loss`` nats."""
    return icl.fit(
        network,
        task,
        steps=Until(steps, TargetLoss(loss, memory=float(memory))),
        key=key,
        batch=BATCH,
        optimizer=_networks.descent(),
        sweep={"optimizer.rate": [RATE]},
        record=Record([0], keep=keep, progress=False),
        **options,
    )


def accuracy(network: Any, task: Any, *, key: Any, prompts: int) -> float:
    """The accuracy on so many fresh prompts of a task."""
    return float(_accuracy(network, task, key, prompts))


@eqx.filter_jit
def drawn(task: Any, *, key: Any, prompts: int) -> Any:
    """The prompts that :func:`accuracy` asks, stacked."""
    return task.sample_many(prompts, key=key)


def accuracy_curve(run: Any, task: Any, *, key: Any, prompts: int, steps: Sequence[int]) -> np.ndarray:
    """The accuracy of a run's one network on the same prompts after each kept step; once ended, it stays as it was."""
    networks = [(run.trajectory.at(step) if step in run.trajectory else run.members).member(0) for step in steps]
    arrays, static = zip(*(eqx.partition(network, eqx.is_array) for network in networks), strict=True)
    # One shape however soon a run has ended, so that this is compiled once.
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
    return np.asarray(_curve(stack, static[0], task, key, prompts), float)


@eqx.filter_jit
def _accuracy(network: Any, task: Any, key: Any, prompts: int) -> Any:
    batch = task.sample_many(prompts, key=key)

    def correct(prompt: Any) -> Any:
        return task.accuracy(network(prompt), prompt)[-1]

    return jnp.mean(jax.lax.map(correct, batch, batch_size=min(TOGETHER, prompts)))


@eqx.filter_jit
def _curve(arrays: Any, static: Any, task: Any, key: Any, prompts: int) -> Any:
    return jax.lax.map(lambda step: _accuracy(eqx.combine(step, static), task, key, prompts), arrays)
