"""Item-label networks trained until they know their own law, and their shares of right answers on any other.

A run ends when its loss, averaged over some steps, is small: what was learned first leaves nothing to learn from.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import icllab as icl
from icllab.claims.induction import _networks as induction_networks
from icllab.training import Record, TargetLoss, Until

TOGETHER = 256  # prompts that are answered side by side
RATE, BATCH = 0.1, 128


def trained_until(
    law: Any, network: Any, *, loss: float, memory: int, steps: int, key: Any, keep: Sequence[int] = (), **how: Any
) -> Any:
    """The run of one network by plain descent until its loss, averaged over ``memory`` steps, is at most ``loss``.

    Args:
        law: The task.
        network: What is trained.
        loss: In nats.
        memory: Over how many steps the loss is averaged.
        steps: At most so many.
        key: Of the prompts.
        keep: Numbers of updates after which parameters are kept.
        **how: Further arguments of :func:`icllab.fit`, such as ``trainable``.
    """
    return icl.fit(
        network,
        law,
        steps=Until(steps, TargetLoss(loss, memory=float(memory))),
        key=key,
        batch=BATCH,
        optimizer=induction_networks.descent(),
        sweep={"optimizer.rate": [RATE]},
        record=Record([0], keep=keep, progress=False),
        **how,
    )


def right(network: Any, law: Any, *, key: Any, prompts: int) -> float:
    """The share of right answers to so many fresh prompts of a law."""
    return float(_right(network, law, key, prompts))


@eqx.filter_jit
def drawn(law: Any, *, key: Any, prompts: int) -> Any:
    """The prompts that :func:`right` asks, stacked."""
    return law.sample_many(prompts, key=key)


def right_on_the_way(run: Any, law: Any, *, key: Any, prompts: int, steps: Sequence[int]) -> np.ndarray:
    """The share of right answers of a run's one network after each of its kept steps, [step].

    The same fresh prompts are asked every time. After a run has ended its network is what it was then.
    """
    networks = [(run.trajectory.at(step) if step in run.trajectory else run.members).member(0) for step in steps]
    arrays, rest = zip(*(eqx.partition(network, eqx.is_array) for network in networks), strict=True)
    # One shape however soon a run has ended, so that this is compiled once.
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
    return np.asarray(_on_the_way(stacked, rest[0], law, key, prompts), float)


def _answers(network: Any, law: Any, key: Any, prompts: int) -> Any:
    asked = law.sample_many(prompts, key=key)

    def one(prompt: Any) -> Any:
        return law.accuracy(network(prompt), prompt)[-1]

    return jnp.mean(jax.lax.map(one, asked, batch_size=min(TOGETHER, prompts)))


@eqx.filter_jit
def _right(network: Any, law: Any, key: Any, prompts: int) -> Any:
    return _answers(network, law, key, prompts)


@eqx.filter_jit
def _on_the_way(arrays: Any, rest: Any, law: Any, key: Any, prompts: int) -> Any:
    return jax.lax.map(lambda step: _answers(eqx.combine(step, rest), law, key, prompts), arrays)
