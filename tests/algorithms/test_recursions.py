"""Every prefix against a solve of its own, inputs of any rank included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms.recursions import least_squares_weights, ridge_weights


def one_solve_per_prefix(x, y, ridge):
    """numpy.linalg.lstsq on every prefix, a ridge as rows below it: accurate at any ridge."""
    dim = x.shape[1]
    below = np.sqrt(ridge) * np.eye(dim) if ridge else np.empty((0, dim))
    right = np.zeros(len(below))
    rows = [
        np.linalg.lstsq(np.vstack([x[:i], below]), np.append(y[:i], right), rcond=1e-11)[0] for i in range(1, len(y))
    ]
    return np.array([np.zeros(dim), *rows])


def off(found, exact):
    """The largest error of a prefix, relative to its solution."""
    sizes = np.linalg.norm(exact, axis=1)
    return np.max(np.linalg.norm(np.asarray(found) - exact, axis=1)[1:] / sizes[1:])


def examples(kind, dim=6, length=30):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(length, dim))
    if kind == "power law":
        x *= np.geomspace(1, 1e-3, dim)
    if kind == "repeated":
        x[1], x[3:5], x[9] = x[0], x[2], -2 * x[0]
    if kind == "few directions":
        x = x[:, :3] @ rng.normal(size=(3, dim))
    if kind == "some are zero":
        x[0], x[4], x[20] = 0, 0, 0
    if kind == "tiny":
        x *= 1e-9
    return x, x @ rng.normal(size=dim) + 0.3 * x[:, 0].std() * rng.normal(size=length)


KINDS = ["normal", "power law", "repeated", "few directions", "some are zero", "tiny"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_ridge_every_prefix_has_its_solution_of_least_norm(kind):
    x, y = examples(kind)
    exact = one_solve_per_prefix(x, y, 0.0)
    with jax.enable_x64(True):
        found = np.asarray(least_squares_weights(jnp.asarray(x), jnp.asarray(y)))
        by_limit = ridge_weights(jnp.asarray(x), jnp.asarray(y), jnp.asarray(0.0))
    exact[0] = found[0]  # nothing seen: zero below
    seen = np.linalg.norm(exact, axis=1) > 0
    assert off(found[seen], exact[seen]) < 1e-10
    np.testing.assert_array_equal(found[0], 0)
    np.testing.assert_array_equal(found[~seen], 0)
    np.testing.assert_array_equal(by_limit, found)


@pytest.mark.parametrize("ridge", [1e-6, 0.1, 10.0])
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_with_a_ridge_every_prefix_has_its_solution(kind, ridge):
    x, y = examples(kind)
    exact = one_solve_per_prefix(x, y, ridge)
    with jax.enable_x64(True):
        found = ridge_weights(jnp.asarray(x), jnp.asarray(y), jnp.asarray(ridge))
    if kind == "few directions":
        # Rounding of the inputs alone moves the weights across them by eps / ridge; what they answer is determined.
        found, exact = (np.sum(x * weights, axis=1)[:, None] for weights in (np.asarray(found), exact))
    seen = np.linalg.norm(exact, axis=1) > 0
    # Of equal inputs with unequal labels too: an exact solution tells that both algorithms are off by so much.
    rounding = 4 * np.finfo(float).eps / ridge if kind == "repeated" else 0.0
    assert off(np.asarray(found)[seen], exact[seen]) < max(1e-10, rounding)
    np.testing.assert_array_equal(np.asarray(found)[~seen], 0)


def test_a_large_problem_keeps_its_digits():
    """32 dimensions, 128 examples, condition number 1000: rounding does not add up."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(129, 32)) * np.geomspace(1, 1e-3, 32)
    y = x @ rng.normal(size=32) + 0.5 * rng.normal(size=129)
    with jax.enable_x64(True):
        assert off(least_squares_weights(jnp.asarray(x), jnp.asarray(y)), one_solve_per_prefix(x, y, 0.0)) < 1e-10
        found = ridge_weights(jnp.asarray(x), jnp.asarray(y), jnp.asarray(1e-6))
    assert off(found, one_solve_per_prefix(x, y, 1e-6)) < 1e-10


def test_in_single_precision_the_error_is_that_of_the_root_of_the_ridge():
    """About 1e-6 for ridges of the inputs' size, and eps / sqrt(ridge) below, as the docstring of Ridge says."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(65, 16))).astype(np.float32)
    y = (x @ rng.normal(size=16) + 0.5 * rng.normal(size=65)).astype(np.float32)
    for ridge, bound in ((0.25, 2e-5), (1e-6, 1e-2)):
        exact = one_solve_per_prefix(x.astype(float), y.astype(float), np.float64(np.float32(ridge)))
        assert off(ridge_weights(jnp.asarray(x), jnp.asarray(y), jnp.float32(ridge)), exact) < bound
    exact = one_solve_per_prefix(x.astype(float), y.astype(float), 0.0)
    assert off(least_squares_weights(jnp.asarray(x), jnp.asarray(y)), exact) < 2e-3


def test_the_ridge_can_be_swept_through_zero_and_differentiated(precision):
    x, y = (jnp.asarray(np.asarray(part, precision)) for part in examples("repeated"))
    ridges = np.asarray([0.0, 1e-3, 1.0], precision)

    def with_size(ridge):
        weights = ridge_weights(x, y, ridge)
        return jnp.sum(weights**2), weights

    slopes, swept = jax.jit(jax.vmap(jax.grad(with_size, has_aux=True)))(ridges)
    for ridge, row in zip(ridges, np.asarray(swept), strict=True):
        alone = ridge_weights(x, y, jnp.asarray(ridge))
        np.testing.assert_allclose(row, alone, rtol=1e-4 if precision == "float32" else 1e-11)
    assert np.isfinite(slopes).all()
    assert np.all(np.asarray(slopes)[1:] < 0)


def test_the_derivative_in_the_ridge_is_the_one_of_the_formula():
    r"""d w / d ridge = -(X'X + ridge)^{-1} w."""
    x, y = examples("normal")
    with jax.enable_x64(True):
        last = lambda ridge: ridge_weights(jnp.asarray(x), jnp.asarray(y), ridge)[-1]  # noqa: E731
        slope = jax.jit(jax.jacfwd(last))(jnp.asarray(0.3))
    inverse = np.linalg.inv(x[:-1].T @ x[:-1] + 0.3 * np.eye(6))
    np.testing.assert_allclose(slope, -inverse @ inverse @ x[:-1].T @ y[:-1], rtol=1e-10)
