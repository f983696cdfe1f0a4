"""Linear attention fitted with several ridges to the same contexts, and its exact population errors."""

import jax

from icllab.core.grid import tabulated
from icllab.models import reduced
from icllab.tasks import LinearRegression

VERSION = 1


def measure(point, *, key, unscaled=False, more=1):
    """Errors of Gamma for every seed and ridge; ``unscaled``: with a penalty of ridge n instead of ridge n/d.

    ``more``: factor of the number of contexts.
    """
    prompts = reduced.prompts_at(more * point.tau, point.dim, per="d(d+1)")
    factor = point.dim if unscaled else 1.0

    def fitted(seed):
        of_pool, of_contexts = jax.random.split(jax.random.fold_in(key, seed))
        task = LinearRegression.from_scaling(
            dim=point.dim, alpha=point.alpha, kappa=point.kappa, rho=point.rho, key=of_pool
        )
        samples = reduced.sample(task, prompts=prompts, key=of_contexts)

        def at(ridge):
            found = reduced.fit_features(task, samples, ridge=factor * ridge)
            return {"icl_error": found.icl_error(), "idg_error": found.idg_error(), "converged": found.converged}

        return tabulated(at, ridge=point.ridge)

    return tabulated(fitted, seed=point.seed)
