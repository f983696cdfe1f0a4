"""Predictors so small that what training does to them can be written down."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icllab.core.prompt import RegressionPrompt
from icllab.tasks import LinearRegression


class Slope(eqx.Module):
    """Ignores the context: the query times one vector."""

    w: Array

    def __call__(self, prompt):
        return prompt.x @ self.w


class Rooted(eqx.Module):
    """Its gradient at ``shift = 0`` is infinite, its loss is not."""

    shift: Array

    def __call__(self, prompt):
        return jnp.sqrt(jnp.abs(self.shift)) * prompt.y


class Weighted(LinearRegression):
    """Its loss depends on the noise variance, that of given prompts too."""

    def loss(self, prediction, prompt):
        return self.noise_variance * super().loss(prediction, prompt)


def slope(*, key, dim=3, scale=1.0):
    return Slope(scale * jax.random.normal(key, (dim,)))


def task(dim=3, length=4, name="raventos", kind=LinearRegression):
    return kind.convention(name, dim=dim, length=length)


def prompts(count, seed=0, length=4, dim=3):
    """A fixed set. Drawn by NumPy: a program that draws its prompts takes seconds to compile."""
    generator = np.random.default_rng(seed)
    x, w = generator.normal(size=(count, length + 1, dim)), generator.normal(size=(count, dim, 1))
    y = (x @ w)[..., 0] + 0.5 * generator.normal(size=(count, length + 1))
    one = RegressionPrompt(x=jnp.zeros((length + 1, dim)), y=jnp.zeros(length + 1))
    return jax.tree.unflatten(jax.tree.structure(one), [jnp.asarray(x, float), jnp.asarray(y, float)])
