r"""Conjugate gradients for :math:`\Gamma`; :mod:`~icllab.models.reduced.factors` has direct solvers.

With :math:`z_\mu = \mathrm{vec}(x_\mu h_\mu^\top)` the rows of :math:`Z`, all solve

.. math:: \Big(Z^\top Z + \frac{n}{d} \lambda I\Big)\, \mathrm{vec}\, \Gamma = Z^\top y

or its dual, :math:`\mathrm{vec}\,\Gamma = Z^\top a` with :math:`(Z Z^\top + \frac{n}{d} \lambda I)\, a = y`, which
finds the solution of least norm where there are many. Rows of :math:`Z` are products,
:math:`z_\mu^\top \mathrm{vec}\,\Gamma = x_\mu^\top \Gamma h_\mu`, so the conjugate gradients never form it. Every
vector and scalar is float64; ``dtype`` is that of the products of an iteration.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.core.linalg import IterativeSolution, conjugate_gradient
from icllab.models.reduced.choice import NEGLIGIBLE
from icllab.models.reduced.samples import Samples

_DOUBLE = jnp.dtype("float64")


class System(NamedTuple):
    r"""The right side :math:`\sum_\mu y_\mu x_\mu h_\mu^\top`, with :math:`X^\top X` and :math:`H^\top H`."""

    right: Float[Array, "dim feature"]
    query: Float[Array, "dim dim"]
    feature: Float[Array, "feature feature"]


class Whitening(eqx.Module):
    r"""The preconditioner :math:`\Gamma \mapsto U (U^\top \Gamma V \circ D) V^\top` with orthogonal ``U``, ``V``."""

    query: Float[Array, "dim dim"] = eqx.field(converter=jnp.asarray)
    feature: Float[Array, "feature feature"] = eqx.field(converter=jnp.asarray)
    inverse: Float[Array, "dim feature"] = eqx.field(converter=jnp.asarray)

    def __call__(self, gamma: Float[Array, "dim feature"]) -> Float[Array, "dim feature"]:
        """Apply the preconditioner."""
        return self.query @ ((self.query.T @ gamma @ self.feature) * self.inverse) @ self.feature.T


class Spectrum(NamedTuple):
    r"""Eigenvalues and eigenvectors of :math:`X^\top X` and of :math:`H^\top H`, on the host."""

    query: Float[np.ndarray, " dim"]
    query_vectors: Float[np.ndarray, "dim dim"]
    feature: Float[np.ndarray, " feature"]
    feature_vectors: Float[np.ndarray, "feature feature"]

    @classmethod
    def from_system(cls, system: System) -> "Spectrum":
        """Compute two eigendecompositions, in O(d^3)."""
        return cls(*np.linalg.eigh(np.asarray(system.query)), *np.linalg.eigh(np.asarray(system.feature)))

    def whitening(self, prompts: int, shift: float) -> Whitening:
        r"""The inverse of :math:`X^\top X \otimes H^\top H / n + s I`; directions absent from all prompts are left out.

        Without a ridge and with fewer prompts than directions it is the identity: there, whitening would lead to
        another of the many solutions than the one of least norm.
        """
        spectrum = self.query[:, None] * self.feature[None, :] / prompts
        present = spectrum > NEGLIGIBLE * np.max(spectrum)
        if shift == 0 and prompts < np.sum(present):
            return Whitening(np.eye(len(self.query)), np.eye(len(self.feature)), np.ones_like(spectrum))
        inverse = np.divide(1, spectrum + shift, out=np.zeros_like(spectrum), where=present | (shift > 0))
        return Whitening(self.query_vectors, self.feature_vectors, inverse)


@jax.jit
def system(samples: Samples) -> System:
    """The terms of size d(d+1) with which a solve starts, in one pass over the data."""

    def add(chunk: Array, total: System) -> System:
        x, h, y = (part[chunk].astype(_DOUBLE) for part in (samples.query, samples.features, samples.label))
        return System(total.right + x.T @ (y[:, None] * h), total.query + x.T @ x, total.feature + h.T @ h)

    d, f = samples.dim, samples.dim + 1
    start = System(jnp.zeros((d, f), _DOUBLE), jnp.zeros((d, d), _DOUBLE), jnp.zeros((f, f), _DOUBLE))
    return jax.lax.fori_loop(0, samples.used, add, start)


def _adjoint(samples: Samples, values: Float[Array, "chunk row"], dtype: np.dtype) -> Float[Array, "dim feature"]:
    r""":math:`Z^\top a = \sum_\mu a_\mu x_\mu h_\mu^\top`."""

    def add(chunk: Array, total: Array) -> Array:
        x, h, a = (part[chunk].astype(dtype) for part in (samples.query, samples.features, values))
        return total + (x.T @ (a[:, None] * h)).astype(_DOUBLE)

    return jax.lax.fori_loop(0, samples.used, add, jnp.zeros((samples.dim, samples.dim + 1), _DOUBLE))


def _forward(samples: Samples, gamma: Float[Array, "dim feature"], dtype: np.dtype) -> Float[Array, "chunk row"]:
    r""":math:`Z\,\mathrm{vec}\,\Gamma`; rows not in use are zero."""
    narrow = gamma.astype(dtype)

    def put(chunk: Array, values: Array) -> Array:
        x, h = (part[chunk].astype(dtype) for part in (samples.query, samples.features))
        return values.at[chunk].set(jnp.sum((x @ narrow) * h, axis=1).astype(_DOUBLE))

    return jax.lax.fori_loop(0, samples.used, put, jnp.zeros(samples.label.shape, _DOUBLE))


def _gram(samples: Samples, gamma: Float[Array, "dim feature"], dtype: np.dtype) -> Float[Array, "dim feature"]:
    r""":math:`Z^\top Z\,\mathrm{vec}\,\Gamma`, using each chunk twice while it is in the cache."""
    narrow = gamma.astype(dtype)

    def add(chunk: Array, total: Array) -> Array:
        x, h = (part[chunk].astype(dtype) for part in (samples.query, samples.features))
        values = jnp.sum((x @ narrow) * h, axis=1)
        return total + (x.T @ (values[:, None] * h)).astype(_DOUBLE)

    return jax.lax.fori_loop(0, samples.used, add, jnp.zeros(gamma.shape, _DOUBLE))


@functools.partial(jax.jit, static_argnames="dtype")
def primal_pcg(
    samples: Samples,
    right: Float[Array, "dim feature"],
    whitening: Whitening,
    shift: Array,
    tolerance: Array,
    iterations: Array,
    *,
    dtype: np.dtype,
) -> IterativeSolution:
    r"""Conjugate gradients on the normal equations, whitened by :math:`X^\top X \otimes H^\top H / n`.

    Whitening leaves the condition number of a Wishart matrix of n rows and d(d+1) columns, whatever the
    covariances are.

    Derived: docs/asymptotics.md, The preconditioner.
    """
    return conjugate_gradient(
        lambda gamma: _gram(samples, gamma, dtype) + shift * gamma,
        right,
        preconditioner=whitening,
        exact=lambda gamma: _gram(samples, gamma, _DOUBLE) + shift * gamma,
        tolerance=tolerance,
        iterations=iterations,
    )


@functools.partial(jax.jit, static_argnames="dtype")
def dual_cg(
    samples: Samples, shift: Array, tolerance: Array, iterations: Array, *, dtype: np.dtype
) -> IterativeSolution:
    """Conjugate gradients on the dual, which needs no preconditioner unless a direction occurs in several prompts."""

    def kernel(values: Array, dtype: np.dtype) -> Array:
        return _forward(samples, _adjoint(samples, values, dtype), dtype) + shift * values

    solution = conjugate_gradient(
        lambda values: kernel(values, dtype),
        samples.label.astype(_DOUBLE),
        exact=lambda values: kernel(values, _DOUBLE),
        tolerance=tolerance,
        iterations=iterations,
    )
    return solution._replace(value=_adjoint(samples, solution.value, _DOUBLE))
