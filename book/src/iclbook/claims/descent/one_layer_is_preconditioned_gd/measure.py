"""Matrix of one trained layer of linear attention, and its loss over that of the best step on the same prompts."""

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.descent import _layers
from iclbook.claims.descent.one_layer_is_preconditioned_gd.claim import covariances
from icllab import algorithms, constructions
from icllab.core.grid import tabulated
from icllab.theory import preconditioners

VERSION = 1


def measure(point, *, key, learn=True, trained_on=None, reference_length=None):
    """One cell: networks of all seeds under one distribution. ``trained_on``: another setting for training.

    ``reference_length``: another number of examples for which the compared step is optimal.
    """
    of_inputs, of_tasks = covariances(point.setting, point.dim, point.smallest)
    task = _layers.regression(point.length, of_inputs, of_tasks, point.rho)
    training_covariances = covariances(trained_on or point.setting, point.dim, point.smallest)
    of_training, of_test = jax.random.split(key)
    training = _layers.regression(point.length, *training_covariances, point.rho)
    networks = _layers.networks(point, training, "full", layers=1, key=of_training, learn=learn)
    law = {"length": reference_length or point.length, "task_covariance": of_tasks, "noise_variance": point.rho}
    matrix = jnp.asarray(preconditioners.optimal(of_inputs, **law).matrix, jnp.float32)
    best = algorithms.PreconditionedDescent(matrix, layers=1, dim=point.dim, normalised=True, half=True)
    reference = constructions.gradient_descent(best, answers="last", form="gram")

    def measure_seed(seed):
        models, test_key = [networks[seed], reference], jax.random.fold_in(of_test, seed)
        ratio, error = _layers.ratio(*_layers.on_shared_prompts(models, task, key=test_key, prompts=point.prompts))
        matrix, other_entries = _layers.as_step(networks[seed])
        entries = (("row", "column"), matrix[np.ix_(point.row, point.column)])
        return {
            "loss_ratio": ratio,
            "loss_ratio_error": error,
            "other_entries": other_entries,
            "preconditioner": entries,
        }

    return tabulated(measure_seed, seed=point.seed)
