"""What every task can do: many prompts at once are as many independent ones."""

import jax
import jax.numpy as jnp
import numpy as np

from icllab.tasks import LinearRegression


def test_many_prompts_are_those_of_as_many_keys(getkey):
    task, key = LinearRegression.convention("raventos", dim=2, length=3), getkey()
    many = jax.jit(lambda k: task.sample_many(4, key=k))(key)
    alone = jax.jit(jax.vmap(lambda k: task.sample(key=k)))(jax.random.split(key, 4))
    np.testing.assert_array_equal(many.x, alone.x)
    assert len(jnp.unique(many.y)) == 16
