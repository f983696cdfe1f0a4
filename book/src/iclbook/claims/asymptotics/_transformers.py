"""Networks, training and errors for claims about trained transformers."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

import icllab as icl
from icllab.models import BlockOptions, Transformer
from icllab.models.networks.embedding import Joined
from icllab.training import Record, Run, Sweep


@eqx.filter_jit
def transformer(
    *,
    dim: int,
    width: int,
    layers: int,
    key: PRNGKeyArray,
    heads: int = 2,
    head_dim: int | None = None,
    positions: str = "none",
    length: int | None = None,
) -> Transformer:
    """Causal pre-norm blocks of softmax attention and an MLP, which answer each example as a query."""
    shape = {"dim": dim, "width": width, "layers": layers, "positions": positions, "length": length}
    block = BlockOptions(heads=heads, head_dim=head_dim, mlp=(2 * width,), norm="pre")
    return Transformer(Joined(answers="every", causal=True, query_is_key=True), **shape, block=block, key=key)


def train(
    networks: Any, task: Any, point: Any, *, key: PRNGKeyArray, updates: int | None = None, keep: Sequence[int] = ()
) -> Run:
    """Train every network at every rate of a cell on fresh prompts, for all steps or the first ``updates``."""
    steps, rates = int(np.max(point.step)), np.atleast_1d(point.rate).tolist()
    sweep, record = Sweep({"optimizer.rate": rates}, mode="map"), Record([0], keep=keep, progress=False)
    optimizer, steps = warmup_adam(steps), updates or steps
    return icl.fit(
        networks, task, steps=steps, key=key, batch=point.batch, optimizer=optimizer, sweep=sweep, record=record
    )


def train_annealed(network: Any, task: Any, point: Any, *, steps: int, key: PRNGKeyArray, **swept: Any) -> Run:
    """Train a network on the last token of prompts, with the rate annealed to zero; ``swept``: fields of the task."""
    values = {f"task.{name}": column for name, column in swept.items()}
    values |= {"optimizer.rate": [point.rate], "optimizer.steps": [steps]}
    sweep, record = Sweep(values, mode="map"), Record([0], progress=False)
    return icl.fit(
        network,
        task,
        steps=steps,
        key=key,
        batch=point.batch,
        optimizer=annealed_adam,
        sweep=sweep,
        record=record,
        positions="last",
    )


@functools.cache
def warmup_adam(steps: int) -> Callable[[Any], optax.GradientTransformation]:
    """Adam with a rate that rises over a tenth of the training; one object, so that all cells compile once."""
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, steps // 10, steps)
    return lambda rate: optax.adam(lambda count: rate * shape(count))


def annealed_adam(rate: Any, steps: Any) -> optax.GradientTransformation:
    """Adam with a rate that rises over a twentieth of the training and falls to zero; both arguments may be swept."""

    def schedule(count: Any) -> Any:
        fraction = jnp.minimum(count / steps, 1.0)
        return rate * jnp.minimum(20 * fraction, 1.0) * jnp.cos(0.5 * jnp.pi * fraction) ** 2

    return optax.adam(schedule)


@eqx.filter_jit
def _last_errors(predictor: Any, prompts: Any) -> jax.Array:
    return jax.lax.map(lambda prompt: (predictor(prompt)[-1] - prompt.y[-1]) ** 2, prompts, batch_size=256)


def last_errors(predictor: Any, prompts: Any) -> np.ndarray:
    """Squared errors at the last position of stacked prompts, in float64."""
    return np.asarray(_last_errors(predictor, prompts), dtype=float)
