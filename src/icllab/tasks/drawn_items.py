"""Interface that tasks of item-label prompts share, and draws of classes, labels and orders."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.draws import uniform_and_normal
from icllab.core.errors import require_key
from icllab.core.prompt import ItemLabelPrompt
from icllab.tasks.classification import AbstractClassification


class AbstractItemLabels(AbstractClassification):
    """A task of item-label prompts that are drawn in batches."""

    def targets(self, prompt: ItemLabelPrompt) -> Int[Array, " position"]:
        """The label of each item."""
        return prompt.labels

    def sample(self, *, key: PRNGKeyArray) -> ItemLabelPrompt:
        """One prompt of N pairs and a query."""
        require_key(key)
        return jax.tree.map(lambda part: part[0], self.sample_many(1, key=key))

    @abc.abstractmethod
    def sample_many(self, count: int, *, key: PRNGKeyArray) -> ItemLabelPrompt:
        """Draw ``count`` prompts, stacked, with all random numbers in one call."""


class AbstractItems(AbstractItemLabels):
    """Prompts of N pairs and a query; ``_made`` builds each from uniform and normal numbers."""

    label_vectors: eqx.AbstractVar[Float[Array, "label dim"]]
    pairs: eqx.AbstractVar[int]

    @property
    def labels(self) -> int:
        """L, the number of labels."""
        return self.label_vectors.shape[0]

    @property
    def class_count(self) -> int:
        """L, the number of labels."""
        return self.labels

    @property
    def dim(self) -> int:
        """D, the dimension of a token's content."""
        return self.label_vectors.shape[1]

    @property
    def length(self) -> int:
        """Pairs before the query, N."""
        return self.pairs

    @property
    def tokens(self) -> int:
        """Number of tokens, T = 2N + 1."""
        return 2 * self.pairs + 1

    def sample_many(self, count: int, *, key: PRNGKeyArray) -> ItemLabelPrompt:
        """Draw ``count`` prompts, stacked, with all random numbers in one call."""
        require_key(key)
        return _many(self, count, key)


@eqx.filter_jit
def _many(task: Any, count: int, key: PRNGKeyArray) -> ItemLabelPrompt:
    """Draw ``count`` prompts in one compiled program; without it, each operation would be compiled separately."""
    sizes, dtype, vectors = task._uniforms(), task.label_vectors.dtype, task._vectors()
    numbers = sum(sizes.values())
    uniform, normal = uniform_and_normal(count, numbers, vectors * task.dim, dtype=dtype, key=key)
    parts = jnp.split(uniform, np.cumsum(list(sizes.values()))[:-1].tolist(), axis=1)
    normal = normal.reshape(count, vectors, task.dim) / task.dim**0.5
    return jax.vmap(task._made)(dict(zip(sizes, parts, strict=True)), normal)


def zipf(rows: Float[Array, "class *rest"], exponent: Float[Array, ""]) -> Float[Array, " class"]:
    r"""Frequencies :math:`p(k) \propto k^{-\alpha}` of classes, one for each row."""
    rank = jnp.arange(1, rows.shape[0] + 1, dtype=rows.dtype)
    weight = rank ** -exponent.astype(rank.dtype)
    return weight / jnp.sum(weight)


def whole(u: Array, count: int) -> Int[Array, "..."]:
    """Map numbers in [0, 1) to integers from 0 to ``count`` - 1."""
    return jnp.minimum((u * count).astype(int), count - 1)


def ranks(u: Float[Array, " slot"]) -> Int[Array, " slot"]:
    """A random order: the rank of each uniform number; equal numbers keep their order."""
    before = np.tril(np.ones((len(u), len(u)), bool), -1)
    return jnp.sum((u[None] < u[:, None]) | ((u[None] == u[:, None]) & before), axis=1)


def inverse(below: Float[Array, " class"], u: Float[Array, " draw"]) -> Int[Array, " draw"]:
    """Draws from a distribution by the inverse of its distribution function."""
    index = jnp.searchsorted(below, u * below[-1], side="right").astype(int)
    return jnp.minimum(index, below.shape[0] - 1)


def distinct(u: Float[Array, " draw"], weights: Float[Array, " label"]) -> Int[Array, " draw"]:
    """Draw labels one after the other without replacement, with odds proportional to their weights."""
    labels: list[Array] = []
    for i in range(len(u)):
        below = jnp.cumsum(weights)
        labels.append(jnp.minimum(jnp.sum(below <= u[i] * below[-1]), len(weights) - 1))
        weights = jnp.where(jnp.arange(len(weights)) == labels[-1], 0, weights)
    return jnp.stack(labels)
