"""Fit linear attention to contexts of pools of two sizes; its exact population error."""

import jax

from icllab.core.grid import tabulated
from icllab.models import reduced
from icllab.tasks import LinearRegression

VERSION = 1


def measure(point, *, key, fresh=False, noise=1.0):
    """Error of Gamma for every pool size and seed; ``fresh``: fitted to a new task in every context.

    ``noise``: factor of the noise variance.
    """
    prompts = reduced.prompts_at(point.tau, point.dim, per="d(d+1)")

    def fit_seed(kappa, seed):
        of_pool, of_contexts = jax.random.split(jax.random.fold_in(key, seed))
        task = LinearRegression.from_scaling(
            dim=point.dim, alpha=point.alpha, kappa=kappa, rho=noise * point.rho, key=of_pool
        )
        fit = reduced.fit(task.fresh() if fresh else task, prompts=prompts, ridge=0.0, key=of_contexts)
        return {"icl_error": fit.icl_error(), "converged": fit.converged}

    return tabulated(fit_seed, kappa=point.kappa, seed=point.seed)
