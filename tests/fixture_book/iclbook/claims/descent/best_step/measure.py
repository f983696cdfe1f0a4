"""Train one network for every seed, each on its own prompts, and measure its error on others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import icllab as icl
from icllab.core.grid import tabulated
from icllab.models import LinearAttention
from icllab.tasks import LinearRegression

VERSION = 1


def measure(point, *, key, train=True):
    """Measure the networks of one context length; without ``train`` as they start."""
    of_start, of_training, of_test = jax.random.split(key, 3)
    task = LinearRegression.convention("ahn", dim=point.dim, length=point.length)

    def build(*, key):
        return LinearAttention.ahn(dim=point.dim, layers=1, std=point.std, key=key)

    networks = icl.ensemble(build, seeds=point.seed, key=of_start)
    if train:
        schedule = optax.cosine_decay_schedule(point.rate, point.steps)
        options = {"batch": point.batch, "positions": "last", "optimizer": optax.adam(schedule), "progress": False}
        networks = icl.fit(networks, task, steps=point.steps, key=of_training, **options).members

    @eqx.filter_jit
    def error(network, key):
        def squared_error(key):
            prompt = task.sample(key=key)
            return task.loss(network(prompt), prompt)[-1]

        return jnp.mean(jax.vmap(squared_error)(jax.random.split(key, point.prompts)))

    def measure_seed(seed):
        network = networks.member(point.seed.index(seed))
        return {"test_loss": error(network, jax.random.fold_in(of_test, seed))}

    return tabulated(measure_seed, seed=point.seed)
