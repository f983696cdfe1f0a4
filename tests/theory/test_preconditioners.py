"""The best matrix against the formula with an inverse, special cases, drawn prompts and everything near it."""

import numpy as np
import pytest

from icllab.theory import descent
from icllab.theory.preconditioners import family, identity_distance, loss, optimal


def covariance(seed, dim=4):
    x = np.random.default_rng(seed).normal(size=(dim, 2 * dim))
    return x @ x.T / dim


CASES = [
    (np.ones(5), 20, None, 0.0),
    (np.array([1.0, 0.5, 2.0, 0.1]), 7, None, 0.0),
    (covariance(0), 9, covariance(1), 0.0),
    (covariance(2), 3, covariance(3), 0.7),
    (covariance(4), 30, None, 0.25),
]


def second_moment(sigma, n, tasks, noise):
    return (n + 1) / n * sigma @ tasks @ sigma + (np.trace(sigma @ tasks) + noise) / n * sigma


@pytest.mark.parametrize(("sigma", "n", "tasks", "noise"), CASES)
def test_the_best_matrix_is_the_formula_with_an_inverse(sigma, n, tasks, noise):
    found = optimal(sigma, length=n, task_covariance=tasks, noise_variance=noise)
    sigma = np.diag(sigma) if sigma.ndim == 1 else sigma
    tasks = np.eye(len(sigma)) if tasks is None else tasks
    inverse = np.linalg.inv(second_moment(sigma, n, tasks, noise))
    np.testing.assert_allclose(found.matrix, tasks @ sigma @ inverse, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(found.matrix, found.matrix.T, rtol=1e-12, atol=1e-13)
    wanted = np.trace(sigma @ tasks) - np.trace(sigma @ tasks @ sigma @ inverse @ sigma @ tasks)
    np.testing.assert_allclose(found.loss, wanted, rtol=1e-11)


@pytest.mark.parametrize(("sigma", "n", "tasks", "noise"), CASES)
def test_the_error_of_any_matrix_is_the_formula_and_least_at_the_best(sigma, n, tasks, noise):
    at = {"length": n, "task_covariance": tasks, "noise_variance": noise}
    best = optimal(sigma, **at)
    full = np.diag(sigma) if sigma.ndim == 1 else sigma
    w = np.eye(len(full)) if tasks is None else tasks
    m = second_moment(full, n, w, noise)
    rng = np.random.default_rng(5)
    for scale in (1e-3, 1.0):
        a = best.matrix + scale * rng.normal(size=best.matrix.shape)
        wanted = np.trace(full @ w) - 2 * np.trace(full @ a @ full @ w) + np.trace(full @ a @ m @ a.T)
        np.testing.assert_allclose(loss(a, sigma, **at), wanted, rtol=1e-11)
        assert loss(a, sigma, **at) > best.loss
    np.testing.assert_allclose(loss(best.matrix, sigma, **at), best.loss, rtol=1e-12)


@pytest.mark.parametrize(("d", "n"), [(5, 20), (10, 20), (10, 10), (3, 1)])
def test_special_cases_have_their_closed_forms(d, n):
    one = optimal(np.ones(d), length=n)
    np.testing.assert_allclose(one.matrix, n / (n + d + 1) * np.eye(d), rtol=1e-12)
    np.testing.assert_allclose(one.loss, d * (d + 1) / (n + d + 1), rtol=1e-12)
    np.testing.assert_allclose(descent.free_steps(dim=d, length=n, layers=1).loss, one.loss, rtol=1e-12)
    lam = np.geomspace(0.2, 3, d)
    known = optimal(lam, length=n)
    np.testing.assert_allclose(np.diag(known.matrix), 1 / ((n + 1) / n * lam + lam.sum() / n), rtol=1e-12)
    np.testing.assert_allclose(known.loss, np.sum(lam * (lam + lam.sum()) / ((n + 1) * lam + lam.sum())), rtol=1e-12)
    matched = optimal(lam, length=n, task_covariance=1 / lam)
    np.testing.assert_allclose(matched.matrix, n / (n + d + 1) * np.diag(1 / lam), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(matched.loss, one.loss, rtol=1e-12)


def test_what_is_never_seen_is_left_alone():
    """Singular covariances: the rest is the problem without those directions."""
    found = optimal([1.0, 0.0, 2.0], length=5)
    rest = optimal([1.0, 2.0], length=5)
    np.testing.assert_allclose(found.matrix[np.ix_([0, 2], [0, 2])], rest.matrix, rtol=1e-12)
    assert np.all(found.matrix[1] == 0)
    np.testing.assert_allclose(found.loss, rest.loss, rtol=1e-12)
    tasks = optimal([1.0, 1.0], length=5, task_covariance=[1.0, 0.0], noise_variance=0.1)
    wanted = 1 / (6 / 5 + 1.1 / 5)
    np.testing.assert_allclose(tasks.matrix, np.diag([wanted, 0.0]), rtol=1e-12, atol=1e-15)
    assert optimal([1.0], length=2, task_covariance=[0.0]).loss == 0


def test_drawn_prompts_have_this_error():
    """Non-symmetric A, both covariances full, noise: 4 standard errors, the standard error below 1 %."""
    d, n, draws, noise = 4, 6, 60000, 0.3
    sigma, tasks = covariance(6), covariance(7)
    rng = np.random.default_rng(8)
    a = 0.4 * rng.normal(size=(d, d)) + optimal(sigma, length=n, task_covariance=tasks).matrix
    x = rng.normal(size=(draws, n + 1, d)) @ np.linalg.cholesky(sigma).T
    w = rng.normal(size=(draws, d)) @ np.linalg.cholesky(tasks).T
    clean = np.einsum("pnd,pd->pn", x, w)
    y = clean[:, :n] + noise**0.5 * rng.normal(size=(draws, n))
    answer = np.einsum("pd,de,pne,pn->p", x[:, n], a, x[:, :n], y, optimize=True) / n
    squares = (clean[:, n] - answer) ** 2
    error = squares.std() / draws**0.5
    wanted = loss(a, sigma, length=n, task_covariance=tasks, noise_variance=noise)
    assert error < 0.03 * wanted
    assert abs(squares.mean() - wanted) < 4 * error


def test_the_families_are_at_no_distance_and_others_are():
    sigma = covariance(9)
    a, b = family(sigma, [0.3, 0.7], [0.1, 0.2])
    np.testing.assert_allclose(a @ sigma, np.array([0.3, 0.7])[:, None, None] * np.eye(4), atol=1e-12)
    np.testing.assert_allclose(identity_distance(a, sigma), 0, atol=1e-12)
    np.testing.assert_array_equal(identity_distance(b), 0)
    assert np.all(family(sigma, [0.3])[1] == 0)
    # What has no trace is as far as can be; diag(1, 2) is at 1/2 of its spread over its size.
    np.testing.assert_allclose(identity_distance(np.diag([1.0, -1.0])), 1)
    np.testing.assert_allclose(identity_distance(np.diag([1.0, 2.0])), np.sqrt(0.5 / 5))
    assert identity_distance(np.eye(4), sigma) > 0.1
