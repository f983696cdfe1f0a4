"""Train transformers on fresh prompts of a pool of tasks; errors beside the best predictors of pool and fresh tasks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.asymptotics._transformers import last_errors, train_annealed
from icllab import algorithms
from icllab.core.grid import tabulated
from icllab.models import Transformer
from icllab.tasks import FixedPrompts, LinearRegression, WeightPool

VERSION = 1

ROWS = 64  # the pools' rows over d: one shape for every kappa that divides it, so that each dimension compiles once


def measure(point, *, key, everything=False, only_pool=False):
    """Errors on fresh tasks and on the pool's.

    ``everything``: networks are trained on every task; ``only_pool``: all tests are of tasks of the pool.
    """
    dim = point.dim

    def of_seed(seed):
        of_pool, of_weights, of_prompts, of_test = jax.random.split(jax.random.fold_in(key, seed), 4)
        widest = LinearRegression.from_scaling(dim=dim, alpha=point.alpha, kappa=ROWS, rho=point.rho, key=of_pool)
        assert isinstance(widest.weights, WeightPool)
        # A small pool in an array of one shape: the first tasks, repeated equally often.
        tasks = np.asarray(widest.weights.weights)[: max(1, round(point.kappa * dim))]
        every = jnp.asarray(np.tile(tasks, (max(1, ROWS * dim // len(tasks)), 1)))
        pool = eqx.tree_at(lambda task: task.weights.weights, widest, every)
        network = Transformer.lu(dim=dim, layers=2, dense=True, key=of_weights)
        training = widest if everything else pool
        runs = [train_annealed(network, training, point, steps=steps, key=of_prompts) for steps in point.step]
        references = {"dmmse": algorithms.DiscreteMMSE(every, point.rho), "ridge": algorithms.Ridge(point.rho)}
        errors = {}
        for kind, task_tested in (("icl", pool if only_pool else widest.fresh()), ("idg", pool)):
            prompts = FixedPrompts.from_task(task_tested, point.prompts, key=of_test).prompts
            errors[f"{kind}_error"] = (("step",), [last_errors(run.predictor, prompts).mean() for run in runs])
            errors[f"{kind}_zero"] = np.mean(np.asarray(prompts.y)[:, -1] ** 2)
            for name, reference in references.items():
                errors[f"{kind}_{name}"] = last_errors(reference, prompts).mean()
        return errors

    return tabulated(of_seed, seed=point.seed)
