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


def test_it_solves_and_reports_the_residual_it_has():
    a, b = jnp.asarray(spd(30, 1e3)), jnp.arange(1.0, 31.0)
    solution = conjugate_gradient(lambda v: a @ v, b, tolerance=1e-12, iterations=200)
    assert bool(solution.converged)
    np.testing.assert_allclose(solution.value, np.linalg.solve(a, b), rtol=1e-8)
    relative = jnp.linalg.norm(b - a @ solution.value) / jnp.linalg.norm(b)
    np.testing.assert_allclose(solution.residual, relative, rtol=1e-2)


def test_in_exact_arithmetic_it_needs_as_many_steps_as_there_are_eigenvalues():
    vectors, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(40, 40)))
    a = jnp.asarray(vectors @ np.diag(np.repeat([1.0, 2.0, 5.0, 9.0], 10)) @ vectors.T)
    solution = conjugate_gradient(lambda v: a @ v, jnp.ones(40), tolerance=1e-12, iterations=200)
    assert int(solution.iterations) == 4


def test_the_inverse_as_preconditioner_needs_one_step_in_any_shape():
    a = jnp.asarray(spd(12, 1e4))
    inverse = jnp.linalg.inv(a)

    def apply(matrix):
        return lambda v: (matrix @ v.reshape(-1)).reshape(3, 4)

    solution = conjugate_gradient(
        apply(a), jnp.ones((3, 4)), preconditioner=apply(inverse), tolerance=1e-10, iterations=50
    )
    assert int(solution.iterations) == 1
    assert solution.value.shape == (3, 4)


def test_a_singular_consistent_system_gives_the_solution_of_least_norm():
    z = jnp.asarray(np.random.default_rng(2).normal(size=(10, 25)))
    y = jnp.arange(1.0, 11.0)
    solution = conjugate_gradient(lambda v: z.T @ (z @ v), z.T @ y, tolerance=1e-13, iterations=100)
    np.testing.assert_allclose(solution.value, np.linalg.lstsq(z, y)[0], rtol=1e-8)


def test_a_zero_right_side_needs_nothing():
    solution = conjugate_gradient(lambda v: v, jnp.zeros(4), tolerance=1e-8, iterations=9)
    assert (int(solution.iterations), float(solution.residual), bool(solution.converged)) == (0, 0.0, True)


def test_too_few_steps_are_reported_with_the_residual_they_left():
    a, b = jnp.asarray(spd(30, 1e3)), jnp.ones(30)
    solution = conjugate_gradient(lambda v: a @ v, b, tolerance=1e-12, iterations=3)
    assert (int(solution.iterations), bool(solution.converged)) == (3, False)
    relative = jnp.linalg.norm(b - a @ solution.value) / jnp.linalg.norm(b)
    np.testing.assert_allclose(solution.residual, relative, rtol=1e-12)


def test_a_rounded_operator_reaches_what_the_exact_one_defines():
    """Float32 products, float64 residuals: iterative refinement down to a tolerance float32 knows nothing of."""
    a = jnp.asarray(spd(60, 1e3))
    rounded = a.astype(jnp.float32)

    def cheap(v):
        return (rounded @ v.astype(jnp.float32)).astype(jnp.float64)

    b = jnp.ones(60)
    alone = conjugate_gradient(cheap, b, tolerance=1e-12, iterations=2000)
    refined = conjugate_gradient(cheap, b, exact=lambda v: a @ v, tolerance=1e-12, iterations=2000)
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
    solution = conjugate_gradient(operator, jnp.ones(5), tolerance=1e-8, iterations=100)
    assert not bool(solution.converged), why
    assert int(solution.iterations) == 1
    np.testing.assert_array_equal(solution.value, np.zeros(5))


def test_a_right_side_that_is_not_finite_does_not_converge():
    solution = conjugate_gradient(lambda v: v, jnp.array([1.0, jnp.nan]), tolerance=1e-8, iterations=100)
    assert not bool(solution.converged)


def test_an_inconsistent_system_gives_up_instead_of_running_to_the_limit():
    z = jnp.asarray(np.random.default_rng(3).normal(size=(20, 5)))
    solution = conjugate_gradient(lambda v: z @ (z.T @ v), jnp.arange(20.0), tolerance=1e-10, iterations=10**6)
    assert not bool(solution.converged)
    assert int(solution.iterations) < 10**4


@pytest.mark.parametrize("iterations", [5, pytest.param(40, marks=pytest.mark.slow), 10**6])
def test_a_singular_system_without_a_solution_ends_at_the_best_iterate(iterations):
    """The recursion diverges by orders of magnitude; what is returned is no worse than any step of it, or than zero."""
    a = jnp.asarray(spd(30, 1e6)).at[:, 0].set(0).at[0].set(0)  # b has a part that no x reaches

    def solve(steps):
        return conjugate_gradient(lambda v: a @ v, jnp.ones(30), tolerance=1e-12, iterations=steps)

    solution = solve(iterations)
    relative = jnp.linalg.norm(1 - a @ solution.value) / jnp.sqrt(30.0)
    np.testing.assert_allclose(solution.residual, relative, rtol=1e-10)
    assert not bool(solution.converged)
    earlier = [steps for steps in (1, 2, 3, 4, 8, 13, 19) if steps < iterations]
    residuals = [float(solve(steps).residual) for steps in earlier]
    assert residuals == sorted(residuals, reverse=True)
    assert float(relative) <= residuals[-1] <= 1


def test_jit_is_eager():
    a, b = jnp.asarray(spd(20, 1e2)), jnp.ones(20)

    def solve(b, tolerance):
        return conjugate_gradient(lambda v: a @ v, b, tolerance=tolerance, iterations=100)

    eager, jitted = solve(b, 1e-10), jax.jit(solve)(b, 1e-10)
    assert int(eager.iterations) == int(jitted.iterations)
    np.testing.assert_allclose(eager.value, jitted.value, rtol=1e-9)
