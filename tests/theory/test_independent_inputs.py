"""One step on inputs that are not normal: the published number, the normal case, and drawn prompts."""

import numpy as np
import pytest

from icllab.theory import independent_inputs, preconditioners
from icllab.theory.independent_inputs import NORMAL, SIGNS, UNIFORM, loss, optimal

SIGMA = np.array([1.0, 0.4, 2.0])
TASKS = np.array([[1.0, 0.3, -0.2], [0.3, 0.5, 0.1], [-0.2, 0.1, 2.0]])
SOME = np.array([[0.5, 0.1, 0.0], [-0.2, 0.8, 0.1], [0.1, 0.0, 0.3]])
DRAWS = {
    UNIFORM: lambda rng, size: rng.uniform(-np.sqrt(3), np.sqrt(3), size),
    SIGNS: lambda rng, size: rng.choice([-1.0, 1.0], size),
}


def test_the_published_setting():
    """Inputs uniform on (-1/2, 1/2), ten dimensions and examples: half the loss is 0.2062 at the rate 6.06."""
    found = optimal(np.full(10, 1 / 12), kurtosis=UNIFORM, length=10)
    assert found.loss / 2 == pytest.approx(0.2062, abs=5e-5)
    np.testing.assert_allclose(found.matrix, 120 / 19.8 * np.eye(10), rtol=1e-12)


@pytest.mark.parametrize("kurtosis", [UNIFORM, SIGNS, 6.0])
def test_isotropic_inputs_in_closed_form(kurtosis):
    found = optimal(np.full(4, 0.3), kurtosis=kurtosis, length=7, noise_variance=0.2)
    below = 4 + kurtosis - 2 + 0.2 / 0.3
    np.testing.assert_allclose(found.matrix, 7 / (7 + below) / 0.3 * np.eye(4), rtol=1e-12, atol=1e-14)
    assert found.loss == pytest.approx(4 * 0.3 * below / (7 + below), rel=1e-12)


def test_normal_inputs_are_those_of_the_other_formula():
    how = {"length": 5, "task_covariance": TASKS, "noise_variance": 0.3}
    ours, theirs = optimal(SIGMA, kurtosis=NORMAL, **how), preconditioners.optimal(SIGMA, **how)
    np.testing.assert_allclose(ours.matrix, theirs.matrix, rtol=1e-10)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-12)
    wanted = preconditioners.loss(SOME, SIGMA, **how)
    assert loss(SOME, SIGMA, kurtosis=NORMAL, **how) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("kurtosis", list(DRAWS))
def test_drawn_prompts_have_this_error(kurtosis):
    """Of a matrix that is not symmetric, correlated tasks and noise: within four errors, below one per cent.

    The same with the normal formula is more than ten off.
    """
    rng, n, count = np.random.default_rng(0), 3, 200_000
    x = np.sqrt(SIGMA) * DRAWS[kurtosis](rng, (count, n + 1, 3))
    w = rng.multivariate_normal(np.zeros(3), TASKS, count)
    y = np.einsum("pid,pd->pi", x, w)
    seen = np.einsum("pi,pid->pd", y[:, :n] + rng.normal(scale=0.3**0.5, size=(count, n)), x[:, :n]) / n
    squares = (y[:, n] - np.einsum("pd,de,pe->p", x[:, n], SOME, seen)) ** 2
    error = squares.std() / count**0.5
    how = {"length": n, "task_covariance": TASKS, "noise_variance": 0.3}
    wanted = loss(SOME, SIGMA, kurtosis=kurtosis, **how)
    assert error < 0.01 * wanted
    assert abs(squares.mean() - wanted) < 4 * error
    assert abs(squares.mean() - loss(SOME, SIGMA, kurtosis=NORMAL, **how)) > 10 * error


def test_the_best_matrix_is_the_best():
    """Its error is that of ``loss``; of any other matrix it is more by a quadratic form."""
    how = {"kurtosis": UNIFORM, "length": 4, "task_covariance": TASKS, "noise_variance": 0.1}
    best, rng = optimal(SIGMA, **how), np.random.default_rng(1)
    assert loss(best.matrix, SIGMA, **how) == pytest.approx(best.loss, rel=1e-12)
    for _ in range(3):
        off = rng.normal(size=(3, 3))
        far, near = (loss(best.matrix + scale * off, SIGMA, **how) - best.loss for scale in (1.0, 0.1))
        assert far > 0
        assert near == pytest.approx(far / 100, rel=1e-9)


def test_the_kurtosis_of_uniform_numbers_and_signs():
    x = (np.arange(100_000) + 0.5) / 50_000 - 1
    assert np.mean(x**4) / np.mean(x**2) ** 2 == pytest.approx(independent_inputs.UNIFORM, rel=1e-8)
    assert SIGNS == 1
