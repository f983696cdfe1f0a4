"""Log odds of memorising: limits, crossings and scaling of each formula, and the loss gap as a squared distance."""

import numpy as np
import pytest
from refusals import assert_refused
from scipy.optimize import brentq

from icllab.theory import dmmse, strategy_odds

POSTERIOR = {"loss_gap": 0.2, "memorising_bits": 5000.0, "generalising_bits": 4000.0, "growth": 0.6, "beta": 0.5}
TASKS, STEPS = np.array([2.0, 8.0, 32.0])[:, None], np.array([10.0, 100.0, 1000.0])


def test_the_posterior_is_that_of_two_strategies_by_bayes():
    """From prior probabilities 2^-C and likelihoods exp(-n L) of each strategy, without their differences."""
    losses, bits, n = np.array([0.3, 0.5]), np.array([9.0, 4.0]), 17
    joint = 2.0**-bits * np.exp(-n * losses)
    values = {"memorising_bits": bits[0], "generalising_bits": bits[1], "growth": 1.0, "beta": 1.0, "gamma": 1.0}
    odds = strategy_odds.posterior(n, loss_gap=losses[1] - losses[0], **values)
    assert odds == pytest.approx(np.log(joint[0] / joint[1]), rel=1e-12)


def test_complexities_are_raised_to_their_power_before_they_are_subtracted():
    odds = strategy_odds.posterior(1e-12, **POSTERIOR, gamma=1.0)
    assert odds == pytest.approx(-np.log(2) * (np.sqrt(5000) - np.sqrt(4000)), rel=1e-6)


def test_evidence_grows_as_a_power_of_the_steps():
    def evidence(steps):
        return strategy_odds.posterior(steps, **POSTERIOR | {"generalising_bits": 5000.0}, gamma=2.0)

    assert evidence(800.0) / evidence(100.0) == pytest.approx(8**0.6, rel=1e-12)
    assert evidence(1.0) == pytest.approx(0.4, rel=1e-12)


def test_equal_strategies_are_even():
    assert strategy_odds.posterior(50, **POSTERIOR | {"loss_gap": 0.0, "memorising_bits": 4000.0}, gamma=1.0) == 0
    assert strategy_odds.free_energy(50, loss_gap=0, coefficient_gap=0, growth=1, gamma=1, weight=1) == 0


def test_a_pool_is_counted_number_by_number():
    assert strategy_odds.pool_bits(0, dim=4) == 4000
    np.testing.assert_allclose(np.diff(strategy_odds.pool_bits([1, 2, 3], dim=4, precision=16)), 64.0)


def test_free_energies_are_those_of_a_regular_model():
    r"""The evidence of a Gaussian mean in p dimensions, by its integral: its log has -(p/2) ln n, from lambda = p/2."""
    dims, sizes = np.array([1, 5]), np.array([1e3, 1e5])

    def log_evidence(p, n):  # of n samples whose mean is 0: prior N(0, 1), likelihood exp(-n w^2 / 2) in each dimension
        return -0.5 * p * np.log1p(n)

    integral = np.diff([[log_evidence(p, n) for n in sizes] for p in dims], axis=0)[0]
    odds = strategy_odds.free_energy(
        sizes, loss_gap=0.0, coefficient_gap=np.diff(dims / 2)[0], growth=1, gamma=1, weight=1
    )
    np.testing.assert_allclose(np.diff(odds), np.diff(integral), rtol=1e-3)


def test_the_boundary_is_even_on_the_power_law_and_has_its_width():
    odds = strategy_odds.boundary(TASKS, STEPS, scale=3.0, exponent=1.5, width=0.5)
    centre = strategy_odds.boundary(TASKS, 3.0 * TASKS**1.5, scale=3.0, exponent=1.5, width=0.5)
    np.testing.assert_allclose(centre, 0, atol=1e-12)
    np.testing.assert_allclose(np.diff(odds, axis=1), np.log(10) / 0.5)


def test_the_race_is_even_where_its_curves_cross():
    law = {"memorising": 5.0, "generalising": 40.0, "exponent": 0.8}

    def difference(n):  # of the two losses, by their definition
        return (5.0 * 16 / n) ** 0.8 - 0.03 - (40.0 / n) ** 0.8

    crossing = brentq(difference, 1.0, 1e6)
    assert strategy_odds.race(16, crossing, loss_gap=0.03, **law) == pytest.approx(0, abs=1e-9)
    early, late = strategy_odds.race(16, [1e-3, 1e9], loss_gap=0.03, **law)
    assert early == pytest.approx(0.8 * np.log(40 / 80), rel=1e-3)
    assert late == pytest.approx(np.log(0.03) - 0.8 * np.log(80 / 1e9), rel=1e-3)
    assert strategy_odds.race(16, 10, loss_gap=0.0, **law) == pytest.approx(0.8 * np.log(40 / 80))


def test_the_loss_gap_is_half_the_squared_distance_of_the_predictors_over_the_noise():
    """On the pool's tasks the posterior mean is orthogonal to every other predictor: Pythagoras, by Monte Carlo."""
    rng, rho, dim, length, draws = np.random.default_rng(0), 0.25, 2, 4, 4000
    pool = rng.normal(size=(3, dim))
    rows = np.empty((draws, 2))
    for row in rows:
        x, w, query = rng.normal(size=(length, dim)), pool[rng.integers(3)], rng.normal(size=dim)
        y = x @ w + np.sqrt(rho) * rng.normal(size=length)
        ridge = query @ np.linalg.solve(x.T @ x + rho * np.eye(dim), x.T @ y)
        posterior = query @ dmmse.posterior_mean(x, y, pool, rho)
        row[:] = (query @ w - ridge) ** 2 - (query @ w - posterior) ** 2, (ridge - posterior) ** 2
    gap = rows[:, 0] - rows[:, 1]
    assert abs(gap.mean()) < 3 * gap.std() / np.sqrt(draws)
    assert gap.std() / np.sqrt(draws) < 0.1 * rows[:, 1].mean()


def ask(name, **change):
    arguments = {
        "posterior": {"steps": 1, **POSTERIOR, "gamma": 1},
        "free_energy": {"steps": 1, "loss_gap": 0, "coefficient_gap": 1, "growth": 1, "gamma": 1, "weight": 1},
        "boundary": {"tasks": 1, "steps": 1, "scale": 1, "exponent": 1, "width": 1},
        "race": {"tasks": 1, "steps": 1, "loss_gap": 0, "memorising": 1, "generalising": 1, "exponent": 1},
        "pool_bits": {"tasks": 1, "dim": 1},
    }[name]
    return getattr(strategy_odds, name)(**arguments | change)


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("posterior", "steps", 0),
        ("posterior", "beta", 0),
        ("posterior", "gamma", -1),
        ("posterior", "memorising_bits", -1),
        ("posterior", "loss_gap", np.inf),
        ("free_energy", "weight", 0),
        ("free_energy", "coefficient_gap", np.nan),
        ("boundary", "width", 0),
        ("boundary", "tasks", 0),
        ("race", "loss_gap", -0.1),
        ("race", "exponent", 0),
        ("pool_bits", "dim", 0),
        ("pool_bits", "precision", 1.5),
    ],
)
def test_arguments_outside_their_domain_are_refused_by_name(name, parameter, value):
    assert_refused(lambda: ask(name, **{parameter: value}), parameter)
