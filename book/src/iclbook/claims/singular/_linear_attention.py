"""Shared parts of claims about ranks of linear attention: a finite prompt distribution, and a row of an estimate."""

import itertools
from typing import Any

import numpy as np
import xarray as xr


def all_prompts(length: int, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    r"""Every prompt of ``tasks [task, dim]`` once: ``length`` examples and a query along the axes, of covariance I.

    Returns:
        Inputs [prompt, position, dim], labels [prompt, position], :math:`h = \frac1\ell\sum_ix_iy_i` and tasks
        [prompt, dim].
    """
    count, dim = tasks.shape
    inputs = np.sqrt(dim) * np.eye(dim)
    indices = list(itertools.product(*(range(dim),) * (length + 1), range(count)))
    x = np.stack([inputs[list(axes)] for *axes, _ in indices])
    task = np.stack([tasks[t] for *_, t in indices])
    y = np.einsum("pid,pd->pi", x, task)
    return x, y, np.einsum("pid,pi->pd", x[:, :-1], y[:, :-1]) / length, task


def estimate_row(chains: xr.Dataset) -> dict[str, Any]:
    """A sampled learning coefficient as a claim's row: estimate, standard error, R-hat and number of warnings."""
    return {
        "learning_coefficient": float(chains["estimate"]),
        "learning_coefficient_error": float(chains["mcse"]),
        "sampler_rhat": float(chains["rhat"]),
        "sampler_warnings": len(chains.attrs["warnings"]),
    }
