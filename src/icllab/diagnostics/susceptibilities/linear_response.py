r"""The response of a Gaussian posterior, from products with a curvature alone: of networks of any size."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_integer
from icllab.diagnostics.curvature.products import Curvature, Hessian
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.observables import function_of_vector
from icllab.diagnostics.stretches import map_in_stretches

UNSOLVED = 1e-3  # relative residual of a linear system
BESIDE = 0.1  # of the second term, over the most that the first can be
NIL = 1e-6  # of the first term, over the second: a gradient is zero
CUBIC = 1e-4  # of the third derivative of a quadratic loss, over its second: rounding


class Response(NamedTuple):
    """Covariances under the Gaussian posterior, [observable, other], with errors and warnings."""

    first: np.ndarray  # of gradients
    second: np.ndarray  # of second derivatives
    error: np.ndarray  # standard error over probes; zero where nothing is drawn
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class LinearResponse:
    r"""Covariances of a Gaussian posterior, matrix-free.

    .. math:: \operatorname{Cov}(\phi, \Delta) = g_\phi^\top\Sigma\,g_\Delta
              + \tfrac12\operatorname{tr}\bigl(H_\phi\Sigma H_\Delta\Sigma\bigr), \qquad
              \Sigma = \bigl(n\beta\,G + \gamma I\bigr)^{-1}

    with gradients and Hessians at the point, G a positive semidefinite curvature of the loss there. It is exact where
    the loss is quadratic around its minimum and :math:`\phi` and :math:`\Delta` are at most quadratic. The resolution
    is :math:`\rho = \gamma/n\beta`: along flatter directions the localization alone holds the posterior. What the loss
    has of third and higher order is left out, and may be all there is of a singular loss. Exact in the limit of strong
    localization are the first term where both gradients are not zero, and the second where both are. The second beside
    a first, and that of a pair of which one gradient is zero, lack terms of their own order. Of the former there is a
    warning, unless the loss is quadratic.

    Attributes:
        curvature: G as products with vectors, such as
            :class:`GaussNewton <icllab.diagnostics.curvature.products.GaussNewton>`, of the same parameters; None: the
            Hessian, of at most ``dense`` parameters.
        dense: Number of parameters up to which G is written out and everything is exact.
        probes: Number of random signs of the trace, above that.
        iterations: Number of products at most of each solve by conjugate gradients, above that.

    Raises:
        InputError: A number is out of its range, or the curvature is not positive semidefinite.

    Derived: docs/routing.md, Three routes.
    """

    curvature: Curvature | None = None
    dense: int = 300
    probes: int = 32
    iterations: int = 500

    def __post_init__(self) -> None:
        require_integer("dense", self.dense, least=0)
        require_integer("probes", self.probes, least=2)
        require_integer("iterations", self.iterations)

    def covariances(
        self, local: LocalLoss, observables: Any, tilts: Any, *, nbeta: float, key: PRNGKeyArray
    ) -> Response:
        """Covariances of every observable with every tilt, vectors of functions of the parameters."""
        flat, centre = local.loss, local.centre
        functions = (function_of_vector(observables, local), function_of_vector(tilts, local))
        is_dense = centre.size <= self.dense
        if self.curvature is None and not is_dense:
            raise expected("curvature", f"products above {self.dense} parameters", None, "GaussNewton(...) has them")
        curvature = Hessian(flat, centre) if self.curvature is None else self.curvature
        if curvature.centre.size != centre.size:
            raise expected("curvature", f"one of {centre.size} parameters", curvature.centre.size)
        scale = jnp.asarray(nbeta, centre.dtype), jnp.asarray(local.localization, centre.dtype)
        inverse: Any = self._inverse(curvature, centre, scale) if is_dense else None
        slope = jax.grad(lambda w: jnp.sum(flat(w)))(centre)
        gradients = _gradients(functions, centre)
        rows = jnp.concatenate([*gradients, nbeta * slope[None]])
        solutions, residual = _solve(curvature, inverse, scale, rows, self.iterations)
        count = len(gradients[0])
        first = gradients[0] @ solutions[count:-1].T
        vectors = jnp.eye(centre.size, dtype=centre.dtype)
        if not is_dense:
            vectors = jax.random.rademacher(key, (self.probes, centre.size), centre.dtype)
        parts, of_parts = _second(functions, curvature, inverse, scale, centre, vectors, self.iterations)
        parts, residual = np.asarray(parts, np.float64), max(float(residual), float(of_parts))
        second, error = parts.sum(0) / 2, np.zeros(parts.shape[1:])
        if not is_dense:
            second, error = parts.mean(0) / 2, parts.std(0, ddof=1) / math.sqrt(self.probes) / 2
        gain = float(nbeta * slope @ solutions[-1])
        doubtful = _doubtful(gradients, (solutions[:count], solutions[count:-1]), second)
        cubic = doubtful and float(_cubic(flat, centre, jax.random.fold_in(key, 1))) > CUBIC
        faults = {
            f"the second term of {doubtful} of {second.size} pairs is above a tenth of what the first can be, and the "
            "loss is not quadratic: first_order alone may be nearer, and chains would tell": bool(cubic),
            f"the point is no minimum: {gain:.2g} nats are gained along the gradient there": gain > 1,
            f"a solve is left with a residual of {residual:.1g}: allow more iterations": not residual < UNSOLVED,
        }
        return Response(np.asarray(first, np.float64), second, error, [s for s, wrong in faults.items() if wrong])

    @staticmethod
    def _inverse(curvature: Curvature, centre: Array, scale: tuple[Array, Array]) -> Array:
        """The covariance of the posterior, written out."""
        matrix = np.asarray(map_in_stretches(curvature, jnp.eye(centre.size, dtype=centre.dtype)), np.float64)
        values, vectors = np.linalg.eigh(
            float(scale[0]) * (matrix + matrix.T) / 2 + float(scale[1]) * np.eye(len(matrix))
        )
        if not values.min() > 0:
            least = (float(values.min()) - float(scale[1])) / float(scale[0])
            hint = "the point is no minimum; GaussNewton(...) has no negative curvature"
            raise expected("curvature", "eigenvalues above minus the resolution", least, hint)
        return jnp.asarray(vectors / values @ vectors.T, centre.dtype)


def _doubtful(gradients: tuple[Array, Array], solutions: tuple[Array, Array], second: np.ndarray) -> int:
    """Number of pairs with a second term beside a first, which the inequality of Cauchy and Schwarz bounds."""
    norms = [np.sqrt(np.maximum(np.sum(g * s, axis=1), 0)) for g, s in zip(gradients, solutions, strict=True)]
    bound = np.outer(*norms)
    return int(np.sum((np.abs(second) > BESIDE * bound) & (bound > NIL * np.abs(second))))


@eqx.filter_jit
def _cubic(flat: Any, centre: Array, key: PRNGKeyArray) -> Array:
    """The third derivative of a loss along a random direction, over the second: zero if it is quadratic."""
    z = jax.random.normal(key, centre.shape, centre.dtype)
    z = z / jnp.linalg.norm(z)

    def second_derivative(w: Array) -> Array:
        return jax.jvp(jax.grad(lambda v: jnp.sum(flat(v))), (w,), (z,))[1]

    second, third = jax.jvp(second_derivative, (centre,), (z,))
    return jnp.linalg.norm(third) / jnp.maximum(jnp.linalg.norm(second), jnp.finfo(z.dtype).tiny)


@eqx.filter_jit
def _gradients(functions: tuple[Any, Any], centre: Array) -> tuple[Array, Array]:
    return jax.jacrev(functions[0])(centre), jax.jacrev(functions[1])(centre)


def _solve(curvature: Any, inverse: Any, scale: Any, rows: Array, iterations: int) -> tuple[Array, Array]:
    """The covariance times every row, and the largest relative residual."""
    if inverse is not None:
        return _times_inverse(rows, inverse), jnp.zeros((), rows.dtype)
    solutions, residuals = map_in_stretches(eqx.Partial(_solve_row, curvature, scale, iterations), rows)
    return solutions, jnp.max(residuals)


@jax.jit
def _times_inverse(rows: Array, inverse: Array) -> Array:
    return rows @ inverse


def _solve_row(curvature: Any, scale: tuple[Array, Array], iterations: int, row: Array) -> tuple[Array, Array]:
    """The covariance times a row, and the relative residual."""
    nbeta, gamma = scale

    def times(v: Array) -> Array:
        return nbeta * curvature(v) + gamma * v

    tiny = jnp.finfo(row.dtype).tiny
    solution, _ = jax.scipy.sparse.linalg.cg(times, row, tol=1e-6, maxiter=iterations)
    return solution, jnp.linalg.norm(times(solution) - row) / jnp.maximum(jnp.linalg.norm(row), tiny)


def _second(
    functions: tuple[Any, Any], curvature: Any, inverse: Any, scale: Any, centre: Array, vectors: Array, iterations: int
) -> tuple[Float[Array, "vector observable tilt"], Array]:
    r""":math:`(H_\phi z)^\top\Sigma H_\Delta\Sigma z` of every vector z, and the largest relative residual."""
    of_vector = eqx.Partial(_second_of_vector, functions, curvature, inverse, scale, centre, iterations)
    parts, residuals = map_in_stretches(of_vector, vectors)
    return parts, jnp.max(residuals)


def _second_of_vector(
    functions: tuple[Any, Any], curvature: Any, inverse: Any, scale: Any, centre: Array, iterations: int, z: Array
) -> tuple[Array, Array]:
    """The term of one vector, and its relative residual."""

    def hessian_product(function: Any, v: Array) -> Array:
        return jax.jvp(jax.jacrev(function), (centre,), (v,))[1]

    def solve(rows: Array) -> tuple[Array, Array]:
        if inverse is not None:
            return rows @ inverse, jnp.zeros((), rows.dtype)
        solutions, residuals = jax.lax.map(eqx.Partial(_solve_row, curvature, scale, iterations), rows)
        return solutions, jnp.max(residuals)

    spread, residual = solve(z[None])
    image, of_images = solve(hessian_product(functions[1], spread[0]))
    return hessian_product(functions[0], z) @ image.T, jnp.maximum(residual, of_images)
