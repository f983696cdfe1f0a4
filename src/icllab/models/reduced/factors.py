r"""Cholesky factors for :math:`\Gamma`, for equations that are few or too badly conditioned for iterations.

The equations are those of :mod:`~icllab.models.reduced.solvers`. Everything is float64 NumPy and LAPACK on
the host: nothing is compiled, which for small systems is all the time there is, and on a CPU the factor is
LAPACK's in any case.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float

from icllab.core.linalg import IterativeSolution
from icllab.models.reduced.samples import Samples

_REFINEMENTS = 10
_ROWS = 512  # of the feature matrix formed at a time


def dual_cholesky(samples: Samples, shift: float, tolerance: float) -> IterativeSolution:
    r"""Factor the kernel :math:`(X X^\top) \circ (H H^\top) + s I` of order n; the solution has the least norm."""
    x, h, y = _rows(samples)
    kernel = x @ x.T
    kernel *= h @ h.T
    kernel[np.diag_indices_from(kernel)] += shift

    def operator(a: np.ndarray) -> np.ndarray:
        return np.sum((x @ (x.T @ (a[:, None] * h))) * h, axis=1) + shift * a

    return _refined(kernel, operator, y, tolerance, lambda a: x.T @ (a[:, None] * h))


def primal_cholesky(samples: Samples, shift: float, tolerance: float) -> IterativeSolution:
    r"""Factor :math:`Z^\top Z + s I` of order d(d+1), forming the rows of :math:`Z` block by block."""
    x, h, y = _rows(samples)
    d, f = x.shape[1], h.shape[1]
    normal = shift * np.eye(d * f)
    for start in range(0, len(y), _ROWS):
        block = slice(start, start + _ROWS)
        z = (x[block, :, None] * h[block, None, :]).reshape(-1, d * f)
        normal += z.T @ z

    def operator(gamma: np.ndarray) -> np.ndarray:
        answers = np.sum((x @ gamma.reshape(d, f)) * h, axis=1)
        return (x.T @ (answers[:, None] * h)).reshape(-1) + shift * gamma

    right = (x.T @ (y[:, None] * h)).reshape(-1)
    return _refined(normal, operator, right, tolerance, lambda gamma: gamma.reshape(d, f))


def _rows(
    samples: Samples,
) -> tuple[Float[np.ndarray, "prompt dim"], Float[np.ndarray, "prompt feature"], Float[np.ndarray, " prompt"]]:
    n, d = int(samples.prompts), samples.dim
    parts = (samples.query, d), (samples.features, d + 1), (samples.label, 1)
    x, h, y = (np.asarray(part).reshape(-1, width)[:n].astype(np.float64) for part, width in parts)
    return x, h, y[:, 0]


def _refined(
    matrix: np.ndarray,
    operator: Callable[[np.ndarray], np.ndarray],
    right: np.ndarray,
    tolerance: float,
    gamma: Callable[[np.ndarray], np.ndarray],
) -> IterativeSolution:
    """Solve with the factor of ``matrix`` (overwritten), then refine by solving for the residual of ``operator``."""
    # Without a factor, where the matrix is not positive definite to float64, the value is zero and its residual 1.
    size = float(np.linalg.norm(right))
    value, residual, relative, steps = np.zeros_like(right), right, float(size != 0), 0
    try:
        factor = scipy.linalg.cho_factor(matrix.T, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        factor = None
    while factor is not None and relative > tolerance and steps < _REFINEMENTS:
        trial = value + scipy.linalg.cho_solve(factor, residual, check_finite=False)
        left = right - operator(trial)
        next_relative = float(np.linalg.norm(left)) / size
        if not next_relative < relative:
            break  # no better, or not finite
        value, residual, relative, steps = trial, left, next_relative, steps + 1
    residual_and_success = jnp.asarray(relative), jnp.asarray(relative <= tolerance)
    return IterativeSolution(jnp.asarray(gamma(value)), jnp.asarray(steps, jnp.int32), *residual_and_success)
