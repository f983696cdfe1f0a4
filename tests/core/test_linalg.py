"""Conjugate gradients: exact where it can be, and honest where it cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.linalg import conjugate_gradient


def spd(size, condition, seed=0):
    """A symmetric positive definite matrix with eigenvalues between 1/condition and 1, and its eigenvectors."""
    vectors, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return vectors @ np.diag(np.geomspace(1 / condition, 1, size)) @ vectors.T


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@jax.jit
def solved(a, b, tolerance, iterations):
    return conjugate_gradient(lambda v: a @ v, b, tolerance=tolerance, iterations=iterations)


def relative_residual(a, b, solution):
    return np.linalg.norm(b - a @ np.asarray(solution.value)) / np.linalg.norm(b)


def test_it_solves_and_reports_the_residual_it_has():
    a, b = spd(30, 1e3), np.arange(1.0, 31.0)
    solution = solved(a, b, 1e-12, 200)
    assert bool(solution.converged)
    np.testing.assert_allclose(solution.value, np.linalg.solve(a, b), rtol=1e-8)
    np.testing.assert_allclose(solution.residual, relative_residual(a, b, solution), rtol=1e-2)


def test_in_exact_arithmetic_it_needs_as_many_steps_as_there_are_eigenvalues():
    vectors, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(30, 30)))
    a = vectors @ np.diag(np.repeat([1.0, 2.0, 5.0, 9.0], [7, 7, 8, 8])) @ vectors.T
    assert int(solved(a, np.ones(30), 1e-12, 200).iterations) == 4


def test_the_inverse_as_preconditioner_needs_one_step_in_any_shape():
    a = spd(12, 1e4)

    def apply(matrix):
        return lambda v: (matrix @ v.reshape(-1)).reshape(3, 4)

    @jax.jit
    def solve(b):
        inverse = apply(np.linalg.inv(a))
        return conjugate_gradient(apply(a), b, preconditioner=inverse, tolerance=1e-10, iterations=50)

    solution = solve(np.ones((3, 4)))
    assert int(solution.iterations) == 1
    assert solution.value.shape == (3, 4)


def test_a_singular_consistent_system_gives_the_solution_of_least_norm():
    z, y = np.random.default_rng(2).normal(size=(10, 30)), np.arange(1.0, 11.0)
    solution = solved(z.T @ z, z.T @ y, 1e-13, 100)
    np.testing.assert_allclose(solution.value, np.linalg.lstsq(z, y)[0], rtol=1e-8)


def test_a_zero_right_side_needs_nothing():
    solution = solved(np.eye(30), np.zeros(30), 1e-8, 9)
    assert (int(solution.iterations), float(solution.residual), bool(solution.converged)) == (0, 0.0, True)


def test_too_few_steps_are_reported_with_the_residual_they_left():
    a, b = spd(30, 1e3), np.ones(30)
    solution = solved(a, b, 1e-12, 3)
    assert (int(solution.iterations), bool(solution.converged)) == (3, False)
    np.testing.assert_allclose(solution.residual, relative_residual(a, b, solution), rtol=1e-12)


def test_a_rounded_operator_reaches_what_the_exact_one_defines():
    """Float32 products, float64 residuals: iterative refinement down to a tolerance float32 knows nothing of."""
    a, b = spd(60, 1e3), np.ones(60)
    rounded = a.astype(np.float32)

    def cheap(v):
        return (rounded @ v.astype(jnp.float32)).astype(jnp.float64)

    @jax.jit
    def solve(b):
        limits = {"tolerance": 1e-12, "iterations": 2000}
        return conjugate_gradient(cheap, b, **limits), conjugate_gradient(cheap, b, exact=lambda v: a @ v, **limits)

    alone, refined = solve(b)
    assert bool(refined.converged)
    exact = np.linalg.solve(a, b)
    assert np.linalg.norm(refined.value - exact) < 1e-9 * np.linalg.norm(exact)
    assert np.linalg.norm(alone.value - exact) > 1e-6 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        (lambda v: -v, "negative curvature"),
        (lambda v: jnp.zeros_like(v), "no curvature"),
        (lambda v: jnp.full_like(v, jnp.nan), "not a number"),
    ],
)
def test_a_breakdown_ends_at_the_last_sound_value_and_says_so(operator, why):
    solution = jax.jit(lambda b: conjugate_gradient(operator, b, tolerance=1e-8, iterations=100))(np.ones(5))
    assert not bool(solution.converged), why
    assert int(solution.iterations) == 1
    np.testing.assert_array_equal(solution.value, np.zeros(5))


def test_a_right_side_that_is_not_finite_does_not_converge():
    assert not bool(solved(np.eye(30), np.append(np.ones(29), np.nan), 1e-8, 100).converged)


def test_an_inconsistent_system_gives_up_instead_of_running_to_the_limit():
    z = np.random.default_rng(3).normal(size=(30, 5))
    solution = solved(z @ z.T, np.arange(30.0), 1e-10, 10**6)
    assert not bool(solution.converged)
    assert int(solution.iterations) < 10**4


@pytest.mark.parametrize("iterations", [5, pytest.param(40, marks=pytest.mark.slow), 10**6])
def test_a_singular_system_without_a_solution_ends_at_the_best_iterate(iterations):
    """The recursion diverges by orders of magnitude; what is returned is no worse than any step of it, or than zero."""
    a, b = spd(30, 1e6), np.ones(30)
    a[:, 0] = a[0] = 0  # b has a part that no x reaches
    solution = solved(a, b, 1e-12, iterations)
    relative = relative_residual(a, b, solution)
    np.testing.assert_allclose(solution.residual, relative, rtol=1e-10)
    assert not bool(solution.converged)
    earlier = [steps for steps in (1, 2, 3, 4, 8, 13, 19) if steps < iterations]
    residuals = [float(solved(a, b, 1e-12, steps).residual) for steps in earlier]
    assert residuals == sorted(residuals, reverse=True)
    assert relative <= residuals[-1] <= 1
    # The first steps are worse than zero; some later ones are better.
    assert iterations == 5 or relative < 0.8


def test_jit_is_eager():
    a, b = jnp.asarray(spd(20, 1e2)), jnp.ones(20)

    def solve(b, tolerance):
        return conjugate_gradient(lambda v: a @ v, b, tolerance=tolerance, iterations=100)

    eager, jitted = solve(b, 1e-10), jax.jit(solve)(b, 1e-10)
    assert int(eager.iterations) == int(jitted.iterations)
    np.testing.assert_allclose(eager.value, jitted.value, rtol=1e-9)
