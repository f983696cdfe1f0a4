"""Prompts of a task by one program, which an eager call compiles operation by operation; and what NumPy draws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.prompt import RegressionPrompt


def prompt_of(seed, positions, dim):
    """A regression prompt of standard normal inputs and labels, in the default floating-point type."""
    rng = np.random.default_rng(seed)
    return RegressionPrompt(jnp.asarray(rng.normal(size=(positions, dim))), jnp.asarray(rng.normal(size=positions)))


def with_normal_weights(build, seed, std=0.5):
    """The module that ``build()`` returns, every entry of every array drawn from N(0, std^2)."""
    rng = np.random.default_rng(seed)

    def drawn(leaf):
        is_array = isinstance(leaf, jax.ShapeDtypeStruct)
        return jnp.asarray(std * rng.normal(size=leaf.shape), leaf.dtype) if is_array else leaf

    return jax.tree.map(drawn, eqx.filter_eval_shape(build))


@eqx.filter_jit
def sampled(task, key):
    """One prompt."""
    return task.sample(key=key)


@eqx.filter_jit
def sampled_batch(task, keys):
    """A prompt for each key, along the first axis."""
    return jax.vmap(lambda key: task.sample(key=key))(keys)


@eqx.filter_jit
def sampled_many(task, count, key):
    """Prompts of one call for many of them, along the first axis."""
    return task.sample_many(count, key=key)
