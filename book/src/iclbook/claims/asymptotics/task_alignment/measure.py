"""Fit linear attention to a pool of power-law tasks; its exact errors on tasks of other covariances."""

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.asymptotics.task_alignment.claim import SETTINGS, covariance, pool_spectrum
from icllab.core.grid import tabulated
from icllab.models import reduced
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, WeightPool

VERSION = 2


def measure(point, *, key, isotropic_pool=False, pool="matched"):
    """Errors of Gamma for every seed, each with its own pool; ``isotropic_pool``: a pool of isotropic tasks.

    ``pool``: covariance of the pool, by the name of a test covariance.
    """
    dim, setting = point.dim, SETTINGS[point.setting]
    spectrum = pool_spectrum(point.setting, dim, point.exponent)
    tests = [_gaussian(covariance(test, spectrum)) for test in point.test_covariance]
    law = _gaussian(np.ones(dim) if isotropic_pool else covariance(pool, spectrum))
    inputs = GaussianInputs(jnp.ones(()) / dim)
    prompts = reduced.prompts_at(setting["tau"], dim, per="d(d+1)")

    def fit_seed(seed):
        of_pool, of_contexts = jax.random.split(jax.random.fold_in(key, seed))
        pool = WeightPool.init(law, round(setting["kappa"] * dim), dim, key=of_pool)
        task = LinearRegression(dim, round(setting["alpha"] * dim), inputs, pool, setting["rho"])
        fit = reduced.fit(task, prompts=prompts, ridge=setting["ridge"], key=of_contexts)
        errors = [fit.population_error(weights=weights) for weights in tests]
        return {
            "transfer_error": (("test_covariance",), errors),
            "idg_error": fit.idg_error(),
            "converged": fit.converged,
        }

    return tabulated(fit_seed, seed=point.seed)


def _gaussian(eigenvalues):
    return GaussianWeights(jnp.asarray(eigenvalues, "float32"))
