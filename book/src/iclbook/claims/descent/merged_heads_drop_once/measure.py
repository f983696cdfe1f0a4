"""Curves of heads with merged keys and queries from a small start, and the size of the start that grows."""

import numpy as np

from iclbook.claims.descent import _heads, _plateaus
from icllab.core.grid import tabulated
from icllab.theory import preconditioners

VERSION = 1


def measure(point, *, key, separate=None, spectrum=None):
    """One cell. ``separate``: standard deviation of the start and rate of heads with keys and queries of rank one.

    ``spectrum``: the setting whose inputs stand in the cell's place.
    """
    if separate is not None:
        point = type(point)(**vars(point) | dict(zip(("std", "rate"), separate, strict=True)))
    setting = spectrum or point.setting
    law, step = _plateaus.law(setting), np.asarray(point.step)
    task = _heads.task_of(setting)
    run = _heads.train(point, task, key=key, heads=point.heads, rank=None if separate is None else 1)

    def measure_seed(seed):
        values, matrices = _heads.read_heads(run, point.seed.index(seed))
        whole = np.einsum("th,thij->tij", values, matrices)
        size = np.trace(whole, axis1=1, axis2=2) / np.sqrt(task.dim)
        growing = (values[0] + np.trace(matrices[0], axis1=1, axis2=2) / np.sqrt(task.dim)) / 2
        loss = np.array([preconditioners.loss(matrix.T, **law) for matrix in whole])
        rest, begun = _plateaus.longest_rest(loss, step)
        fraction = np.asarray(point.fraction)
        order = np.maximum.accumulate(size)
        return {
            "loss_curve": (("step",), loss),
            "start_size": np.sum(growing**2),
            "last_size": size[-1],
            "fraction_step": (("fraction",), np.interp(fraction * size[-1], order, step)),
            "rest": rest / begun,
        }

    return tabulated(measure_seed, seed=point.seed)
