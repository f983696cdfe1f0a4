"""Foretold condition numbers against measured ones, and the solver they lead to."""

import numpy as np
import pytest

from icllab.models.reduced.choice import choose, dual_condition, primal_condition, steps


def wishart(rows, spectrum, seed=0):
    """Eigenvalues of Z Z^T (descending) for Gaussian rows of the given covariance spectrum."""
    z = np.random.default_rng(seed).normal(size=(rows, len(spectrum))) * np.sqrt(spectrum)
    return np.linalg.svd(z, compute_uv=False) ** 2


@pytest.mark.parametrize("ratio", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_the_whitened_condition_number(ratio, shift):
    n = round(400 * ratio)
    spectrum = np.full(400, float(n))
    values = wishart(n, np.ones(400)) + shift
    assert primal_condition(spectrum, n, shift) == pytest.approx(values.max() / values.min(), rel=0.25)


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("shift", [0.0, 30.0])
@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_the_dual_condition_number(ratio, shift, decay):
    """For a flat spectrum and for one that decays like 1/k; iterations go with its root."""
    n, population = round(600 * ratio), np.arange(1.0, 601.0) ** -decay
    values = wishart(n, population) + shift
    assert dual_condition(n * population, n, shift) == pytest.approx(values.max() / values.min(), rel=0.35)


def test_square_matrices_have_a_finite_condition_number():
    for condition in (primal_condition, dual_condition):
        assert 1e4 < condition(np.full(300, 300.0), 300, 0.0) < 1e12


def pick(prompts, dim=40, ridge=0.0):
    one = np.full(dim, prompts / dim), np.full(dim + 1, float(prompts))
    return choose(*one, prompts=prompts, ridge=ridge, precision="float32", tolerance=1e-5)


def test_it_chooses_by_cost_and_says_what_it_weighed():
    parameters = 40 * 41
    assert pick(3 * parameters).solver == "primal_pcg"
    assert pick(1200, dim=60).solver == "dual_cg"
    assert pick(parameters).solver == "dual_cholesky"
    assert pick(parameters + 1).solver == "primal_cholesky"
    assert pick(100).solver == "dual_cholesky"
    reason = pick(1200, dim=60).reason
    assert reason.startswith("n = 1200, rank 3660: about ")
    assert "dual_cholesky (a factor of order 1200) would cost" in reason


def test_a_factor_that_would_not_fit_is_no_candidate():
    assert pick(300 * 301, dim=300).solver == "dual_cg"


def test_directions_no_prompt_has_do_not_count():
    """With inputs in half of the directions, n = 1000 is more than there are parameters to find."""
    query = np.where(np.arange(40) < 20, 25.0, 1e-14)
    choice = choose(query, np.full(41, 1000.0), prompts=1000, ridge=0.0, precision="float32", tolerance=1e-5)
    assert choice.solver.startswith("primal")
    assert "rank 820" in choice.reason


def test_features_that_are_all_zero_are_no_error():
    nothing = choose(np.zeros(3), np.zeros(4), prompts=5, ridge=0.0, precision="float32", tolerance=1e-5)
    assert nothing.solver == "primal_pcg"


def test_steps_follow_the_square_root_of_the_condition_number():
    assert steps(1e4, 2e-5) == pytest.approx(50 * np.log(1e5))
