"""Gaps of linear attention fitted to contexts of pools of many sizes, and of dMMSE on other pools."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from icllab.algorithms import DiscreteMMSE
from icllab.core.grid import tabulated
from icllab.core.prompt import RegressionPrompt
from icllab.models import reduced
from icllab.tasks import LinearRegression, WeightPool

VERSION = 1

ROWS = 6  # the pools' rows over d: one shape for every kappa, so that each dimension compiles once
DRAWS = 8  # of dMMSE for each seed


def measure(point, *, key, fresh=True, kappa=None, gaussian=False, inverse=None):
    """Exact errors of Gamma and dMMSE's gap for every seed.

    ``fresh``: fresh tasks are tested, not half of the pool; ``kappa``: pool size over d instead of the cell's;
    ``gaussian``: the posterior mean of a normal prior with the pool's covariance replaces dMMSE; ``inverse``: this
    number over alpha is the length of contexts over d, and tau.
    """
    alpha = inverse / point.alpha if inverse else point.alpha
    law = {"dim": point.dim, "alpha": alpha, "kappa": point.kappa if kappa is None else kappa, "rho": point.rho}
    prompts = reduced.prompts_at(alpha, point.dim, per="d(d+1)")

    def fit_seed(seed):
        of_pool, of_contexts, of_draws = jax.random.split(jax.random.fold_in(key, seed), 3)
        task, tasks = _with_pool(law, key=of_pool)
        fit = reduced.fit(task, prompts=prompts, ridge=0.0, key=of_contexts)
        pool_half = tasks[: len(tasks) // 2]
        return {
            "icl_error": fit.icl_error() if fresh else fit.population_error(weights=pool_half),
            "idg_error": fit.idg_error(),
            "converged": fit.converged,
            "dmmse_gap": _dmmse_gap(law, key=of_draws, gaussian=gaussian),
        }

    return tabulated(fit_seed, seed=point.seed)


def _with_pool(law, *, key):
    """A task with a small pool in an array of one shape: the first tasks of a large pool, repeated equally often."""
    source = LinearRegression.from_scaling(**{**law, "kappa": ROWS}, key=key)
    assert isinstance(source.weights, WeightPool)
    tasks = np.asarray(source.weights.weights)[: round(law["kappa"] * law["dim"])]
    pool = WeightPool(jnp.asarray(np.tile(tasks, (ROWS * law["dim"] // len(tasks), 1))), source.weights.distribution)
    return LinearRegression(source.dim, source.length, source.inputs, pool, source.noise_variance), tasks


def _dmmse_gap(law, *, key, gaussian=False):
    """Error of dMMSE on a fresh task minus that on a task of the pool, the mean over independent pools and contexts."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    dim, length = law["dim"], round(law["alpha"] * law["dim"])
    weights = rng.normal(size=(DRAWS, ROWS * dim, dim))
    pools = weights[:, np.arange(ROWS * dim) % round(law["kappa"] * dim)]  # one shape for every kappa, as above
    tasks = np.stack([pools[:, 0], rng.normal(size=(DRAWS, dim))], axis=1)
    x = rng.normal(size=(DRAWS, length + 1, dim)) / np.sqrt(dim)
    y = np.einsum("sld,std->stl", x, tasks) + np.sqrt(law["rho"]) * rng.normal(size=(DRAWS, 1, length + 1))
    predictor = _gaussian_means if gaussian else _posterior_means
    estimates = predictor(*(jnp.asarray(values, float) for values in (pools, law["rho"], x, y)))
    of_pool, of_fresh = np.mean((np.asarray(estimates) - tasks) ** 2, axis=(0, 2))
    return of_fresh - of_pool


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None, 0, 0))
@functools.partial(jax.vmap, in_axes=(None, None, None, 0))
def _posterior_means(pool, rho, x, y):
    """Gradient of dMMSE's last answer, which is linear in the query: its error has no noise of a test."""

    def answer(query):
        return DiscreteMMSE(pool, rho)(RegressionPrompt(x.at[-1].set(query), y))[-1]

    return jax.grad(answer)(x[-1])


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None, 0, 0))
@functools.partial(jax.vmap, in_axes=(None, None, None, 0))
def _gaussian_means(pool, rho, x, y):
    """The posterior mean of the task under a normal prior with the pool's covariance."""
    x, covariance = x[:-1], pool.T @ pool / len(pool)
    spread = x @ covariance @ x.T + rho * jnp.eye(len(x))
    return covariance @ x.T @ jnp.linalg.solve(spread, y[:-1])
