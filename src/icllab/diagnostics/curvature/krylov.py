r"""Krylov methods for a symmetric matrix that is given by its products with vectors.

From a start z, m products give a tridiagonal matrix T. Its eigenvalues :math:`\theta_j` and the squared first entries
:math:`\omega_j` of its eigenvectors are the Gauss quadrature of the spectral measure of z:

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

from icllab.core import progress
from icllab.core.errors import expected
from icllab.core.views import fields_html, fields_repr

Product: TypeAlias = Callable[[Any], Any]  # v -> A v


class TraceEstimate(NamedTuple):
    """Estimate from random probes.

    Attributes:
        value: Mean over probes.
        error: Standard error; zero for an exact value.
        gap: Change by the last half of the products, the size of the quadrature error.
    """

    value: float
    error: float
    gap: float = 0.0

    __repr__ = fields_repr
    _repr_html_ = fields_html


class SpectralMeasure(NamedTuple):
    """Tridiagonal matrices, one for each probe."""

    size: int  # rows of the full matrix
    diagonal: np.ndarray  # [probe, node]
    off_diagonal: np.ndarray  # [probe, node - 1]

    def quadrature(self, order: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        r"""Nodes :math:`\theta` and weights :math:`\omega`, [probe, node], after ``order`` products or after all."""
        count = int(self.diagonal.shape[1]) if order is None else order
        matrices = np.zeros((len(self.diagonal), count, count))
        rows = np.arange(count)
        matrices[:, rows, rows] = self.diagonal[:, :count]
        matrices[:, rows[1:], rows[:-1]] = self.off_diagonal[:, : count - 1]
        nodes, vectors = np.linalg.eigh(matrices)
        return nodes, vectors[:, 0] ** 2

    def trace_of(self, function: Callable[[np.ndarray], np.ndarray]) -> TraceEstimate:
        """Trace of a function of the matrix, with the standard error over probes."""

        def values_at(order: int | None) -> np.ndarray:
            nodes, weights = self.quadrature(order)
            return self.size * np.sum(weights * function(nodes), axis=1)

        values, half = values_at(None), values_at(max(self.diagonal.shape[1] // 2, 1))
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return TraceEstimate(float(values.mean()), float(error), float(values.mean() - half.mean()))


def lanczos(
    product: Product, start: Float[Array, " parameter"], *, order: int
) -> tuple[Float[Array, " order"], Float[Array, " order_less_one"]]:
    r"""Tridiagonal matrix of a Krylov space, with full reorthogonalisation.

    .. math:: T = Q^\top A\,Q, \qquad \operatorname{span}Q = \operatorname{span}(z, Az, \dots, A^{m-1}z)

    Every new vector is orthogonalised twice against all previous ones; otherwise rounding repeats the largest
    eigenvalues. Once the space is exhausted, further entries are zero and have no weight in the quadrature. Memory: m
    vectors. Returns the diagonal and the off-diagonal of T.

    Source: [GolubMeurant10].
    """
    begin, last = _begin(start, order), jnp.asarray(order)
    _, _, _, diagonal, off_diagonal = _steps(product, begin, jnp.asarray(0), last)
    return diagonal, off_diagonal[:-1]


def _begin(start: Array, order: int) -> tuple[Array, ...]:
    """Basis, the next vector, the scale of the matrix, and the two diagonals of T."""
    zeros = jnp.zeros(order, start.dtype)
    basis = jnp.zeros((order, start.size), start.dtype)
    return basis, start / jnp.linalg.norm(start), jnp.zeros((), start.dtype), zeros, zeros.copy()


def _steps(product: Product, carry: tuple[Array, ...], first: Array, end: Array) -> tuple[Array, ...]:
    """The carry after the products from ``first`` to ``end``."""
    tiny = 10 * float(jnp.finfo(carry[1].dtype).eps)

    def step(j: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        basis, vector, scale, diagonal, off_diagonal = carry
        basis = basis.at[j].set(vector)
        image = product(vector)
        components = basis @ image
        residual = image - components @ basis
        residual = residual - (basis @ residual) @ basis
        norm = jnp.linalg.norm(residual)
        scale = jnp.maximum(scale, jnp.linalg.norm(image))
        continues = norm > tiny * scale
        vector = jnp.where(continues, residual / jnp.where(continues, norm, 1), 0)
        diagonal, off_diagonal = (
            diagonal.at[j].set(components[j]),
            off_diagonal.at[j].set(jnp.where(continues, norm, 0)),
        )
        return basis, vector, scale, diagonal, off_diagonal

    return jax.lax.fori_loop(first, end, step, carry)


def spectral_measure(
    product: Product, size: int, *, key: PRNGKeyArray, probes: int = 16, order: int = 64, dtype: Any = jnp.float32
) -> SpectralMeasure:
    r"""Spectral measure of a matrix, by stochastic Lanczos quadrature.

    .. math:: \operatorname{tr}f(A) \approx \frac pP\sum_{z}\sum_j\omega_{zj}\,f(\theta_{zj})

    over P random sign vectors z and p parameters. The probes run in sequence, so that memory holds one. If ``product``
    is a callable module, other values of its arrays compile nothing again.

    Raises:
        InputError: ``probes`` or ``order`` is below 1.

    Source: [Ubaru17].
    """
    if probes < 1 or order < 1:
        raise expected("probes and order", "integers of at least 1", [probes, order])
    starts = jax.random.rademacher(key, (probes, size), dtype)
    order = min(order, size)
    progress.stage("density", probes * order, "products")
    carries = [
        progress.in_stretches(
            lambda carry, first, end: _advance(product, carry, jnp.asarray(first), jnp.asarray(end)),
            _begin(start, order),
            order,
            before=i * order,
        )
        for i, start in enumerate(starts)
    ]
    diagonal, off_diagonal = (np.array([carry[i] for carry in carries], np.float64) for i in (3, 4))
    return SpectralMeasure(size, diagonal, off_diagonal[:, :-1])


def extreme_eigenvalues(
    product: Product, size: int, count: int, *, key: PRNGKeyArray, dtype: Any = jnp.float32
) -> tuple[np.ndarray, np.ndarray]:
    """Largest and smallest eigenvalues, each from the extreme inwards.

    Implicitly restarted Lanczos iteration to the precision of the type. NaN stands for an eigenvalue that did not
    converge, for example among nearly equal ones; of equal eigenvalues some may be missed.

    Raises:
        InputError: ``count`` is not between 1 and the number of rows less 1.

    Source: [GolubMeurant10].
    """
    if not 1 <= count < size:
        raise expected("count", f"an integer from 1 to {size - 1}", count)
    jit_product = eqx.filter_jit(lambda v: product(v))
    kind: Any = np.dtype(dtype)
    factory: Any = LinearOperator
    progress.stage("extreme eigenvalues", None, "products")

    def times(v: np.ndarray) -> np.ndarray:
        progress.advance()
        return np.asarray(jit_product(jnp.asarray(v.ravel(), dtype)))

    operator = factory((size, size), matvec=times, dtype=kind)
    start = np.asarray(jax.random.normal(key, (size,), dtype))

    def eigenvalues_at(which: str) -> np.ndarray:
        try:
            values = np.asarray(eigsh(operator, count, which=which, v0=start, return_eigenvectors=False))  # pyright: ignore[reportCallIssue, reportArgumentType]
        except ArpackNoConvergence as error:
            values = np.asarray(error.eigenvalues)
        values = np.sort(values.astype(np.float64))[:: -1 if which == "LA" else 1]
        return np.concatenate([values, np.full(count - len(values), np.nan)])

    return eigenvalues_at("LA"), eigenvalues_at("SA")


@eqx.filter_jit(donate="all-except-first")
def _advance(product: Product, carry: Any, first: Array, end: Array) -> Any:
    return _steps(product, carry, first, end)
