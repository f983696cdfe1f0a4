"""The best matrix for covariances that differ from prompt to prompt, against drawn covariances and drawn prompts."""

import numpy as np
import pytest

from icllab.theory import preconditioners
from icllab.theory.random_covariances import exponential, optimal

MEANS, LENGTH, NOISE = np.array([1.0, 0.5, 2.0]), 6, 0.3


def test_independent_exponentials_have_their_closed_form():
    for d, n, rho in ((1, 1, 0.0), (4, 7, 0.5), (10, 100, 2.0)):
        found = exponential(np.ones(d), length=n, noise_variance=rho)
        np.testing.assert_allclose(found.matrix, n / (3 * n + d + 5 + rho) * np.eye(d), rtol=1e-14)
        assert found.loss == pytest.approx(d * (n + d + 5 + rho) / (3 * n + d + 5 + rho), rel=1e-14)
    assert exponential(np.ones(3), length=10**12).loss == pytest.approx(1.0, rel=1e-11)  # d / 3, not 0


def test_constants_are_a_fixed_covariance():
    found, fixed = (
        optimal(MEANS, MEANS**2, MEANS**3, length=LENGTH, noise_variance=NOISE),
        preconditioners.optimal(MEANS, length=LENGTH, noise_variance=NOISE),
    )
    np.testing.assert_allclose(found.matrix, fixed.matrix, rtol=1e-13, atol=1e-15)
    assert found.loss == pytest.approx(fixed.loss, rel=1e-12)
    assert optimal(MEANS, MEANS**2, MEANS**3, length=10**12).loss < 1e-10


def test_it_is_the_mean_of_the_errors_of_drawn_covariances_and_the_least():
    """Each covariance has the error of a fixed one. Its eigenvalues are drawn, of gamma distributions."""
    rng = np.random.default_rng(0)
    shape = np.array([2.0, 1.0, 3.5])
    moments = shape, shape * (shape + 1), shape * (shape + 1) * (shape + 2)
    found = optimal(*moments, length=LENGTH, noise_variance=NOISE)
    drawn = rng.gamma(shape, size=(200_000, 3))
    excess = (drawn.sum(1) + NOISE)[:, None]
    label = ((LENGTH + 1) * drawn**2 + excess * drawn) / LENGTH  # diagonal of the covariance of the mean of labels x

    def errors(rates):
        return np.sum(drawn - 2 * rates * drawn**2 + rates**2 * drawn * label, axis=1)

    best = np.diag(found.matrix)
    values = errors(best)
    error = values.std() / np.sqrt(len(values))
    assert error < 0.005 * found.loss
    assert abs(values.mean() - found.loss) < 4 * error
    for i in range(3):
        for sign in (-1, 1):
            other = best + sign * 0.05 * best * (np.arange(3) == i)
            gained = errors(other) - values
            assert gained.mean() > 3 * gained.std() / np.sqrt(len(gained))


def test_least_squares_on_drawn_prompts_finds_the_matrix_and_the_error():
    """All entries of A are fitted; their errors are those of the sandwich, as residuals depend on the inputs."""
    rng = np.random.default_rng(1)
    prompts, means = 60_000, np.array([1.0, 0.6])
    eigenvalues = rng.exponential(means, size=(prompts, 2))
    x = rng.normal(size=(prompts, LENGTH + 1, 2)) * np.sqrt(eigenvalues)[:, None]
    w = rng.normal(size=(prompts, 2))
    y = np.einsum("pid,pd->pi", x, w) + np.sqrt(NOISE) * rng.normal(size=(prompts, LENGTH + 1))
    moment = np.mean(y[:, :-1, None] * x[:, :-1], axis=1)
    features = (x[:, -1, :, None] * moment[:, None]).reshape(prompts, 4)
    target = np.sum(x[:, -1] * w, axis=1)
    inverse = np.linalg.inv(features.T @ features)
    fitted = inverse @ features.T @ target
    residuals = target - features @ fitted
    scores = features * residuals[:, None]
    errors = np.sqrt(np.diag(inverse @ (scores.T @ scores) @ inverse))

    found = exponential(means, length=LENGTH, noise_variance=NOISE)
    assert errors.max() < 0.02
    np.testing.assert_array_less(abs(fitted - found.matrix.ravel()), 4 * errors)
    losses = (target - features @ found.matrix.ravel()) ** 2
    error = losses.std() / np.sqrt(prompts)
    assert error < 0.03 * found.loss
    assert abs(losses.mean() - found.loss) < 4 * error
