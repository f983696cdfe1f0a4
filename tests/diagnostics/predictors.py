"""Predictors that see what they may, or not, and the task of the tests of it."""

import jax
import jax.numpy as jnp
import numpy as np

from icllab.tasks import LinearRegression

KEY = jax.random.key(0)
TASK = LinearRegression.convention("raventos", dim=3, length=5)


def own_target(prompt):
    return prompt.y


def mean_so_far(prompt):
    sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(prompt.y)[:-1]])
    return sums / jnp.maximum(jnp.arange(float(prompt.positions)), 1)


class OnHost:
    """Written with NumPy, and called prompt by prompt."""

    traceable = False

    def __init__(self, sees):
        self.sees = sees

    def __call__(self, prompt):
        return np.asarray(self.sees(prompt))
