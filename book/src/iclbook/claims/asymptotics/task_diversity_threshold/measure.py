"""Squared distances from dMMSE and from ridge along the training of transformers on pools of tasks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.asymptotics._transformers import train, transformer
from icllab import algorithms
from icllab.core.grid import tabulated
from icllab.tasks import LinearRegression
from icllab.tasks.regression_distributions import GaussianWeights, WeightPool

VERSION = 1


@eqx.filter_jit
def _sample(task, keys):
    return jax.vmap(lambda key: task.sample(key=key))(keys)


@eqx.filter_jit
def _answers(predictor, prompts):
    return jax.lax.map(predictor, prompts, batch_size=256)


def measure(point, *, key, updates=None, foreign=False):
    """Distances on fresh tasks and on the pool's; ``foreign``: dMMSE has a pool that training never used."""
    dim, last = point.dim, updates or max(point.step)
    fresh = LinearRegression.convention("raventos", dim=dim, length=round(point.alpha * dim))

    def pooled(key):
        """A pool whose tasks are repeated equally often: one shape for all powers of two."""
        prior, copies = GaussianWeights(jnp.ones(())), max(1, point.longest // point.tasks)
        pool = WeightPool.init(prior, max(point.longest, point.tasks), dim, key=key).weights[: point.tasks]
        return eqx.tree_at(lambda task: task.weights, fresh, WeightPool(jnp.tile(pool, (copies, 1)), prior))

    def of_seed(seed):
        of_pool, of_other, of_weights, of_prompts, of_test = jax.random.split(jax.random.fold_in(key, seed), 5)
        pool, other_pool = pooled(of_pool), pooled(of_other)
        run = train(
            transformer(dim=dim, width=point.width, layers=point.layers, key=of_weights),
            pool,
            point,
            key=of_prompts,
            updates=last,
            keep=sorted({min(step, last) for step in point.step}),
        )
        candidates = {
            "dMMSE": algorithms.bayes_optimal(other_pool if foreign else pool),
            "ridge": algorithms.bayes_optimal(fresh),
            "dMMSE of another pool": algorithms.bayes_optimal(pool if foreign else other_pool),
        }
        table = {}
        for kind, task in (("fresh", fresh), ("pool", pool)):
            prompts = _sample(task, jax.random.split(of_test, point.prompts))

            def answered(predictor, prompts=prompts):
                return np.asarray(_answers(predictor, prompts), dtype=float)

            references = {name: answered(candidate) for name, candidate in candidates.items()}
            network_answers = [answered(run.trajectory.at(min(step, last)).member(0)) for step in point.step]
            distances = [
                [np.mean((a - references[name]) ** 2) / dim for a in network_answers] for name in point.predictor
            ]
            table[f"{kind}_distance"] = (("predictor", "step"), distances)
            table[f"{kind}_scale"] = np.mean((references["dMMSE"] - references["ridge"]) ** 2) / dim
        return table

    return tabulated(of_seed, seed=point.seed)
