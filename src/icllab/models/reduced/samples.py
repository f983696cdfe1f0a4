"""The training set of a reduced head: features, queries and labels in equal chunks, padded with zeros.

The number of chunks is a *capacity* that grows in steps, and the number of prompts is data: everything
compiled for a token dimension and a capacity serves all numbers of prompts that fit.
"""

import dataclasses
import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.errors import expected, require_instance, require_integer, require_key
from icllab.core.views import fields_html, fields_repr
from icllab.tasks.attention_features import FeatureSample, features_of_length, gaussian_covariance
from icllab.tasks.linear_regression import LinearRegression

_ROOMY = 2**26  # bytes; below this, capacities grow fourfold, which saves compilations


def rows_per_chunk(dim: int) -> int:
    """Number of rows that fit a CPU's cache, or many more on an accelerator; fewer if d(d+1) is smaller."""
    limit = 512 if jax.default_backend() == "cpu" else 8192
    return min(limit, 2 ** math.ceil(math.log2(dim * (dim + 1))))


def capacity(prompts: int, dim: int) -> int:
    """Chunks to reserve: enough for d(d+1) prompts, then multiplied by four or two until all prompts fit."""
    rows, parameters = rows_per_chunk(dim), dim * (dim + 1)
    chunks = least = -(-parameters // rows)
    while chunks * rows < prompts or (prompts > parameters and chunks == least):
        chunks *= 4 if 4 * chunks * rows * (2 * dim + 2) * 4 <= _ROOMY else 2
    return chunks


class Samples(eqx.Module):
    """``prompts`` rows of (query, features, label); the rows after them are zero.

    Attributes:
        query: x.
        features: h.
        label: y.
        prompts: Number n of rows in use; an array, so that it is not compiled in.
    """

    query: Float[Array, "chunk row dim"]
    features: Float[Array, "chunk row feature"]
    label: Float[Array, "chunk row"]
    prompts: Int[Array, ""]

    __repr__ = fields_repr
    _repr_html_ = fields_html

    @property
    def dim(self) -> int:
        """Token dimension d."""
        return self.query.shape[2]

    @property
    def used(self) -> Int[Array, ""]:
        """Number of chunks that hold prompts."""
        rows = self.query.shape[1]
        return jax.lax.div(self.prompts + jnp.int32(rows - 1), jnp.int32(rows))

    @classmethod
    def from_rows(
        cls,
        query: Float[Array | np.ndarray, "prompt dim"],
        features: Float[Array | np.ndarray, "prompt feature"],
        label: Float[Array | np.ndarray, " prompt"],
    ) -> "Samples":
        """Make samples from explicit rows, for contexts from other sources."""
        prompts, dim = np.shape(query)
        if np.shape(features) != (prompts, dim + 1) or np.shape(label) != (prompts,) or prompts < 1:
            shapes = [np.shape(a) for a in (query, features, label)]
            raise expected("samples", "query [n, d], features [n, d + 1], label [n] with n >= 1", shapes)
        rows = rows_per_chunk(dim)
        chunks = capacity(prompts, dim)

        def chunked(values: Array | np.ndarray) -> Array:
            values = np.asarray(values)
            padded = np.zeros((chunks * rows, *values.shape[1:]), values.dtype)
            padded[:prompts] = values
            return jnp.asarray(padded.reshape(chunks, rows, *values.shape[1:]))

        return cls(chunked(query), chunked(features), chunked(label), jnp.asarray(prompts, jnp.int32))

    def shuffled(self, *, key: PRNGKeyArray) -> "Samples":
        """The same queries and features with permuted labels, so that nothing can be learned."""
        require_key(key)
        size = self.label.size
        last = jnp.where(jnp.arange(size) < self.prompts, jax.random.uniform(key, (size,)), 2.0)
        label = self.label.reshape(-1)[jnp.argsort(last)].reshape(self.label.shape)
        return eqx.tree_at(lambda s: s.label, self, label)


def sample(task: LinearRegression, *, prompts: int, key: PRNGKeyArray) -> Samples:
    """``prompts`` independent contexts of ``task``; row ``i`` depends on ``key`` and ``i`` alone.

    So a larger set with the same key begins with the smaller one. Compiles once for each ``dim``, whatever the
    context length.
    """
    require_instance("task", task, LinearRegression, "a LinearRegression")
    gaussian_covariance(task)
    require_integer("prompts", prompts)
    require_key(key)
    dim, rows = task.dim, rows_per_chunk(task.dim)
    chunks = capacity(prompts, dim)
    length = jnp.asarray(task.length, task.noise_variance.dtype)
    shortest = dataclasses.replace(task, length=1)  # static: one for all
    samples = _empty(np.int32(prompts), chunks, rows, dim, task.noise_variance.dtype)
    with jax.default_matmul_precision("float32"):  # an accelerator's default has ten bits
        for chunk in range(-(-prompts // rows)):
            samples = _put(
                samples, _chunk(shortest, length, key, np.int32(chunk), np.int32(prompts), rows), np.int32(chunk)
            )
    return samples


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _empty(prompts: Int[Array, ""], chunks: int, rows: int, dim: int, dtype: np.dtype) -> Samples:
    x, h, y = ((chunks, rows, dim), (chunks, rows, dim + 1), (chunks, rows))
    return Samples(jnp.zeros(x, dtype), jnp.zeros(h, dtype), jnp.zeros(y, dtype), jnp.asarray(prompts))


@eqx.filter_jit
def _chunk(
    task: LinearRegression,
    length: Float[Array, ""],
    key: PRNGKeyArray,
    chunk: Array | np.int32,
    prompts: Array | np.int32,
    rows: int,
) -> FeatureSample:
    index = chunk * rows + jnp.arange(rows, dtype=jnp.int32)
    sample = jax.vmap(lambda i: features_of_length(task, length, key=jax.random.fold_in(key, i)))(index)
    used = (index < prompts).astype(sample.label.dtype)
    return jax.tree.map(lambda part: part * used.reshape(-1, *[1] * (part.ndim - 1)), sample)


@functools.partial(jax.jit, donate_argnums=0)
def _put(samples: Samples, sample: FeatureSample, chunk: Array) -> Samples:
    parts = (samples.query, samples.features, samples.label), (sample.query, sample.features, sample.label)
    x, h, y = (jax.lax.dynamic_update_index_in_dim(whole, part, chunk, 0) for whole, part in zip(*parts, strict=True))
    return Samples(x, h, y, samples.prompts)
