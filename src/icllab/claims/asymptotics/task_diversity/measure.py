"""Linear attention fitted to contexts of pools of many sizes, and dMMSE on pools of its own."""

import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.grid import tabulated
from icllab.models import reduced
from icllab.tasks import LinearRegression, WeightPool
from icllab.theory import dmmse

ROWS = 6  # the pools' rows over d: one shape for every kappa, so that each dimension compiles once
DRAWS = 8  # of dMMSE for each seed


def measure(point, *, key, fresh=True, kappa=None):
    """Exact errors of Gamma and dMMSE's gap for every seed; unless ``fresh``, on half of the pool for fresh tasks.

    ``kappa``: pool size over d in the place of the cell's.
    """
    law = {"dim": point.dim, "alpha": point.alpha, "kappa": point.kappa if kappa is None else kappa, "rho": point.rho}
    prompts = reduced.prompts_at(point.alpha, point.dim, per="d(d+1)")

    def fitted(seed):
        of_pool, of_contexts, of_draws = jax.random.split(jax.random.fold_in(key, seed), 3)
        task, tasks = _with_pool(law, key=of_pool)
        found = reduced.fit(task, prompts=prompts, ridge=0.0, key=of_contexts)
        known = tasks[: len(tasks) // 2]
        of_dmmse = dmmse.task_gap(**law, draws=DRAWS, seed=int(jax.random.bits(of_draws, dtype=jnp.uint32)))
        return {
            "icl_error": found.icl_error() if fresh else found.population_error(weights=known),
            "idg_error": found.idg_error(),
            "converged": found.converged,
            "dmmse_gap": of_dmmse.mean,
        }

    return tabulated(fitted, seed=point.seed)


def _with_pool(law, *, key):
    """The first tasks of a large pool, each as often as every other: a small pool in an array of one shape."""
    drawn = LinearRegression.from_scaling(**{**law, "kappa": ROWS}, key=key)
    assert isinstance(drawn.weights, WeightPool)
    tasks = np.asarray(drawn.weights.weights)[: round(law["kappa"] * law["dim"])]
    pool = WeightPool(jnp.asarray(np.tile(tasks, (ROWS * law["dim"] // len(tasks), 1))), drawn.weights.distribution)
    return LinearRegression(drawn.dim, drawn.length, drawn.inputs, pool, drawn.noise_variance), tasks
