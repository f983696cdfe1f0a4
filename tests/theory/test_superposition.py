"""The loss of the toy model against draws of it, its gradient against differences, and polygons that are critical."""

import numpy as np
import pytest

from icllab.theory import superposition

POLYGONS = [(4, 0), (4, 1), (4, 2), (5, 0), (5, 1), (6, 0)]


def model(seed=0, features=6):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, features)), 0.3 * rng.normal(size=features)


def test_the_loss_is_the_mean_over_draws():
    for seed in range(3):
        weights, bias = model(seed)
        rng = np.random.default_rng(10 + seed)
        x = np.zeros((200_000, 6))
        x[np.arange(len(x)), rng.integers(6, size=len(x))] = rng.random(len(x))
        each = np.sum((x - np.maximum(x @ (weights.T @ weights) + bias, 0)) ** 2, axis=1)
        error = each.std() / len(x) ** 0.5
        assert error < 0.01 * superposition.loss(weights, bias)
        assert abs(superposition.loss(weights, bias) - each.mean()) < 3.5 * error


def test_features_that_are_not_answered_lose_a_third_each():
    assert superposition.loss(np.zeros((2, 5)), np.full(5, -1.0)) == pytest.approx(1 / 3, abs=1e-15)
    # A constant c loses E(lambda - c)^2 of one in n and c^2 of the others.
    wanted = (1 / 3 - 0.1 + 0.01) + 4 * 0.01
    assert superposition.loss(np.zeros((2, 5)), np.full(5, 0.1)) == pytest.approx(wanted, abs=1e-15)


def test_the_gradient_is_that_of_the_loss():
    weights, bias = model(4)
    by_weights, by_bias = superposition.gradient(weights, bias)
    step = 1e-6
    for index in np.ndindex(weights.shape):
        away = np.zeros_like(weights)
        away[index] = step
        slope = (superposition.loss(weights + away, bias) - superposition.loss(weights - away, bias)) / (2 * step)
        assert abs(slope - by_weights[index]) < 1e-8
    for i in range(6):
        away = step * np.eye(6)[i]
        slope = (superposition.loss(weights, bias + away) - superposition.loss(weights, bias - away)) / (2 * step)
        assert abs(slope - by_bias[i]) < 1e-8


@pytest.mark.parametrize(("vertices", "positive"), POLYGONS)
def test_a_polygon_is_critical_and_least_among_its_neighbours(vertices, positive):
    found = superposition.polygon(vertices, positive=positive)
    by_weights, by_bias = superposition.gradient(found.weights, found.bias)
    assert max(np.abs(by_weights).max(), np.abs(by_bias).max()) < 1e-14
    rng = np.random.default_rng(vertices)
    for _ in range(50):
        near = (found.weights + 1e-3 * rng.normal(size=(2, 6)), found.bias + 1e-3 * rng.normal(size=6))
        assert superposition.loss(*near) > found.loss


def test_the_losses_of_squares_are_fractions_and_corners_lower_them():
    """Four features without a loss; a feature without a corner loses 1/18, or 1/18 - 1/144 with a constant."""
    squares = [superposition.polygon(4, positive=p).loss for p in (0, 1, 2)]
    np.testing.assert_allclose(squares, [1 / 9, 1 / 9 - 1 / 144, 1 / 9 - 2 / 144], atol=1e-15)
    order = [superposition.polygon(k, positive=p).loss for k, p in POLYGONS]
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize(("vertices", "positive"), [(5, 0), (5, 1), (6, 0)])
def test_of_five_and_six_corners_the_coefficient_is_half_the_rank_of_the_hessian(vertices, positive):
    """Their biases are off the kink, so that the loss is smooth there; by differences of the exact gradient."""
    found = superposition.polygon(vertices, positive=positive)
    start = np.concatenate([found.weights.ravel(), found.bias])

    def slope(w):
        return np.concatenate([part.ravel() for part in superposition.gradient(w[:12].reshape(2, 6), w[12:])])

    rows = [(slope(start + 1e-5 * e) - slope(start - 1e-5 * e)) / 2e-5 for e in np.eye(18)]
    eigenvalues = np.linalg.eigvalsh((np.array(rows) + np.array(rows).T) / 2)
    assert eigenvalues.min() > -1e-6
    assert np.sum(eigenvalues > 1e-4) / 2 == found.coefficient.value


def test_the_square_grows_like_a_quadratic_in_as_many_directions_as_its_coefficient_has():
    """At its kink there is no Hessian: K(s w) = s^2 K(w) to first order, and K > 0 off the circle and the idle bias."""
    for positive in (0, 1, 2):
        found = superposition.polygon(4, positive=positive)
        rng = np.random.default_rng(positive)
        away = rng.normal(size=18)
        size = [
            superposition.loss(found.weights + s * away[:12].reshape(2, 6), found.bias + s * away[12:]) - found.loss
            for s in (1e-3, 1e-4)
        ]
        assert abs(size[0] / size[1] - 100) < 2
        flat = np.zeros(18)
        flat[12 + 4 + positive :] = 1  # biases of what is not answered
        same = superposition.loss(found.weights, found.bias + 1e-2 * flat[12:])
        assert abs(same - found.loss) < 1e-15
        assert found.coefficient == ((18 - 1 - (2 - positive)) / 2, 1)
