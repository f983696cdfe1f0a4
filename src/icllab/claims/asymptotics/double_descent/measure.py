"""Linear attention fitted to contexts of a pool of tasks, and its exact population errors."""

import jax

from icllab.core.grid import tabulated
from icllab.models import reduced
from icllab.tasks import LinearRegression

VERSION = 1


def measure(point, *, key, shuffled=False, ridge=0.0):
    """Errors of Gamma, fitted once per seed; each seed has a task pool of its own."""
    prompts = reduced.prompts_at(point.tau, point.dim, per="d(d+1)")

    def fitted(seed):
        of_pool, of_contexts, of_shuffle = jax.random.split(jax.random.fold_in(key, seed), 3)
        task = LinearRegression.from_scaling(
            dim=point.dim, alpha=point.alpha, kappa=point.kappa, rho=point.rho, key=of_pool
        )
        samples = reduced.sample(task, prompts=prompts, key=of_contexts)
        if shuffled:
            samples = samples.shuffled(key=of_shuffle)
        found = reduced.fit_features(task, samples, ridge=ridge)
        return {"icl_error": found.icl_error(), "idg_error": found.idg_error(), "converged": found.converged}

    return tabulated(fitted, seed=point.seed)
