"""Numbers of draws that are made up, where they are known."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from icllab.diagnostics.sampling.chain_statistics import difference, localization_slope, statistics
from icllab.diagnostics.sampling.chains import Chains

FAR = np.array([False, False, True, True])


def chains(terms, distance=None):
    terms = np.asarray(terms, np.float32)
    distance = np.ones(terms.shape[:2], np.float32) if distance is None else distance
    count = len(terms)
    return Chains(
        jnp.asarray(terms), jnp.asarray(distance), jnp.full(count, 0.8), jnp.asarray(0.1), jnp.zeros((count, 2))
    )


def test_chains_that_stay_apart_have_distances_that_say_so():
    """The loss may agree between chains whose distances from the point do not."""
    rng = np.random.default_rng(1)
    terms, together = rng.normal(size=(4, 400, 1)), rng.normal(size=(4, 400)) ** 2 + 5
    apart = statistics(chains(terms, np.float32(together + 4 * np.arange(4)[:, None])), np.ones(1), 10.0, FAR)
    near = statistics(chains(terms, np.float32(together)), np.ones(1), 10.0, FAR)
    assert apart["rhat"] == near["rhat"] < 1.02
    assert near["distance_rhat"] < 1.02 < 1.5 < apart["distance_rhat"]


def test_terms_sum_to_the_estimate():
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(4, 400, 3)) @ np.diag([1, 2, 3]) + np.array([1, 2, 3])
    found = statistics(chains(terms), np.array([0.5, 0.25, 0.25]), 10.0, FAR)
    name, estimates = found["term_estimate"]
    assert name == "term"
    np.testing.assert_allclose(estimates, 10 * terms.mean((0, 1)), rtol=1e-5)
    assert found["estimate"] == pytest.approx(estimates.sum(), rel=1e-6)
    # Of 1600 independent draws; how many they count for is itself an estimate, with an error of its own.
    np.testing.assert_allclose(found["term_mcse"][1], 10 * np.array([1, 2, 3]) / 40, rtol=0.2)
    _, covariance = found["term_covariance"]
    wanted = np.cov(10 * terms.reshape(-1, 3), rowvar=False, ddof=0)
    np.testing.assert_allclose(covariance, wanted, rtol=1e-4, atol=1e-3)
    # Of independent draws the error of an entry is the root of (c_ii c_jj + c_ij^2) / N, here from four chains.
    _, spread = found["term_covariance_mcse"]
    alone = np.sqrt((np.outer(np.diag(wanted), np.diag(wanted)) + wanted**2) / 1600)
    assert 0.2 < np.mean(spread / alone) < 2
    assert found["baseline"] == 1
    np.testing.assert_array_equal(found["term_baseline"][1], [0.5, 0.25, 0.25])
    _, trace = found["loss_trace"]
    np.testing.assert_allclose(trace, 1 + terms.sum(2), atol=1e-5)
    _, each = found["chain_estimate"]
    assert each.mean() == pytest.approx(found["estimate"], rel=1e-6)
    assert abs(found["start_gap"]) < 4 * found["start_gap_error"] < 40


def test_chains_that_ran_away_are_left_out():
    terms = np.random.default_rng(1).normal(size=(4, 100, 1))
    lost = terms.copy()
    lost[1, 50:] = np.inf
    found, rest = statistics(chains(lost), np.zeros(1), 1.0, FAR), terms[[0, 2, 3]]
    assert found["estimate"] == pytest.approx(rest.mean(), abs=1e-6)
    assert np.isnan(found["chain_estimate"][1]).tolist() == [False, True, False, False]
    assert found["least_loss"] == pytest.approx(rest.min(), abs=1e-6)
    none = statistics(chains(np.full((4, 100, 2), np.nan)), np.zeros(2), 1.0, FAR)
    assert all(math.isnan(none[name]) for name in ("estimate", "mcse", "start_gap", "drift_error", "least_loss"))
    assert np.isnan(none["term_covariance"][1]).all()


def test_a_difference_with_nothing_is_unknown():
    draws = np.random.default_rng(2).normal(size=(2, 50))
    assert all(math.isnan(one) for one in difference(draws[:0], draws))
    gap, error = difference(draws + 5, draws)
    assert gap == pytest.approx(5)
    assert 0.05 < error < 0.5


def test_a_drift_is_from_the_first_third_to_the_last():
    """Of 90 draws in a line, 60 of their steps."""
    terms = np.tile(0.5 * np.arange(90.0)[:, None], (4, 1, 1))
    assert statistics(chains(terms), np.zeros(1), 2.0, FAR)["drift"] == pytest.approx(60, rel=1e-6)


def test_a_drift_is_from_the_first_third_to_the_last_and_a_distance_the_root_of_a_mean_square():
    rng = np.random.default_rng(2)
    ramp = np.linspace(0, 3, 300) + 0.1 * rng.normal(size=(4, 300))
    squares = np.tile(np.array([1.0, 9.0], np.float32), (4, 150))
    found = statistics(chains(ramp[..., None], squares), np.zeros(1), 2.0, FAR)
    wanted = 2 * (ramp[:, 200:].mean() - ramp[:, :100].mean())
    assert found["drift"] == pytest.approx(wanted, rel=1e-5)
    assert found["distance"] == pytest.approx(5**0.5, rel=1e-6)
    assert found["acceptance"] == pytest.approx(0.8, rel=1e-6)


def test_the_slope_on_the_localization():
    """Of a quadratic, t h = 3 and gamma = 1 in 5 directions: -5/2 * 3/4 * 1/4, and its error is the scatter."""
    values, errors = [], []
    for seed in range(200):
        w = np.random.default_rng(seed).normal(size=(8, 250, 5)) / 2
        above, distance = 1.5 * (w**2).sum(2), (w**2).sum(2)
        value, error = localization_slope(above, distance / 2)
        values.append(value)
        errors.append(error)
    assert np.mean(values) == pytest.approx(-15 / 32, abs=4 * np.std(values) / 200**0.5 + 0.001)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(values), rel=0.2)
    terms = above[:, :, None].astype(np.float32)
    twice = statistics(chains(terms, distance.astype(np.float32)), np.zeros(1), 1.0, np.arange(8) > 3, 2.0)
    assert twice["localization_slope"] == pytest.approx(2 * value, rel=1e-3)
    assert twice["localization_slope_error"] == pytest.approx(2 * error, rel=1e-3)
