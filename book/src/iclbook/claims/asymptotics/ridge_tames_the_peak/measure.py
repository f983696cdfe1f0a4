"""Fit linear attention with several ridges to the same contexts; its exact population errors."""

import jax

from icllab.core.grid import tabulated
from icllab.models import reduced
from icllab.tasks import LinearRegression

VERSION = 1


def measure(point, *, key, unscaled=False, more=1, implicit=0.0):
    """Errors of Gamma for every seed and ridge; ``unscaled``: the penalty is ridge n instead of ridge n/d.

    ``more``: factor of the number of contexts. ``implicit``: part of every ridge that its coordinate does not name.
    """
    prompts = reduced.prompts_at(more * point.tau, point.dim, per="d(d+1)")
    factor = point.dim if unscaled else 1.0

    def fit_seed(seed):
        of_pool, of_contexts = jax.random.split(jax.random.fold_in(key, seed))
        task = LinearRegression.from_scaling(
            dim=point.dim, alpha=point.alpha, kappa=point.kappa, rho=point.rho, key=of_pool
        )
        samples = reduced.sample(task, prompts=prompts, key=of_contexts)

        def fit_ridge(ridge):
            fit = reduced.fit_features(task, samples, ridge=factor * (ridge + implicit))
            return {"icl_error": fit.icl_error(), "idg_error": fit.idg_error(), "converged": fit.converged}

        return tabulated(fit_ridge, ridge=point.ridge)

    return tabulated(fit_seed, seed=point.seed)
