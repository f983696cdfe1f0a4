"""The exact value against the reference's, and against chains that are run."""

import numpy as np
import pytest

from icllab.theory.quadratic_posterior import contributions, gaussian_coefficient


def test_ten_equal_directions():
    nbeta = 1e6 / np.log(1e6)
    found = [gaussian_coefficient(np.ones(10), nbeta=nbeta, localization=1, step_size=f / nbeta) for f in (0, 0.1, 1)]
    assert found == pytest.approx([5, 5.128, 6.667], abs=5e-4)


def test_without_a_pull_it_is_half_the_rank_at_every_temperature():
    for nbeta in (0.1, 10, 1e9):
        assert gaussian_coefficient([3.0, 1e-9, 0.0, 7.0], nbeta=nbeta) == pytest.approx(1.5, rel=1e-14)
    assert gaussian_coefficient([0.0, 0.0], nbeta=1.0) == 0


def test_chains_have_it():
    """Langevin dynamics itself, 20000 chains: within four standard errors, which are below half a per cent."""
    h, nbeta, gamma, step = np.array([2.0, 0.3, 0.01]), 5.0, 0.4, 0.11
    generator = np.random.default_rng(0)
    w = np.zeros((20_000, 3))
    for _ in range(300):
        w += -step / 2 * (nbeta * h + gamma) * w + np.sqrt(step) * generator.normal(size=w.shape)
    values = nbeta * (h * w**2).sum(axis=1) / 2
    error = values.std(ddof=1) / np.sqrt(len(values))
    exact = gaussian_coefficient(h, nbeta=nbeta, localization=gamma, step_size=step)
    assert error < 0.01 * exact
    assert abs(values.mean() - exact) < 4 * error
    assert abs(values.mean() - gaussian_coefficient(h, nbeta=nbeta, localization=gamma)) > 10 * error


def terms(count=3, size=4):
    """Hessians of which one is not positive, with a positive sum; gradients that sum to zero."""
    generator = np.random.default_rng(5)
    h = generator.normal(size=(count, size, size))
    h = h @ h.transpose(0, 2, 1)
    h[0] -= 3 * np.eye(size)
    h[1] += 4 * np.eye(size)
    g = generator.normal(size=(count, size))
    return h, g - g.mean(axis=0)


def test_they_sum_to_the_coefficient_of_the_whole_and_its_variance():
    h, g = terms()
    found = contributions(h, nbeta=50.0, localization=0.7, gradients=g)
    whole = np.linalg.eigvalsh(h.sum(axis=0))
    exact = gaussian_coefficient(whole, nbeta=50.0, localization=0.7)
    assert found.estimate.sum() == pytest.approx(exact, rel=1e-12)
    # The variance of a quadratic form: half the sum of the squared shares; gradients have cancelled.
    shares = 50 * whole / (50 * whole + 0.7)
    assert found.covariance.sum() == pytest.approx(np.sum(shares**2) / 2, rel=1e-10)
    np.testing.assert_allclose(found.covariance, found.covariance.T, rtol=1e-12)
    assert np.linalg.eigvalsh(found.covariance).min() > 0


def test_separate_directions_have_their_own_halves_and_are_independent():
    h = np.zeros((2, 5, 5))
    h[0, :2, :2], h[1, 2:, 2:] = 3 * np.eye(2), 0.2 * np.eye(3)
    found = contributions(h, nbeta=7.0)
    np.testing.assert_allclose(found.estimate, [1.0, 1.5], rtol=1e-14)
    np.testing.assert_allclose(found.covariance, np.diag([1.0, 1.5]), atol=1e-14)


def test_shared_directions_are_shared_by_curvature_and_a_term_may_be_negative():
    found = contributions([3 * np.eye(2), -np.eye(2)], nbeta=7.0)
    np.testing.assert_allclose(found.estimate, [1.5, -0.5], rtol=1e-14)
    np.testing.assert_allclose(found.covariance, [[2.25, -0.75], [-0.75, 0.25]], rtol=1e-13)


def test_draws_of_the_posterior_have_them():
    """Two hundred thousand draws: within five standard errors, which are below one per cent of the largest."""
    h, g = terms()
    nbeta, gamma = 20.0, 0.5
    generator = np.random.default_rng(1)
    spread = np.linalg.cholesky(np.linalg.inv(nbeta * h.sum(axis=0) + gamma * np.eye(4)))
    delta = generator.normal(size=(200_000, 4)) @ spread.T
    values = nbeta * (delta @ g.T + np.einsum("ni,tij,nj->nt", delta, h, delta) / 2)
    found = contributions(h, nbeta=nbeta, localization=gamma, gradients=g)
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    assert np.all(np.abs(values.mean(axis=0) - found.estimate) < 5 * error)
    centred = values - values.mean(axis=0)
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(values))
    assert np.all(np.abs(products.mean(axis=0) - found.covariance) < 5 * error)
    assert error.max() < 0.01 * found.covariance.max()
