"""Fit linear attention to contexts of a pool of tasks; its exact population errors."""

import jax

from icllab.core.grid import tabulated
from icllab.models import reduced
from icllab.tasks import LinearRegression

VERSION = 1


def measure(point, *, key, shuffled=False, ridge=0.0):
    """Errors of Gamma for every seed, each with its own pool; ``shuffled``: labels of the contexts are permuted."""
    prompts = reduced.prompts_at(point.tau, point.dim, per="d(d+1)")

    def fit_seed(seed):
        of_pool, of_contexts, of_shuffle = jax.random.split(jax.random.fold_in(key, seed), 3)
        task = LinearRegression.from_scaling(
            dim=point.dim, alpha=point.alpha, kappa=point.kappa, rho=point.rho, key=of_pool
        )
        samples = reduced.sample(task, prompts=prompts, key=of_contexts)
        if shuffled:
            samples = samples.shuffled(key=of_shuffle)
        fit = reduced.fit_features(task, samples, ridge=ridge)
        return {"icl_error": fit.icl_error(), "idg_error": fit.idg_error(), "converged": fit.converged}

    return tabulated(fit_seed, seed=point.seed)
