"""Transformers on sequences of Markov chains, and their divergence from predictors that count or remember."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import icllab as icl
from icllab.models import BlockOptions, Transformer
from icllab.models.networks.embedding import Tokens
from icllab.tasks import MarkovPool
from icllab.training import Record, Run

_ADAM = {}  # one object for each rate: another would compile the loop again
TOGETHER = 128  # prompts whose predictions are computed at once


@eqx.filter_jit
def transformer(task: MarkovPool, *, layers: int, width: int, std: float, key: Any) -> Transformer:
    """A network for sequences of the task's length: one head and one hidden layer per block, small initial weights."""
    return Transformer(
        Tokens(task.vocabulary),
        dim=task.vocabulary,
        width=width,
        layers=layers,
        block=BlockOptions(heads=1, mlp=(2 * width,), norm="pre"),
        positions="learned",
        length=task.length,
        std=std,
        key=key,
    )


def train(task: MarkovPool, network: Any, point: Any, *, key: Any) -> Run:
    """Train a network, or an ensemble of them, on fresh sequences by Adam, with parameters kept at ``point.step``."""
    optimizer = _ADAM.setdefault(point.rate, optax.adam(point.rate))
    record = Record([0], keep=point.step, progress=False)
    return icl.fit(network, task, steps=max(point.step), key=key, batch=point.batch, optimizer=optimizer, record=record)


def trained_log_probabilities(run: Run, member: int, prompts: Any) -> Float[np.ndarray, "step prompt position state"]:
    """Predictions of one member after each kept step, as log-probabilities."""
    static = jax.tree.map(lambda leaf: leaf[member] if eqx.is_array(leaf) else leaf, run.trajectory.rest)
    params = jax.tree.map(jnp.asarray, run.trajectory.stacked(member))
    return np.asarray(_along(params, static, prompts))


@eqx.filter_jit
def sample(task: MarkovPool, count: int, *, key: Any) -> Any:
    """Draw stacked sequences."""
    return task.sample_many(count, key=key)


def log_probabilities(predictor: Any, prompts: Any) -> Float[np.ndarray, "prompt position state"]:
    """Predictions on stacked prompts, as log-probabilities."""
    return np.asarray(_predicted(predictor, prompts))


def divergences(
    references: Mapping[str, Float[np.ndarray, "prompt position state"]],
    answers: Float[np.ndarray, "*step prompt position state"],
) -> Float[np.ndarray, "*step predictor"]:
    r"""Mean :math:`\mathrm{KL}(p\|q)` of the answers q from each reference p, in nats per token."""
    means = [np.mean(np.sum(np.exp(p) * (p - answers), axis=-1), axis=(-2, -1)) for p in references.values()]
    return np.stack(means, axis=-1)


def losses(answers: Float[np.ndarray, "*step prompt position state"], prompts: Any) -> Float[np.ndarray, "*step"]:
    """Mean cross-entropies of the next tokens."""
    targets = np.asarray(prompts.tokens)[:, 1:, None]
    right = np.take_along_axis(answers, np.broadcast_to(targets, (*answers.shape[:-1], 1)), axis=-1)
    return np.asarray(-np.mean(right[..., 0], axis=(-2, -1)))


@eqx.filter_jit
def _predicted(predictor: Any, prompts: Any) -> Array:
    together = min(TOGETHER, prompts.tokens.shape[0])
    return jax.lax.map(lambda prompt: jax.nn.log_softmax(predictor(prompt)), prompts, batch_size=together)


@eqx.filter_jit
def _along(params: Any, static: Any, prompts: Any) -> Array:
    return jax.lax.map(lambda step: _predicted(eqx.combine(step, static), prompts), params)
