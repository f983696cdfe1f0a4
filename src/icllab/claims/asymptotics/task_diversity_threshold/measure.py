"""Transformers trained on pools of tasks, and their squared distances from dMMSE and from ridge along training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab import algorithms
from icllab.claims.asymptotics._transformers import trained, transformer
from icllab.core.grid import tabulated
from icllab.tasks import LinearRegression
from icllab.tasks.regression_distributions import GaussianWeights, WeightPool

VERSION = 1


@eqx.filter_jit
def _drawn(task, keys):
    return jax.vmap(lambda key: task.sample(key=key))(keys)


@eqx.filter_jit
def _answers(predictor, prompts):
    return jax.lax.map(predictor, prompts, batch_size=256)


def measure(point, *, key, updates=None, foreign=False):
    """Distances on fresh tasks and on the pool's; with ``foreign`` dMMSE is given a pool that training never saw."""
    dim, last = point.dim, updates or max(point.step)
    fresh = LinearRegression.convention("raventos", dim=dim, length=round(point.alpha * dim))

    def pooled(key):
        """Tasks of a pool, each repeated as often: the same distribution, in one shape for all powers of two."""
        prior, several = GaussianWeights(jnp.ones(())), max(1, point.longest // point.tasks)
        pool = WeightPool.drawn(prior, max(point.longest, point.tasks), dim, key=key).weights[: point.tasks]
        return eqx.tree_at(lambda task: task.weights, fresh, WeightPool(jnp.tile(pool, (several, 1)), prior))

    def of_seed(seed):
        of_pool, of_other, of_weights, of_prompts, of_test = jax.random.split(jax.random.fold_in(key, seed), 5)
        pool, other = pooled(of_pool), pooled(of_other)
        run = trained(
            transformer(dim=dim, width=point.width, layers=point.layers, key=of_weights),
            pool,
            point,
            key=of_prompts,
            updates=last,
            keep=sorted({min(step, last) for step in point.step}),
        )
        candidates = {
            "dMMSE": algorithms.bayes_optimal(other if foreign else pool),
            "ridge": algorithms.bayes_optimal(fresh),
            "dMMSE of another pool": algorithms.bayes_optimal(pool if foreign else other),
        }
        found = {}
        for kind, task in (("fresh", fresh), ("pool", pool)):
            prompts = _drawn(task, jax.random.split(of_test, point.prompts))

            def answered(predictor, prompts=prompts):
                return np.asarray(_answers(predictor, prompts), dtype=float)

            given = {name: answered(candidate) for name, candidate in candidates.items()}
            own = [answered(run.trajectory.at(min(step, last)).member(0)) for step in point.step]
            distances = [[np.mean((a - given[name]) ** 2) / dim for a in own] for name in point.predictor]
            found[f"{kind}_distance"] = (("predictor", "step"), distances)
            found[f"{kind}_scale"] = np.mean((given["dMMSE"] - given["ridge"]) ** 2) / dim
        return found

    return tabulated(of_seed, seed=point.seed)
