"""Covariances whose eigenvectors are nobody's axes. Without JAX."""

import numpy as np


def eigenvectors(dim: int) -> np.ndarray:
    """An orthogonal matrix [dim, dim], drawn once for each dimension; its columns are the directions."""
    return np.linalg.qr(np.random.default_rng(dim).normal(size=(dim, dim)))[0]


def turned(variances: np.ndarray) -> np.ndarray:
    """The covariance [dim, dim] with these eigenvalues, [dim], along the :func:`eigenvectors`."""
    turn = eigenvectors(len(variances))
    return (turn * variances) @ turn.T


def square(dim: int) -> dict[str, tuple[int, ...]]:
    """The axes of square matrices of one dimension, as a size of a claim has them."""
    return {"dim": (dim,), "row": tuple(range(dim)), "column": tuple(range(dim))}
