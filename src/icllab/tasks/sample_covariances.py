r"""The sample covariance of n Gaussian inputs, drawn without the inputs.

.. math:: S = \frac1n\sum_{i\le n}x_ix_i^\top = \frac1n\,\Sigma^{1/2}LL^\top\Sigma^{1/2}, \qquad x_i\sim N(0, \Sigma),

with L lower triangular and its entries independent: standard normal below the diagonal, and on it roots of chi-square
numbers of n, n - 1, ... degrees of freedom (Bartlett's decomposition). Each entry is made of one normal number, so S
costs :math:`d(d+1)/2` of them (:math:`d/2` more where d is even) and not :math:`nd`, however long the context.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.polynomial.chebyshev import chebinterpolate
from scipy import special

from icllab.core.errors import expected
from icllab.tasks.regression_distributions import Covariance, root_times

_ORDER = 160  # of the interpolation, before what rounding hides is cut off


def sample_covariance(covariance: Covariance, dim: int, length: int, *, key: PRNGKeyArray) -> Float[Array, "dim dim"]:
    """Draw :math:`S` from its exact distribution; it is singular if there are fewer inputs than dimensions.

    O(dim^3), whatever ``length`` n, at least 1; ``covariance`` is a scalar, a diagonal or a full matrix.

    Derived: docs/training.md, A sample covariance without its samples.
    """
    if length < 1:
        raise expected("length", "an integer of at least 1", length)
    normals = jax.random.normal(key, (dim + dim // 2 * dim,), covariance.dtype)
    triangle = jnp.pad(_folded(normals[dim:].reshape(dim // 2, dim)), ((1, 0), (0, 1)))
    row, column = np.arange(dim)[:, None], np.arange(dim)[None, :]
    columns = min(dim, length)  # columns; further ones are zero
    roots = jnp.pad(chi(normals[:columns], tuple(range(length, length - columns, -1))), (0, dim - columns))
    factor = jnp.where((column < row) & (column < length), triangle, jnp.diag(roots))
    root = jax.vmap(root_times, (None, 1), 1)(covariance, factor) / jnp.asarray(length**0.5, factor.dtype)
    with jax.default_matmul_precision("float32"):
        return root @ root.T


def _folded(rows: Float[Array, "half dim"]) -> Float[Array, "below below"]:
    """Fill a lower triangle of dim - 1 rows with different numbers; entries above its diagonal are not used."""
    # Row i of the triangle has i + 1 entries, its i-th last the rest of the same row; indexed assignment is slower.
    half, below = rows.shape[0], rows.shape[1] - 1
    return jnp.concatenate([rows[:, ::-1][:, :below], rows[: below - half, :below][::-1]])


def chi(normals: Float[Array, " entry"], freedom: tuple[int, ...]) -> Float[Array, " entry"]:
    r"""Square roots of chi-square numbers, each an increasing function of one standard normal number.

    .. math:: \chi_k = F_k^{-1}(\Phi(g)), \qquad F_k(r) = P(k/2,\; r^2/2)

    with P the regularised lower incomplete gamma function. The function is nearly linear; it is interpolated at
    Chebyshev points over all that a normal generator of the type of ``normals`` g returns, to its rounding. ``freedom``
    are the degrees of freedom k of each entry, at least 1.

    Derived: docs/training.md, A sample covariance without its samples.
    """
    if len(freedom) != normals.shape[0] or min(freedom, default=1) < 1:
        raise expected("freedom", f"{normals.shape[0]} integers of at least 1", list(freedom))
    radius, coefficients = _interpolation(freedom, 64 if normals.dtype == jnp.float64 else 32)
    points = jnp.clip(normals / radius, -1, 1)

    def step(state: tuple[Array, Array], coefficient: Array) -> tuple[tuple[Array, Array], None]:
        after, before = state
        return (coefficient + 2 * points * after - before, after), None

    zero = jnp.zeros_like(points)
    values = jnp.asarray(coefficients, points.dtype)
    (first, second), _ = jax.lax.scan(step, (zero, zero), values[:0:-1], unroll=16)
    return jnp.maximum(values[0] + points * first - second, 0)


@functools.lru_cache(maxsize=64)
def _interpolation(freedom: tuple[int, ...], bits: int) -> tuple[float, Float[np.ndarray, "order entry"]]:
    """Largest normal number of a type, and the number of Chebyshev coefficients of chi that its precision needs."""
    # SciPy's inverse is good to thirteen digits; what it leaves of high orders is noise.
    radius, unit = (8.3, 1e-13) if bits == 64 else (5.6, 2.0**-26)

    def roots(points: np.ndarray, k: int) -> np.ndarray:
        tail = special.ndtr(-radius * np.abs(points))  # of the nearer side: the other would be rounded to one
        return np.sqrt(2 * np.where(points < 0, special.gammaincinv(k / 2, tail), special.gammainccinv(k / 2, tail)))

    series = [chebinterpolate(roots, _ORDER, (k,)) for k in freedom]  # pyright: ignore[reportCallIssue, reportArgumentType]
    coefficients = np.stack(series, axis=1)
    order = np.flatnonzero(np.any(np.abs(coefficients) > unit * np.abs(coefficients[0]), axis=1))[-1]
    return radius, coefficients[: max(int(order), 1) + 1]
