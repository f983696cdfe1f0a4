"""What claims about trained transformers share: the networks, how they are trained, their errors."""

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
    """Pre-norm blocks of softmax attention and an MLP, causal, which answer at every example as at a query."""
    shape = {"dim": dim, "width": width, "layers": layers, "positions": positions, "length": length}
    block = BlockOptions(heads=heads, head_dim=head_dim, mlp=(2 * width,), norm="pre")
    return Transformer(Joined(answers="every", causal=True, query_is_key=True), **shape, block=block, key=key)


def trained(
    networks: Any, task: Any, point: Any, *, key: PRNGKeyArray, updates: int | None = None, keep: Sequence[int] = ()
) -> Run:
    """Every network at every rate of a cell, after all its steps on fresh prompts, or the first ``updates`` of them."""
    steps, rates = int(np.max(point.step)), np.atleast_1d(point.rate).tolist()
    how = {"sweep": Sweep({"optimizer.rate": rates}, mode="map"), "record": Record([0], keep=keep, progress=False)}
    return icl.fit(networks, task, steps=updates or steps, key=key, batch=point.batch, optimizer=warmed(steps), **how)


def annealed_run(network: Any, task: Any, point: Any, *, steps: int, key: PRNGKeyArray, **swept: Any) -> Run:
    """A network trained on the last token of prompts, its rate annealed to zero; ``swept``: fields of the task."""
    sweep = {f"task.{name}": values for name, values in swept.items()}
    sweep |= {"optimizer.rate": [point.rate], "optimizer.steps": [steps]}
    how = {"sweep": Sweep(sweep, mode="map"), "record": Record([0], progress=False), "positions": "last"}
    return icl.fit(network, task, steps=steps, key=key, batch=point.batch, optimizer=annealed, **how)


@functools.cache
def warmed(steps: int) -> Callable[[Any], optax.GradientTransformation]:
    """Adam by its largest rate, reached after a tenth of the training; one object, compiled once for all cells."""
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, steps // 10, steps)
    return lambda rate: optax.adam(lambda count: rate * shape(count))


def annealed(rate: Any, steps: Any) -> optax.GradientTransformation:
    """Adam by its largest rate, after a twentieth of the training, and by steps, which may both be swept."""

    def schedule(count: Any) -> Any:
        done = jnp.minimum(count / steps, 1.0)
        return rate * jnp.minimum(20 * done, 1.0) * jnp.cos(0.5 * jnp.pi * done) ** 2

    return optax.adam(schedule)


@eqx.filter_jit
def _last_errors(predictor: Any, prompts: Any) -> jax.Array:
    return jax.lax.map(lambda prompt: (predictor(prompt)[-1] - prompt.y[-1]) ** 2, prompts, batch_size=256)


def last_errors(predictor: Any, prompts: Any) -> np.ndarray:
    """Squared errors at the last position of stacked prompts, in float64."""
    return np.asarray(_last_errors(predictor, prompts), dtype=float)
