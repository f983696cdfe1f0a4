"""Transformers trained on fresh prompts of a pool of tasks, beside the best predictors of a pool and of fresh tasks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab import algorithms
from icllab.claims.asymptotics._transformers import annealed_run, last_errors
from icllab.core.grid import tabulated
from icllab.models import Transformer
from icllab.tasks import FixedPrompts, LinearRegression, WeightPool

VERSION = 1

ROWS = 64  # the pools' rows over d: one shape for every kappa that divides it, so that each dimension compiles once


def measure(point, *, key, everything=False, only_pool=False):
    """Errors on fresh tasks and on the pool's; networks see every task with ``everything``, tests none but the pool's
    with ``only_pool``."""
    dim = point.dim

    def of_seed(seed):
        of_pool, of_weights, of_prompts, of_test = jax.random.split(jax.random.fold_in(key, seed), 4)
        widest = LinearRegression.from_scaling(dim=dim, alpha=point.alpha, kappa=ROWS, rho=point.rho, key=of_pool)
        assert isinstance(widest.weights, WeightPool)
        # The first tasks, each as often as every other: the distribution of a small pool in an array of one shape.
        tasks = np.asarray(widest.weights.weights)[: max(1, round(point.kappa * dim))]
        every = jnp.asarray(np.tile(tasks, (max(1, ROWS * dim // len(tasks)), 1)))
        pooled = eqx.tree_at(lambda task: task.weights.weights, widest, every)
        network = Transformer.lu(dim=dim, layers=2, dense=True, key=of_weights)
        seen = widest if everything else pooled
        runs = [annealed_run(network, seen, point, steps=steps, key=of_prompts) for steps in point.step]
        references = {"dmmse": algorithms.DiscreteMMSE(every, point.rho), "ridge": algorithms.Ridge(point.rho)}
        found = {}
        for kind, tested in (("icl", pooled if only_pool else widest.fresh()), ("idg", pooled)):
            prompts = FixedPrompts.drawn(tested, point.prompts, key=of_test).prompts
            found[f"{kind}_error"] = (("step",), [last_errors(run.predictor, prompts).mean() for run in runs])
            found[f"{kind}_zero"] = np.mean(np.asarray(prompts.y)[:, -1] ** 2)
            for name, reference in references.items():
                found[f"{kind}_{name}"] = last_errors(reference, prompts).mean()
        return found

    return tabulated(of_seed, seed=point.seed)
