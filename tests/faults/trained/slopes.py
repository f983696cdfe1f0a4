"""A claim for tests whose cells train: each keeps checkpoints in its scratch directory, and prints where it begins.

``SLOPES_STEPS``: training steps of a cell, 1000 unless it is set.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax

from icllab.core.axes import Quantity
from icllab.core.protocols import AbstractPredictor
from icllab.lab import checks, estimates
from icllab.lab.claim import Claim, Control
from icllab.tasks import LinearRegression
from icllab.training import CheckpointStore, ensemble, fit


class Slope(AbstractPredictor):
    """The query times one vector: tasks of mean zero leave nothing to learn but the vector zero."""

    w: jax.Array

    def __call__(self, prompt):
        return prompt.x @ self.w


def measure(point, *, key, scratch, begun=1.0):
    task = LinearRegression.convention("raventos", dim=point.dim, length=8)
    start = ensemble(lambda *, key: Slope(begun * jnp.ones(point.dim)), seeds=point.seed, key=key)
    store, steps = CheckpointStore(scratch, seconds=1.0), int(os.environ.get("SLOPES_STEPS", "1000"))
    run = fit(start, task, steps=steps, key=key, batch=64, optimizer=optax.sgd(0.02), store=store)
    print(f"dim={point.dim}: trained {steps} steps from step {run.header['resumed_at']}", flush=True)
    return {"squared_weight": (("seed",), np.mean(np.square(run.members.stacked.w), axis=-1))}


def check(dataset):
    return checks.below("weight", "squared weight", estimates.mean(dataset["squared_weight"]), 0.01)


def figure(dataset):
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(1, 1))
    drawn.subplots().plot(dataset["dim"], dataset["squared_weight"].mean("seed"))
    return drawn


claim = Claim(
    sentence="Tasks of mean zero leave no weight.",
    sources=("Lu24",),
    quantities=(Quantity("squared_weight", "w^2", "mean square of the weights"),),
    static=("dim",),
    sizes={"smoke": {"dim": (4,), "seed": 2}, "small": {"dim": (2, 4, 8, 16), "seed": 4}},
    measure=measure,
    controls={"untrained": Control("weights begin at nine", measure={"begun": 9.0})},
)
