"""Fit linear attention to contexts of a pool of tasks; its exact error on fresh tasks."""

import jax

from icllab.core.grid import tabulated
from icllab.models import reduced
from icllab.tasks import LinearRegression

VERSION = 1


def measure(point, *, key, ridge=0.0, shuffled=False):
    """Measure the error for every seed, each with its own pool; ``shuffled``: labels are permuted."""
    prompts = reduced.prompts_at(point.tau, point.dim, per="d(d+1)")

    def fit_seed(seed):
        of_pool, of_contexts, of_labels = jax.random.split(jax.random.fold_in(key, seed), 3)
        law = {"alpha": point.alpha, "kappa": point.kappa, "rho": point.rho}
        task = LinearRegression.from_scaling(dim=point.dim, key=of_pool, **law)
        samples = reduced.sample(task, prompts=prompts, key=of_contexts)
        if shuffled:
            samples = samples.shuffled(key=of_labels)
        return {"icl_error": reduced.fit_features(task, samples, ridge=ridge).icl_error()}

    return tabulated(fit_seed, seed=point.seed)
