"""Squared distances of transformers from the memorising and the generalising predictor along training on pools."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from icllab import algorithms
from icllab.claims.asymptotics._transformers import transformer
from icllab.core.grid import tabulated
from icllab.tasks import LinearRegression
from icllab.tasks.regression_distributions import GaussianWeights, WeightPool
from icllab.training import Record, Sweep

VERSION = 1


@functools.cache
def _optimizer(warmup):
    """Adam at a rate that rises over ``warmup`` steps and stays; one object, compiled once for all cells."""
    shape = optax.linear_schedule(0.0, 1.0, warmup)
    return lambda rate: optax.adam(lambda count: rate * shape(count))


@eqx.filter_jit
def _sample(task, keys):
    return jax.vmap(lambda key: task.sample(key=key))(keys)


@eqx.filter_jit
def _answers(predictor, prompts):
    return jax.lax.map(predictor, prompts, batch_size=256)


def measure(point, *, key, updates=None, foreign=False):
    """Distances on the pool's tasks and on fresh ones; ``foreign``: the memorised pool is one that training never saw.

    ``updates``: steps of training, fewer than the last.
    """
    dim, last = point.dim, updates or max(point.step)
    fresh = LinearRegression.convention("raventos", dim=dim, length=point.length)

    def pooled(key):
        """A pool whose tasks are repeated equally often: one shape for all sizes."""
        prior, copies = GaussianWeights(jnp.ones(())), max(1, point.longest // point.tasks)
        pool = WeightPool.init(prior, max(point.longest, point.tasks), dim, key=key).weights[: point.tasks]
        return eqx.tree_at(lambda task: task.weights, fresh, WeightPool(jnp.tile(pool, (copies, 1)), prior))

    def of_seed(seed):
        of_pool, of_other, of_weights, of_prompts, of_test = jax.random.split(jax.random.fold_in(key, seed), 5)
        pool = pooled(of_pool)
        run = icl.fit(
            transformer(dim=dim, width=point.width, layers=point.layers, key=of_weights),
            pool,
            steps=last,
            key=of_prompts,
            batch=point.batch,
            optimizer=_optimizer(point.warmup),
            sweep=Sweep({"optimizer.rate": [point.rate]}, mode="map"),
            record=Record([0], keep=sorted({min(step, last) for step in point.step}), progress=False),
        )
        memorising = algorithms.bayes_optimal(pooled(of_other) if foreign else pool)
        strategies = {"memorising": memorising, "generalising": algorithms.bayes_optimal(fresh)}
        distances, scales = [], []
        for task in (pool, fresh):
            prompts = _sample(task, jax.random.split(of_test, point.prompts))

            def answered(predictor, prompts=prompts):
                return np.asarray(_answers(predictor, prompts), dtype=float)

            answers = {name: answered(strategy) for name, strategy in strategies.items()}
            networks = [answered(run.trajectory.at(min(step, last)).member(0)) for step in point.step]
            distances.append([[np.mean((a - answers[name]) ** 2) for a in networks] for name in point.predictor])
            scales.append(np.mean((answers["memorising"] - answers["generalising"]) ** 2))
        return {
            "strategy_distance": (("test_set", "predictor", "step"), distances),
            "strategy_gap": (("test_set",), scales),
        }

    return tabulated(of_seed, seed=point.seed)
