"""Errors of steps under rotated covariances: against simulated descent, exact finite sizes, limits and eigenvalues."""

import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.theory import descent
from icllab.theory.rotated_covariances import endless_steps, free_steps, loss, skew_curvature, tied_steps
from icllab.theory.sample_covariance import shares

INF = np.inf
SPECTRUM = np.array([2.0, 1.0, 0.5, 0.25])


def simulated(spectrum, tasks, rates, *, dim, alpha, noise, draws, rng, preconditioner=1.0):
    """Errors of descent on drawn contexts, exact over queries, one for each context."""
    repeats, length, errors = dim // len(spectrum), int(alpha * dim), []
    covariance, task_covariance = np.repeat(spectrum, repeats), np.repeat(tasks, repeats) / dim
    for _ in range(draws):
        turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
        x = rng.normal(size=(length, dim)) * np.sqrt(covariance) @ turn.T
        task = turn @ (np.sqrt(task_covariance) * rng.normal(size=dim))
        y = x @ task + np.sqrt(noise) * rng.normal(size=length)
        matrix = (turn * np.repeat(np.broadcast_to(preconditioner, len(spectrum)), repeats)) @ turn.T
        w = np.zeros(dim)
        for rate in rates:
            w = w - rate * matrix @ x.T @ (x @ w - y) / length
        errors.append(np.sum(covariance * (turn.T @ (task - w)) ** 2))
    return np.array(errors)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("tasks", [np.ones(4), np.array([0.2, 1.0, 3.0, 4.0])])
def test_the_error_is_that_of_simulated_descent_as_the_dimension_grows(tasks, noise):
    rates, rng = [0.7, 0.2, 1.1], np.random.default_rng(1)
    sizes = {32: 2500, 64: 900}
    means, squares = zip(
        *(
            (e.mean(), e.var() / len(e))
            for e in (
                simulated(SPECTRUM, tasks, rates, dim=d, alpha=1.5, noise=noise, draws=m, rng=rng)
                for d, m in sizes.items()
            )
        ),
        strict=True,
    )
    limit, error = 2 * means[1] - means[0], np.sqrt(4 * squares[1] + squares[0])
    exact = loss(rates, SPECTRUM, alpha=1.5, tasks=tasks, noise_variance=noise)
    assert error < 0.03 * exact
    assert abs(limit - exact) < 4 * error


def test_a_fixed_covariance_with_a_preconditioner_is_another_spectrum():
    rates, rng, matrix, tasks = [0.5, 0.3], np.random.default_rng(2), np.array([0.3, 0.9, 1.5, 3.0]), np.ones(4)
    errors = simulated(SPECTRUM, tasks, rates, dim=32, alpha=2.0, noise=0.3, draws=1000, rng=rng, preconditioner=matrix)
    exact = loss(rates, matrix * SPECTRUM, alpha=2.0, tasks=tasks / matrix, noise_variance=0.3)
    assert abs(errors.mean() - exact) < 4 * errors.std() / np.sqrt(len(errors)) + 0.04 * exact


@pytest.mark.parametrize(("steps", "exact"), [(free_steps, descent.free_steps), (tied_steps, descent.tied_steps)])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_isotropic_steps_are_the_limit_of_the_exact_ones_of_finite_dimension(steps, exact, layers):
    limit = steps([1.0], alpha=2.0, layers=layers)
    ratios = np.array([exact(dim=d, length=2 * d, layers=layers).loss / d / limit.loss - 1 for d in (200, 400)])
    assert np.all(ratios > 0)
    np.testing.assert_allclose(ratios[0] / ratios[1], 2, atol=0.06)
    np.testing.assert_allclose(exact(dim=400, length=800, layers=layers).rates, limit.rates, rtol=0.05)


def test_one_isotropic_step_and_the_marchenko_pastur_moments():
    for alpha in (0.5, 3.0):
        step = free_steps([1.0], alpha=alpha, layers=1)
        np.testing.assert_allclose((step.rates[0], step.loss), (alpha / (1 + alpha), 1 / (1 + alpha)), rtol=1e-14)
        noisy = free_steps([1.0], alpha=alpha, layers=1, noise_variance=0.7)
        np.testing.assert_allclose(noisy.rates, alpha / (alpha + 1.7), rtol=1e-14)
        u = 1 / alpha  # the moments 1, 1, 1 + u, 1 + 3u + u^2, 1 + 6u + 6u^2 + u^3
        h = [1, 1, 1 + u, 1 + 3 * u + u**2, 1 + 6 * u + 6 * u**2 + u**3]
        square = np.convolve([1, -1.1, 0.24], [1, -1.1, 0.24])
        np.testing.assert_allclose(loss([0.3, 0.8], [1.0], alpha=alpha), square @ h, rtol=1e-13)


@pytest.mark.parametrize("tasks", [np.ones(4), 1 / SPECTRUM])
def test_with_endless_contexts_it_is_a_polynomial_on_the_eigenvalues(tasks):
    rates = np.array([0.6, 1.4])
    left = np.prod(1 - rates[:, None] * SPECTRUM, axis=0)
    np.testing.assert_allclose(
        loss(rates, SPECTRUM, alpha=INF, tasks=tasks, noise_variance=9.0),
        np.mean(tasks * SPECTRUM * left**2),
        rtol=1e-13,
    )
    for layers in (1, 2, 3):
        root = np.sqrt(tasks * SPECTRUM / 4)
        powers = root[:, None] * SPECTRUM[:, None] ** np.arange(1, layers + 1)
        c, (least,), *_ = np.linalg.lstsq(powers, -root, rcond=None)
        best = free_steps(SPECTRUM, alpha=INF, layers=layers, tasks=tasks)
        np.testing.assert_allclose(best.loss, least, rtol=1e-9)
        np.testing.assert_allclose(np.poly(1 / best.rates) / np.prod(-1 / best.rates), [*c[::-1], 1], rtol=1e-7)


def test_as_many_layers_as_eigenvalues_leave_nothing_and_more_take_no_step():
    np.testing.assert_allclose(free_steps([2.0] * 3, alpha=INF, layers=1).rates, [0.5])
    for layers in (4, 6):
        steps = free_steps(SPECTRUM, alpha=INF, layers=layers)
        np.testing.assert_allclose(steps.rates, [4, 2, 1, 0.5, 0, 0][:layers], rtol=1e-9)
        assert steps.loss < 1e-20
    assert free_steps(SPECTRUM, alpha=INF, layers=3).loss > 1e-3
    assert tied_steps(SPECTRUM, alpha=INF, layers=4).loss > 1e-2


@pytest.mark.parametrize(
    "setting",
    [
        {"alpha": 2.0},
        {"alpha": 2.0, "tasks": 1 / SPECTRUM, "noise_variance": 0.5},
        {"alpha": 0.5, "tasks": 1 / SPECTRUM},  # the roots of the best polynomial are complex
    ],
)
def test_the_best_steps_are_minima(setting):
    for layers in (1, 4):
        free, tied = (steps(SPECTRUM, layers=layers, **setting) for steps in (free_steps, tied_steps))
        assert free.loss == loss(free.rates, SPECTRUM, **setting)
        assert np.all(np.diff(free.rates) <= 0)
        assert free.loss <= tied.loss * (1 + 1e-12)
        for direction in np.vstack([np.eye(layers), np.random.default_rng(0).normal(size=(5, layers))]):
            for size in (-0.02, 0.02):
                assert loss(free.rates + size * direction, SPECTRUM, **setting) > free.loss * (1 - 1e-12)
        grid = [loss(np.full(layers, a), SPECTRUM, **setting) for a in np.linspace(0.02, 2.0, 100)]
        assert tied.loss <= min(grid)
        np.testing.assert_allclose(tied.loss, min(grid), rtol=0.02)


def test_endless_steps_leave_what_short_contexts_do_not_span():
    np.testing.assert_allclose([endless_steps([1.0], alpha=a) for a in (0.3, 0.9, 1.0, 7.0)], [0.7, 0.1, 0, 0])
    values = np.array([free_steps([1.0, 0.5], alpha=0.3, layers=n).loss for n in (2, 4, 8)])
    limit = endless_steps([1.0, 0.5], alpha=0.3)
    assert np.all(np.diff(values) < 0)
    assert limit < values[-1] < 1.01 * limit
    # Tasks of covariance 1: a vanishing ridge leaves tr Lambda times the shrinkage.
    shrinkage = shares(SPECTRUM[::-1].copy(), np.float64(1e-9), np.float64(0.6)).shrinkage
    np.testing.assert_allclose(endless_steps(SPECTRUM, alpha=0.6), np.mean(SPECTRUM[::-1] * shrinkage), rtol=1e-6)

    rng, skewed, errors = np.random.default_rng(3), np.array([0.2, 1.0, 3.0, 4.0]), []
    covariance, tasks = np.repeat(SPECTRUM, 20), np.repeat(skewed, 20)
    for _ in range(25):
        span = np.linalg.qr(rng.normal(size=(48, 80)).T * np.sqrt(covariance)[:, None])[0]
        null = np.eye(80) - span @ span.T
        errors.append(np.mean(tasks * (null**2 @ covariance)))
    exact = endless_steps(SPECTRUM, alpha=0.6, tasks=skewed)
    assert abs(np.mean(errors) - exact) < 4 * np.std(errors) / 5 + 0.02 * exact


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_the_curvature_is_that_of_drawn_rotations(layers):
    rng, size, tasks = np.random.default_rng(4), 0.02, np.array([0.5, 1.0, 2.0, 4.0])
    rate = tied_steps(SPECTRUM, alpha=INF, layers=layers, tasks=tasks).rates[0]

    def error(matrix, covariance, of_tasks):
        left = np.linalg.matrix_power(np.eye(len(matrix)) - matrix @ covariance, layers)
        return np.sum(left * (covariance @ left @ of_tasks)) / len(matrix)

    def curvature(repeats):
        dim, values = 4 * repeats, []
        for _ in range(4800 // dim):
            turn, k = np.linalg.qr(rng.normal(size=(dim, dim)))[0], rng.normal(size=(dim, dim))
            k = (k - k.T) / np.sqrt(np.sum((k - k.T) ** 2) / dim)
            world = [(turn * np.repeat(v, repeats)) @ turn.T for v in (SPECTRUM, tasks)]
            ahead, at, back = (error(rate * np.eye(dim) + e * k, *world) for e in (size, 0.0, -size))
            values.append((ahead + back - 2 * at) / (2 * size**2))
        return np.mean(values), np.std(values) / np.sqrt(len(values))

    (small, e1), (large, e2) = curvature(4), curvature(8)
    exact = skew_curvature(SPECTRUM, layers=layers, tasks=tasks)
    assert abs(2 * large - small - exact) < 4 * np.hypot(2 * e2, e1) + 0.01


def test_one_matrix_is_better_off_skew_from_some_depth_on():
    """A whitened task on eigenvalues spread evenly in the logarithm: at two layers neither."""
    spectrum = 16.0 ** np.linspace(-0.5, 0.5, 32)
    values = [skew_curvature(spectrum, layers=layers, tasks=1 / spectrum) for layers in (1, 2, 3, 4, 8)]
    assert values[0] > 1
    assert abs(values[1]) < 1e-4
    assert max(values[2:]) < -0.05
    np.testing.assert_allclose(skew_curvature([3.0], layers=1, tasks=2.0), 54.0)


def test_units_cancel():
    one, other = (free_steps(c * SPECTRUM, alpha=1.5, layers=3, tasks=0.5) for c in (1.0, 8.0))
    np.testing.assert_allclose(8 * other.rates, one.rates, rtol=1e-9)
    np.testing.assert_allclose(other.loss, 8 * one.loss, rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: loss([[0.1]], SPECTRUM, alpha=1.0), "rates: expected a list of numbers"),
        (lambda: loss([0.1], [1.0, 0.0], alpha=1.0), "spectrum"),
        (lambda: loss([0.1], 1.0, alpha=1.0), "spectrum: expected a list of eigenvalues"),
        (lambda: free_steps(SPECTRUM, alpha=0.0, layers=1), "alpha"),
        (lambda: free_steps(SPECTRUM, alpha=1.0, layers=0), "layers"),
        (lambda: tied_steps(SPECTRUM, alpha=1.0, layers=1, noise_variance=-1.0), "noise_variance"),
        (lambda: tied_steps(SPECTRUM, alpha=1.0, layers=1, tasks=[1.0, 2.0]), "shapes that broadcast"),
        (lambda: endless_steps(SPECTRUM, alpha=1.0, tasks=-1.0), "tasks"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
