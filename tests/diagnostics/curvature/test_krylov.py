"""Matrices known by products: against their eigenvalues in float64, and in standard errors where probes are random."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics.curvature.krylov import extreme_eigenvalues, lanczos, spectral_measure


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def matrix(eigenvalues, seed=0):
    """A symmetric matrix with these eigenvalues, in a random basis."""
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(eigenvalues),) * 2))[0]
    return jnp.asarray(basis * np.asarray(eigenvalues, float) @ basis.T)


def test_the_tridiagonal_matrix_has_all_eigenvalues_after_as_many_products_as_rows():
    target = np.sort(np.random.default_rng(1).normal(size=30) ** 3)
    result = matrix(target)
    start = jax.random.normal(jax.random.key(0), (30,))
    diagonal, beside = lanczos(lambda v: result @ v, start, order=30)
    nodes = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    np.testing.assert_allclose(nodes, target, atol=1e-12)


def test_an_exhausted_space_leaves_no_weight_and_no_copies():
    """Three different eigenvalues, one of them 20 times: three products say all, and the rest weighs nothing."""
    result = matrix([5.0, 2.0, *[0.5] * 20])
    measure = spectral_measure(lambda v: result @ v, 22, key=jax.random.key(0), probes=4, order=12, dtype=jnp.float64)
    nodes, weights = measure.quadrature()
    near = np.abs(nodes[:, :, None] - np.array([5.0, 2.0, 0.5])).min(-1) < 1e-10
    assert np.all(weights[~near] < 1e-20)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-12)
    z = np.asarray(jax.random.rademacher(jax.random.key(0), (4, 22), jnp.float64))
    exact = np.einsum("pi,ij,pj->p", z, np.linalg.inv(np.asarray(result)), z)
    present = weights > 1e-20
    np.testing.assert_allclose(
        22 * np.sum(weights / np.where(present, nodes, 1), axis=1, where=present), exact, rtol=1e-10
    )


def test_quadrature_is_exact_for_polynomials_of_a_degree_below_twice_the_products():
    result = matrix(np.linspace(-1, 3, 25))
    measure = spectral_measure(lambda v: result @ v, 25, key=jax.random.key(3), probes=3, order=4, dtype=jnp.float64)
    z = np.asarray(jax.random.rademacher(jax.random.key(3), (3, 25), jnp.float64))
    nodes, weights = measure.quadrature()
    for degree in range(8):
        exact = np.einsum("pi,ij,pj->p", z, np.linalg.matrix_power(np.asarray(result), degree), z)
        np.testing.assert_allclose(25 * np.sum(weights * nodes**degree, axis=1), exact, rtol=1e-11)
    exact = np.einsum("pi,ij,pj->p", z, np.linalg.matrix_power(np.asarray(result), 8), z)
    assert np.all(np.abs(25 * np.sum(weights * nodes**8, axis=1) / exact - 1) > 1e-6)


def test_traces_of_functions_lie_within_their_errors():
    """Of a spectrum over four decades; errors are bounded, and so is what is left of the quadrature."""
    eigenvalues = np.geomspace(1e-3, 10, 120)
    result = matrix(eigenvalues)
    measure = spectral_measure(lambda v: result @ v, 120, key=jax.random.key(1), probes=64, order=60, dtype=jnp.float64)
    for function in (np.sqrt, lambda h: h / (h + 0.1), lambda h: (h > 0.1).astype(float)):
        value, error, gap = measure.trace_of(function)
        exact = float(np.sum(function(eigenvalues)))
        assert 0 < error < 0.02 * exact
        assert abs(value - exact) < 3 * error
        assert abs(gap) < 0.06 * exact
    rough = spectral_measure(lambda v: result @ v, 120, key=jax.random.key(1), probes=64, order=6, dtype=jnp.float64)
    value, error, gap = rough.trace_of(lambda h: h / (h + 1e-3))
    assert abs(gap) > 3 * error


def test_both_ends_of_a_spectrum(precision):
    eigenvalues = np.concatenate([[40.0, 20.0, 10.0], np.linspace(-1, 1, 90), [-5.0, -9.0]])
    result = matrix(eigenvalues)
    kind = jnp.dtype(precision)
    result = result.astype(kind)
    largest, smallest = extreme_eigenvalues(lambda v: result @ v, 95, 3, key=jax.random.key(0), dtype=kind)
    near = 1e-4 if precision == "float32" else 1e-10
    np.testing.assert_allclose(largest, [40, 20, 10], rtol=near)
    np.testing.assert_allclose(smallest, [-9, -5, -1], rtol=near)


def test_numbers_that_cannot_be_are_refused():
    with pytest.raises(InputError, match=r"^probes and order: expected integers of at least 1, got \[0, 4\]$"):
        spectral_measure(lambda v: v, 4, key=jax.random.key(0), probes=0, order=4)
    with pytest.raises(InputError, match=r"^count: expected an integer from 1 to 3, got 4$"):
        extreme_eigenvalues(lambda v: v, 4, 4, key=jax.random.key(0))
