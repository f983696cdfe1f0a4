"""Regression transformers before and after training, in float64."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

import icllab as icl
from icllab.core.prompt import RegressionPrompt
from icllab.models import BlockOptions, Joined, Transformer
from icllab.tasks import LinearRegression
from icllab.tasks.regression_distributions import AbstractInputs
from icllab.training import Record

NOISE = 0.1  # variance of labels
RATE = 3e-3  # of Adam


def networks(
    seed: int, steps: Sequence[int], point: Any, *, key: PRNGKeyArray, discrete: bool = False
) -> list[Transformer]:
    """Networks of a seed after ``steps`` steps on fresh prompts; pre-norm blocks, without positions.

    It is trained at every position, so that a query without any context is among what it knows, and then answers the
    last query only: a prompt of n examples is n + 1 tokens. ``discrete``: inputs are :class:`SignedBasis`, without
    noise on labels.
    """
    of_weights, of_prompts = jax.random.split(jax.random.fold_in(key, seed))
    stages = [_start(point.dim, point.width, point.layers, point.heads, of_weights)]
    if max(steps) > 0:
        task = noisy_task(point)
        if discrete:
            task = eqx.tree_at(lambda t: (t.noise_variance, t.inputs), task, (jnp.asarray(0.0), SignedBasis()))
        run = fit(stages[0], task, point.batch, optax.adam(RATE), max(steps), of_prompts, keep=steps)
        stages = [run.trajectory.at(step).member(0) for step in steps]
    last = Joined(answers="last", causal=True, query_is_key=True)
    return [eqx.tree_at(lambda m: m.embedding.arrangement, network, last) for network in stages]


def noisy_task(point: Any) -> LinearRegression:
    """Linear regression with noise on its labels."""
    task = LinearRegression.convention("garg", dim=point.dim, length=point.length)
    return eqx.tree_at(lambda t: t.noise_variance, task, jnp.asarray(NOISE))


def fit(
    network: Any, task: Any, batch: int, optimizer: Any, steps: Any, key: PRNGKeyArray, *, keep: Sequence[int] = ()
) -> Any:
    """Train a network on fresh prompts, and keep its parameters at the steps ``keep``."""
    record = Record([0], keep=keep, progress=False)
    return icl.fit(network, task, steps=steps, key=key, batch=batch, optimizer=optimizer, record=record)


@eqx.filter_jit
def _start(dim: int, width: int, layers: int, heads: int, key: PRNGKeyArray) -> Transformer:
    block = BlockOptions(heads=heads, mlp=(2 * width,), norm="pre")
    every = Joined(answers="every", causal=True, query_is_key=True)
    return Transformer(every, dim=dim, width=width, layers=layers, positions="none", block=block, key=key)


def double(network: Any) -> Any:
    """Convert every floating-point leaf to float64, where that is enabled."""
    return jax.tree.map(lambda leaf: leaf.astype("float64") if eqx.is_inexact_array(leaf) else leaf, network)


class SignedBasis(AbstractInputs):
    r"""The 2d inputs :math:`\pm\sqrt d\, e_k` with equal probabilities."""

    def sample(self, dim: int, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """One of the inputs."""
        number = jax.random.randint(key, (), 0, 2 * dim)
        return signed_basis(dim)[number]

    def second_moment(self, dim: int) -> Float[Array, "dim dim"]:
        """The identity."""
        return jnp.eye(dim)


def signed_basis(dim: int) -> Float[Array, "input dim"]:
    r"""Rows :math:`\pm\sqrt d\, e_k`."""
    basis = dim**0.5 * jnp.eye(dim)
    return jnp.concatenate([basis, -basis])


def sample_discrete_prompts(
    rng: np.random.Generator, contexts: int, queries: int, *, dim: int, length: int, examples: int
) -> RegressionPrompt:
    """Draw prompts as :func:`sample_prompts` does, with inputs from :class:`SignedBasis` and without label noise."""
    w = rng.normal(size=(contexts, 1, 1, dim))
    shared = _repeated(rng.integers(2 * dim, size=(contexts, 1, length)), queries)
    numbers = np.concatenate([shared, rng.integers(2 * dim, size=(contexts, queries, examples + 1))], axis=2)
    x = np.asarray(signed_basis(dim), float)[numbers]
    return jax.vmap(jax.vmap(lambda x, y: RegressionPrompt(x=x, y=y)))(
        jnp.asarray(x), jnp.asarray(np.sum(x * w, axis=3))
    )


def sample_prompts(
    rng: np.random.Generator, contexts: int, queries: int, *, dim: int, length: int, examples: int
) -> RegressionPrompt:
    """Prompts [context, query] of ``length`` shared examples, ``examples`` more, and a query without label noise."""
    w, context = rng.normal(size=(contexts, 1, 1, dim)), rng.normal(size=(contexts, 1, length, dim))
    x = np.concatenate([_repeated(context, queries), rng.normal(size=(contexts, queries, examples + 1, dim))], axis=2)
    noise = [_repeated(rng.normal(size=(contexts, 1, length)), queries), rng.normal(size=(contexts, queries, examples))]
    noise = np.concatenate([*noise, np.zeros((contexts, queries, 1))], axis=2)
    y = np.sum(x * w, axis=3) + NOISE**0.5 * noise
    return jax.vmap(jax.vmap(lambda x, y: RegressionPrompt(x=x, y=y)))(jnp.asarray(x), jnp.asarray(y))


def _repeated(values: np.ndarray, queries: int) -> np.ndarray:
    return np.repeat(values, queries, axis=1)
