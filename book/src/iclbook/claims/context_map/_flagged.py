r"""A task that a flag turns, networks for it, and contexts with the flag or without.

Prompts are of tasks :math:`w = w_0 + g`, :math:`|w_0|^2 = d`, g standard normal, so that a query without a context is
answered by :math:`w_0 \cdot x`. Inputs have one coordinate more, which is 1 for the flag alone.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from iclbook.claims.context_map._regression_transformers import fit
from icllab.core.prompt import RegressionPrompt
from icllab.models import BlockOptions, FastWeights, Joined, Transformer
from icllab.tasks.regression import AbstractRegression

FLAG_LABEL = 1.0
OPTIMIZER = optax.adam(3e-3)


class FlaggedRegression(AbstractRegression):
    """Prompts of linear functions; half of them begin with a flag, after which all labels are those times a factor."""

    base: Float[Array, " dim"]
    factor: Float[Array, ""]
    length: int = eqx.field(static=True)

    def sample(self, *, key: PRNGKeyArray) -> RegressionPrompt:
        """One prompt; where there is a flag it stands in the place of the first example."""
        of_task, of_flag, of_inputs = jax.random.split(key, 3)
        w = self.base + jax.random.normal(of_task, self.base.shape)
        x = jax.random.normal(of_inputs, (self.length + 1, len(w)))
        y, first, has_flag = x @ w, jnp.arange(self.length + 1) == 0, jax.random.bernoulli(of_flag)
        flag_labels = jnp.where(first, FLAG_LABEL, self.factor * y)
        is_flag = (first & has_flag).astype(x.dtype)[:, None]
        x = jnp.concatenate([(1 - is_flag) * x, is_flag], axis=1)
        return RegressionPrompt(x, jnp.where(has_flag, flag_labels, y))


def base_task(rng: np.random.Generator, dim: int) -> Float[np.ndarray, " dim"]:
    """A vector of a random direction with squared norm d."""
    direction = rng.normal(size=dim)
    return dim**0.5 * direction / np.linalg.norm(direction)


def across(base: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
    """A vector as long as the task and orthogonal to it."""
    first = np.roll(base, 1) * np.where(np.arange(len(base)) % 2, 1, -1)
    rest = first - (first @ base) / (base @ base) * base
    return np.linalg.norm(base) * rest / np.linalg.norm(rest)


def transformer(task: FlaggedRegression, point: Any, *, key: PRNGKeyArray) -> Transformer:
    """A transformer trained at every position, so also without any context; it then answers the last query only."""
    of_weights, of_prompts = jax.random.split(key)
    block = BlockOptions(heads=point.heads, mlp=(2 * point.width,), norm="pre")
    every = Joined(answers="every", causal=True, query_is_key=True)
    sizes = {"dim": len(task.base) + 1, "width": point.width, "layers": point.layers, "positions": "none"}
    network = Transformer(every, **sizes, block=block, key=of_weights)
    run = fit(network, task, point.batch, OPTIMIZER, point.updates, of_prompts)
    last = Joined(answers="last", causal=True, query_is_key=True)
    return eqx.tree_at(lambda m: m.embedding.arrangement, run.predictor, last)


def fast_weights(task: FlaggedRegression) -> FastWeights:
    r"""Fast weights that the flag turns exactly: :math:`b = w_0`, and h adds to b, but the flag :math:`(f - 1) w_0`."""
    dim = len(task.base)
    slow = jnp.pad(task.base, (0, 1))
    up = jnp.eye(dim + 1).at[:, dim].set((task.factor - 1) * slow)
    return FastWeights(jnp.eye(dim + 1), up, slow, normalised=True)


def flag(dim: int) -> RegressionPrompt:
    """The context of the flag alone."""
    return RegressionPrompt(jnp.asarray(np.eye(2, dim + 1, dim, dtype=np.float32)), jnp.asarray([FLAG_LABEL, 0.0]))


def padded(x: np.ndarray) -> np.ndarray:
    """Inputs that are no flag."""
    return np.concatenate([x, np.zeros((*x.shape[:-1], 1))], axis=-1).astype(np.float32)
