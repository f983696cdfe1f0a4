"""Heads of attention with keys and queries of a low rank, or merged, trained from a small start on fixed prompts."""

import functools
from typing import Any

import jax
import numpy as np
import optax

import icllab as icl
from iclbook.claims.descent import _layers
from iclbook.claims.descent._plateaus import law
from icllab.models.linear.low_rank import LowRankAttention
from icllab.tasks import LinearRegression
from icllab.training import Record, Sweep


def task_of(setting: str) -> LinearRegression:
    """The regression task of a setting."""
    arguments = law(setting)
    covariance = np.asarray(arguments["covariance"])
    return _layers.regression(arguments["length"], covariance, np.eye(len(covariance)), arguments["noise_variance"])


@functools.cache
def optimizer(rate: float) -> Any:
    """Gradient descent at a rate. One object for all cells."""
    return optax.sgd(rate)


def train(
    point: Any, task: Any, *, key: Any, heads: int, rank: int | None, softmax: bool = False, **record: Any
) -> Any:
    """A run of gradient descent for every seed of a cell, each on prompts of its own, with all records kept.

    The cell has ``step``, ``seed``, ``std``, ``rate`` and ``prompts``.
    """

    def start(key: Any) -> LowRankAttention:
        return LowRankAttention.init(dim=task.dim, heads=heads, rank=rank, std=point.std, softmax=softmax, key=key)

    of_start, of_prompts = jax.random.split(key)
    return icl.fit(
        icl.ensemble(start, seeds=list(point.seed), key=of_start),
        task,
        steps=int(np.max(point.step)),
        key=of_prompts,
        batch=None,
        data=point.prompts,
        optimizer=optimizer(point.rate),
        positions="last",
        sweep=Sweep(mode="vmap"),
        record=Record(list(point.step) if record else [0], keep=list(point.step), progress=False, **record),
    )


def read_heads(run: Any, member: int) -> tuple[np.ndarray, np.ndarray]:
    """Values [step, head] and matrices [step, head, dim, dim] of the heads at all kept steps."""
    kept = run.trajectory.stacked(member)
    keys = np.asarray(kept.keys, float)
    matrices = keys if kept.queries is None else np.swapaxes(keys, 2, 3) @ np.asarray(kept.queries, float)
    return np.asarray(kept.values, float), matrices
