"""The posterior mean over a pool against plain sums, and its errors against what is known of them."""

import math

import numpy as np
import pytest

from icllab.theory import dmmse
from icllab.theory.linear_attention import ridge_error

LAW = {"alpha": 10.0, "rho": 0.01}


@pytest.mark.parametrize("rho", [1e-3, 0.3, 5.0])
def test_the_posterior_mean_is_bayes_rule_summed_in_exact_fractions(rho):
    rng = np.random.default_rng(0)
    pool, x = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    y = x @ pool[2] + np.sqrt(rho) * rng.normal(size=5)
    logarithms = [-math.fsum((y[i] - x[i] @ w) ** 2 for i in range(5)) / (2 * rho) for w in pool]
    likelihood = [math.exp(value - max(logarithms)) for value in logarithms]
    expected = [
        math.fsum(p * w[c] for p, w in zip(likelihood, pool, strict=True)) / math.fsum(likelihood) for c in range(3)
    ]
    np.testing.assert_allclose(dmmse.posterior_mean(x, y, pool, rho), expected, rtol=1e-12)


def test_the_posterior_mean_without_noise_is_that_of_little_noise():
    rng = np.random.default_rng(1)
    pool, x = rng.normal(size=(9, 3)), rng.normal(size=(5, 3))
    y = rng.normal(size=5)
    nearest = pool[np.argmin(((y - pool @ x.T) ** 2).sum(1))]
    np.testing.assert_array_equal(dmmse.posterior_mean(x, y, pool, 0.0), nearest)
    np.testing.assert_allclose(dmmse.posterior_mean(x, y, pool, 1e-300), nearest, rtol=1e-15)
    np.testing.assert_allclose(dmmse.posterior_mean(x, y, pool, 1e12), pool.mean(0), rtol=1e-9)


def test_a_pool_of_one_task_is_known_without_a_context():
    """Fresh tasks are as far as two independent vectors: 2 + rho, with the spread of |w - w'|^2 / d."""
    dim, draws = 20, 400
    law = {"dim": dim, "alpha": 0.5, "kappa": 1 / dim, "rho": 0.3, "draws": draws}
    assert dmmse.idg_error(**law).mean == pytest.approx(0.3, rel=1e-15)
    fresh = dmmse.icl_error(**law)
    spread = math.sqrt(8 / dim / draws)
    assert abs(fresh.mean - 2.3) < 3 * spread
    assert abs(fresh.standard_error / spread - 1) < 0.2


def test_with_noise_far_above_the_signal_it_answers_with_the_mean_of_the_pool():
    """|w - mean|^2 / d is 1 + 1/k for a fresh task and 1 - 1/k for one of the pool."""
    law = {"dim": 30, "alpha": 1.0, "kappa": 0.2, "rho": 1e8, "draws": 200, "seed": 3}
    for error, excess in ((dmmse.icl_error(**law), 1 + 1 / 6), (dmmse.idg_error(**law), 1 - 1 / 6)):
        assert abs(error.mean - 1e8 - excess) < 3 * error.standard_error
        assert error.standard_error < 0.03


def test_many_tasks_in_few_dimensions_are_as_good_as_their_law():
    """Then it is the Bayes predictor of Gaussian tasks: ridge regression, whose error is known for d = 1 to 1e-3."""
    law = {"dim": 1, "alpha": 3.0, "kappa": 3000.0, "rho": 0.5, "draws": 1000}
    # In one dimension the posterior variance is rho / (rho + chi^2_3): integrated on a grid.
    s = (np.arange(400000) + 0.5) * 1e-4
    density = np.sqrt(s) * np.exp(-s / 2)
    exact = 0.5 + 0.5 * np.sum(density / (0.5 + s)) / np.sum(density)
    for error in (dmmse.icl_error(**law), dmmse.idg_error(**law)):
        assert abs(error.mean - exact) < 3 * error.standard_error + 1e-3
        assert error.standard_error < 0.03


def test_on_its_own_tasks_no_predictor_is_better_than_it():
    """Ridge regression in the limit of large d is above it, and a fresh task is worse for it than for ridge."""
    law = {"dim": 40, "alpha": 1.0, "kappa": 0.5, "rho": 0.3, "draws": 300}
    limit = ridge_error(alpha=1.0, rho=0.3)
    pool, fresh = dmmse.idg_error(**law), dmmse.icl_error(**law)
    assert pool.mean + 3 * pool.standard_error < limit - 0.05
    assert fresh.mean - 3 * fresh.standard_error > limit + 0.05


def test_the_gap_is_the_difference_of_the_two_on_the_same_pools():
    law = {"dim": 12, "alpha": 2.0, "kappa": 1.0, "rho": 0.5, "draws": 50, "seed": 9}
    gap, icl, idg = dmmse.task_gap(**law), dmmse.icl_error(**law), dmmse.idg_error(**law)
    assert gap.mean == pytest.approx(icl.mean - idg.mean, rel=1e-13)
    assert gap.standard_error < math.hypot(icl.standard_error, idg.standard_error) * 1.2


def test_draws_are_the_same_every_time_and_begin_those_of_more():
    law = {"dim": 5, "alpha": 2.0, "kappa": 1.0, "rho": 0.1}
    assert dmmse.icl_error(**law, draws=10) == dmmse.icl_error(**law, draws=10)
    assert dmmse.icl_error(**law, draws=10) != dmmse.icl_error(**law, draws=10, seed=1)
    few, more = dmmse._errors(5, 2.0, 1.0, 0.1, 4, 0), dmmse._errors(5, 2.0, 1.0, 0.1, 9, 0)
    np.testing.assert_array_equal(few, more[:4])


def test_on_pretraining_tasks_the_error_is_the_noise_once_contexts_are_long():
    error = dmmse.idg_error(dim=50, kappa=1.0, draws=20, **LAW)
    assert error.mean == pytest.approx(0.01, rel=1e-12)


def test_the_error_on_fresh_tasks_approaches_that_of_an_unrelated_one_slowly():
    r"""2 + rho - e is near sqrt(6 / (d (1 + 1/alpha))) times the mean maximum of k normals, a heuristic."""
    normals = np.random.default_rng(0).normal(size=(4000, 100)).max(1).mean()
    for dim, kappa in ((50, 2.0), (100, 1.0)):
        error = dmmse.icl_error(dim=dim, kappa=kappa, draws=300, **LAW)
        foretold = math.sqrt(6 / (dim * 1.1)) * normals
        assert error.standard_error < 0.02
        assert 0.75 < (2.01 - error.mean) / foretold < 1.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dim", "kappa", "recorded", "error"),
    [
        (50, 0.2, 1.5244, 0.0164),
        (50, 1.0, 1.3376, 0.0140),
        (50, 10.0, 1.1166, 0.0129),
        (100, 0.2, 1.5974, 0.0119),
        (100, 1.0, 1.4579, 0.0105),
        (100, 10.0, 1.3202, 0.0097),
        (200, 0.2, 1.6567, 0.0116),
        (200, 1.0, 1.5927, 0.0127),
        (200, 10.0, 1.4855, 0.0101),
    ],
)
def test_recorded_errors_on_fresh_tasks(dim, kappa, recorded, error):
    """Monte Carlo values with draws of their own."""
    again = dmmse.icl_error(dim=dim, kappa=kappa, draws=100, seed=1, **LAW)
    assert abs(again.mean - recorded) < 3 * math.hypot(again.standard_error, error)
