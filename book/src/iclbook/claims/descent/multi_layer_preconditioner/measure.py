"""Matrices of layers during training, and the loss."""

import jax
import numpy as np

from iclbook.claims.descent import _layers
from iclbook.claims.descent.multi_layer_preconditioner.claim import covariance
from icllab.core.grid import tabulated

VERSION = 1


def measure(point, *, key, learn=True, isotropic=False):
    """One cell: networks of all seeds under one distribution of tasks. ``isotropic``: trained on isotropic inputs."""
    sigma = np.eye(point.dim) if isotropic else covariance(point.dim)
    of_tasks = {"whitened": np.linalg.inv(sigma), "anisotropic": np.eye(point.dim)}[point.setting]
    task = _layers.regression(point.length, sigma, of_tasks)
    of_training, of_test = jax.random.split(key)
    run = _layers.train(point, task, "blocks", layers=point.layers, key=of_training, keep=point.step)
    entries = np.ix_([layer - 1 for layer in point.layer], point.row, point.column)
    dims = ("layer", "row", "column")

    def measure_network(step, seed):
        network = run.trajectory.at(step if learn else min(point.step)).member(point.seed.index(seed))
        test_key = jax.random.fold_in(of_test, seed)
        a, b = (matrices[entries] for matrices in _layers.blocks(network))
        losses = _layers.on_shared_prompts([network], task, key=test_key, prompts=point.prompts)
        return {"preconditioner": (dims, a), "contraction": (dims, b), "test_loss": losses.mean()}

    return tabulated(measure_network, step=point.step, seed=point.seed)
