r"""What can be said of a symmetric matrix that is known by its products with vectors alone.

From a start z, m products make a tridiagonal matrix T, whose eigenvalues :math:`\theta_j` and the squares
:math:`\omega_j` of the first entries of whose eigenvectors are the Gauss quadrature of the measure that z puts on
the spectrum:

.. math:: z^\top f(A)\,z \approx \lVert z\rVert^2\sum_{j\le m}\omega_j\,f(\theta_j),

exact for polynomials of a degree below 2m. Means over random z are traces.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from icllab.core.errors import expected
from icllab.core.views import fields_html, fields_repr

Product: TypeAlias = Callable[[Any], Any]  # v -> A v


class TraceEstimate(NamedTuple):
    """A number from random probes.

    Attributes:
        value: The mean over probes.
        error: Its standard error; zero where nothing was drawn.
        gap: What the last half of the products of each probe changed: the size of what is left of the quadrature.
    """

    value: float
    error: float
    gap: float = 0.0

    __repr__ = fields_repr
    _repr_html_ = fields_html


class SpectralMeasure(NamedTuple):
    """Tridiagonal matrices, one of each probe."""

    size: int  # rows of the matrix that is asked about
    diagonal: np.ndarray  # [probe, node]
    beside: np.ndarray  # what stands beside the diagonal, [probe, node - 1]

    def quadrature(self, order: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        r"""Nodes :math:`\theta` and weights :math:`\omega`, [probe, node], after so many products or after all."""
        count = int(self.diagonal.shape[1]) if order is None else order
        matrices = np.zeros((len(self.diagonal), count, count))
        rows = np.arange(count)
        matrices[:, rows, rows] = self.diagonal[:, :count]
        matrices[:, rows[1:], rows[:-1]] = self.beside[:, : count - 1]
        nodes, vectors = np.linalg.eigh(matrices)
        return nodes, vectors[:, 0] ** 2

    def trace_of(self, function: Callable[[np.ndarray], np.ndarray]) -> TraceEstimate:
        """The trace of a function of the matrix, with the standard error over probes."""

        def each(order: int | None) -> np.ndarray:
            nodes, weights = self.quadrature(order)
            return self.size * np.sum(weights * function(nodes), axis=1)

        values, half = each(None), each(max(self.diagonal.shape[1] // 2, 1))
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return TraceEstimate(float(values.mean()), float(error), float(values.mean() - half.mean()))


def lanczos(
    product: Product, start: Float[Array, " parameter"], *, order: int
) -> tuple[Float[Array, " order"], Float[Array, " order_less_one"]]:
    r"""The tridiagonal matrix of a Krylov space, with full reorthogonalisation.

    .. math:: T = Q^\top A\,Q, \qquad \operatorname{span}Q = \operatorname{span}(z, Az, \dots, A^{m-1}z)

    Every new vector is made orthogonal to all before it, twice: without that, rounding repeats the largest
    eigenvalues. Where the space is exhausted, what follows is zero, and has no weight in the quadrature. Memory: m
    vectors. Returns the diagonal of T, and what stands beside it.

    Source: [GolubMeurant10].
    """
    tiny = 10 * float(jnp.finfo(start.dtype).eps)

    def step(carry: tuple[Array, Array, Array], j: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
        basis, now, scale = carry
        basis = basis.at[j].set(now)
        image = product(now)
        along = basis @ image
        left = image - along @ basis
        left = left - (basis @ left) @ basis
        norm = jnp.linalg.norm(left)
        scale = jnp.maximum(scale, jnp.linalg.norm(image))
        there = norm > tiny * scale
        now = jnp.where(there, left / jnp.where(there, norm, 1), 0)
        return (basis, now, scale), (along[j], jnp.where(there, norm, 0))

    empty = jnp.zeros((order, start.size), start.dtype)
    begin = (empty, start / jnp.linalg.norm(start), jnp.zeros((), start.dtype))
    _, (diagonal, beside) = jax.lax.scan(step, begin, jnp.arange(order))
    return diagonal, beside[:-1]


def spectral_measure(
    product: Product, size: int, *, key: PRNGKeyArray, probes: int = 16, order: int = 64, dtype: Any = jnp.float32
) -> SpectralMeasure:
    r"""How the eigenvalues of a matrix are distributed, by stochastic Lanczos quadrature.

    .. math:: \operatorname{tr}f(A) \approx \frac pP\sum_{z}\sum_j\omega_{zj}\,f(\theta_{zj})

    over P random vectors z of signs and p parameters. One after the other, so that the memory is that of one. A
    ``product`` that is a callable module keeps what is compiled for other numbers in it.

    Raises:
        InputError: There is no probe or no product.

    Source: [Ubaru17].
    """
    if probes < 1 or order < 1:
        raise expected("probes and order", "integers of at least 1", [probes, order])
    starts = jax.random.rademacher(key, (probes, size), dtype)
    diagonal, beside = _tridiagonal(product, starts, min(order, size))
    return SpectralMeasure(size, np.asarray(diagonal, np.float64), np.asarray(beside, np.float64))


def extreme_eigenvalues(
    product: Product, size: int, count: int, *, key: PRNGKeyArray, dtype: Any = jnp.float32
) -> tuple[np.ndarray, np.ndarray]:
    """The largest and the smallest eigenvalues, each from the extreme inwards.

    By implicitly restarted Lanczos iteration to the precision of the type. NaN stands for one that did not
    converge, as may be where many are nearly equal; and of equal ones some may be missed.

    Raises:
        InputError: ``count`` is not between 1 and the number of rows less 1.

    Source: [GolubMeurant10].
    """
    if not 1 <= count < size:
        raise expected("count", f"an integer from 1 to {size - 1}", count)
    compiled = eqx.filter_jit(lambda v: product(v))
    kind: Any = np.dtype(dtype)
    make: Any = LinearOperator
    operator = make((size, size), matvec=lambda v: np.asarray(compiled(jnp.asarray(v.ravel(), dtype))), dtype=kind)
    start = np.asarray(jax.random.normal(key, (size,), dtype))

    def found(which: str) -> np.ndarray:
        try:
            values = np.asarray(eigsh(operator, count, which=which, v0=start, return_eigenvectors=False))  # pyright: ignore[reportCallIssue, reportArgumentType]
        except ArpackNoConvergence as stopped:
            values = np.asarray(stopped.eigenvalues)
        values = np.sort(values.astype(np.float64))[:: -1 if which == "LA" else 1]
        return np.concatenate([values, np.full(count - len(values), np.nan)])

    return found("LA"), found("SA")


@eqx.filter_jit
def _tridiagonal(product: Product, starts: Any, order: int) -> tuple[Array, Array]:
    return jax.lax.map(lambda start: lanczos(product, start, order=order), starts)
