"""Settings of linear attention that learns by saddles, and plateaus of its curves. Without JAX."""

import itertools
from typing import Any

import numpy as np

from iclbook.claims.descent._covariances import eigenvectors, rotated_covariance

SETTINGS = {
    "authors": ((0.4, 0.3, 0.2, 0.1), 31, 0.0),
    "steep": ((0.5, 0.25, 0.15, 0.1), 31, 0.0),
    "short": ((0.4, 0.3, 0.2, 0.1), 10, 0.0),
    "long": ((0.45, 0.3, 0.15, 0.1), 60, 0.0),
    "noisy": ((0.5, 0.25, 0.15, 0.1), 31, 0.5),
    "white": ((0.25, 0.25, 0.25, 0.25), 31, 0.0),
    "dominant": ((0.5, *(0.05,) * 10), 31, 0.0),
}
"""Eigenvalues of the inputs' covariance, examples in a context, and variance of the label noise."""
LEARNED = 0.25  # of 1 / eigenvalue: what a learned component has in W is above it, and another far below
SAME = 0.02  # of the fall of a whole curve: what changes less rests


def law(setting: str) -> dict[str, Any]:
    """Arguments of :mod:`icllab.theory.saddles` for a setting, with eigenvectors that are no axes."""
    spectrum, length, noise = SETTINGS[setting]
    return {"covariance": rotated_covariance(np.array(spectrum)), "length": length, "noise_variance": noise}


def along_components(matrices: np.ndarray) -> np.ndarray:
    """Diagonals [..., component] of matrices [..., dim, dim] in the settings' eigenvectors."""
    turn = eigenvectors(matrices.shape[-1])
    return np.einsum("ik,...ij,jk->...k", turn, matrices, turn)


def learned_steps(along: np.ndarray, step: np.ndarray, spectrum: np.ndarray) -> np.ndarray:
    """Step at which each component [component] of the curves [step, component] is learned; infinite if never."""
    above = along > LEARNED / np.asarray(spectrum)
    times = np.full(along.shape[1], np.inf)
    for d in np.flatnonzero(above.any(axis=0)):
        k = int(np.argmax(above[:, d]))
        level = LEARNED / spectrum[d]
        times[d] = step[k] if k == 0 else np.interp(level, along[k - 1 : k + 1, d], step[k - 1 : k + 1])
    return times


def flattest(loss: np.ndarray, step: np.ndarray, learned: np.ndarray) -> np.ndarray:
    """Index of the record where the loss falls least, after each number of components is learned; -1 without one."""
    slope, ends = np.abs(np.gradient(loss, step)), np.concatenate([[-np.inf], np.sort(learned), [np.inf]])
    rows = []
    for begin, end in itertools.pairwise(ends):
        within = (step >= begin) & (step < end)
        rows.append(int(np.argmin(np.where(within, slope, np.inf))) if within.any() else -1)
    return np.array(rows)


def longest_rest(loss: np.ndarray, step: np.ndarray) -> tuple[float, float]:
    """Longest time during which the loss stays within a fiftieth of its whole fall, between 10 and 90 % of it.

    The other number is the time at which the first tenth of the fall is done.
    """
    fallen = (loss[0] - loss) / (loss[0] - loss.min())
    begun, within = float(step[np.argmax(fallen > 0.1)]), (fallen > 0.1) & (fallen < 0.9)
    longest = 0.0
    for k in np.flatnonzero(within):
        near = within & (np.abs(fallen - fallen[k]) < SAME / 2)
        longest = max(longest, float(np.ptp(step[near])))
    return longest, begun
