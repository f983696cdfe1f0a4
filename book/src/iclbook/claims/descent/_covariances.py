"""Covariances whose eigenvectors are not the axes. Imports no JAX."""

import numpy as np


def eigenvectors(dim: int) -> np.ndarray:
    """A random orthogonal matrix [dim, dim], the same at every call; its columns are the directions."""
    return np.linalg.qr(np.random.default_rng(dim).normal(size=(dim, dim)))[0]


def rotated_covariance(variances: np.ndarray) -> np.ndarray:
    """The covariance [dim, dim] with these eigenvalues, [dim], along the :func:`eigenvectors`."""
    turn = eigenvectors(len(variances))
    return (turn * variances) @ turn.T


def square(dim: int) -> dict[str, tuple[int, ...]]:
    """Axes for square matrices of one dimension, for a claim's size."""
    return {"dim": (dim,), "row": tuple(range(dim)), "column": tuple(range(dim))}
