"""Survival functions against a known data set, against SciPy, and by simulation of their intervals."""

import numpy as np
import pytest
import xarray as xr
from scipy.stats import CensoredData, ecdf, logrank

from icllab.core.errors import InputError
from icllab.diagnostics import delay, kaplan_meier

# Weeks of remission in acute leukaemia (Freireich et al. 1963), the usual example; censored under treatment only.
TREATED = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
RELAPSED = [True] * 9 + [False] * 12
PLACEBO = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]


def group(times, observed=None):
    observed = np.ones(len(times), bool) if observed is None else observed
    return xr.Dataset(
        {"observed_time": ("member", np.asarray(times, float)), "crossed": ("member", np.asarray(observed))}
    )


def test_the_known_example():
    result = kaplan_meier(np.array(TREATED), np.array(RELAPSED))
    events = result.sel(time=[6, 7, 10, 13, 16, 22, 23])
    np.testing.assert_allclose(events["survival"], [0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448], atol=5e-4)
    np.testing.assert_array_equal(events["at_risk"], [21, 17, 15, 12, 11, 7, 6])
    assert result["median_time"] == 23
    assert (result.attrs["members"], result.attrs["events"], result.attrs["until"]) == (21, 9, 35.0)
    assert kaplan_meier(np.array(PLACEBO), np.ones(21, bool))["median_time"] == 8
    comparison = delay(group(PLACEBO), group(TREATED, RELAPSED))
    np.testing.assert_allclose(comparison["log_rank"] ** 2, 16.79, atol=5e-3)
    assert comparison["log_rank"] < 0  # later
    assert comparison["exact_p_value"] < 1e-3


def test_estimate_and_interval_are_those_of_scipy():
    result = kaplan_meier(np.array(TREATED), np.array(RELAPSED))
    theirs = ecdf(CensoredData.right_censored(TREATED, ~np.array(RELAPSED))).sf
    np.testing.assert_allclose(result["survival"], theirs.probabilities, rtol=1e-14)
    limits = theirs.confidence_interval(method="log-log")
    for end, side in (("low", limits.low), ("high", limits.high)):
        np.testing.assert_allclose(result["survival_interval"].sel(bound=end), side.probabilities, rtol=1e-12)


def test_the_median_has_the_times_whose_interval_has_a_half():
    result = kaplan_meier(np.array(TREATED), np.array(RELAPSED))
    low, high = result["median_time_interval"].values
    limits = result["survival_interval"]
    inside = (limits.sel(bound="low") <= 0.5) & (limits.sel(bound="high") >= 0.5)
    assert low == result["time"].values[inside.values][0] == 13
    assert np.isinf(high)
    assert inside.values[-1]


def test_without_censoring_the_restricted_mean_is_the_mean():
    times = np.array([3.0, 5.0, 4.0, 9.0, 7.0, 1.0])
    result = kaplan_meier(times, np.ones(6, bool))
    np.testing.assert_allclose(result["restricted_mean"], times.mean(), rtol=1e-14)
    np.testing.assert_allclose(result["restricted_mean_error"], times.std(ddof=1) / np.sqrt(6), rtol=1e-12)
    cut = kaplan_meier(times, np.ones(6, bool), until=4.5)
    np.testing.assert_allclose(cut["restricted_mean"], np.minimum(times, 4.5).mean(), rtol=1e-14)


def test_where_greenwood_says_nothing_the_interval_is_binomial():
    nobody = kaplan_meier(np.full(6, 100.0), np.zeros(6, bool))
    np.testing.assert_allclose(nobody["survival_interval"], [[0.025 ** (1 / 6), 1.0]])
    assert np.isinf(nobody["median_time"])
    assert np.isnan(nobody["restricted_mean_error"])
    assert nobody["restricted_mean"] == 100
    everybody = kaplan_meier(np.arange(1.0, 9.0), np.ones(8, bool))
    np.testing.assert_allclose(everybody["survival_interval"][-1], [0, 1 - 0.025 ** (1 / 8)])
    assert everybody["median_time"] == 4
    assert np.isfinite(everybody["median_time_interval"]).all()


def test_a_censored_member_is_not_a_late_one():
    """Censored at a time it says less than an event there, and more than being left out."""
    times, positions = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, True, False])
    left_out = kaplan_meier(times[:3], positions[:3], until=3.0)
    indices = kaplan_meier(times, positions, until=3.0)
    assert indices["restricted_mean"] > left_out["restricted_mean"]
    assert indices["survival"].values[-1] == 0.25


@pytest.mark.slow
def test_the_intervals_cover():
    """Exponential times, a third censored: the interval of S at a fixed time has it in 95 % of 2000 samples."""
    rng, inside = np.random.default_rng(0), []
    for _ in range(2000):
        times, stops = rng.exponential(1.0, 25), rng.exponential(2.0, 25)
        result = kaplan_meier(np.minimum(times, stops), times <= stops)
        at = int(np.searchsorted(result["time"].values, 0.7, side="right")) - 1
        low, high = result["survival_interval"].values[at] if at >= 0 else (0.0, 1.0)
        inside.append(low <= np.exp(-0.7) <= high)
    assert abs(np.mean(inside) - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 2000)


def test_the_log_rank_statistic_is_that_of_scipy():
    rng = np.random.default_rng(1)
    times, positions = rng.exponential(1, (2, 8)), rng.random((2, 8)) < 0.7
    result = delay(group(times[0], positions[0]), group(times[1], positions[1]))
    samples = [CensoredData.right_censored(t, ~s) for t, s in zip(times, positions, strict=True)]
    theirs = logrank(samples[1], samples[0])
    np.testing.assert_allclose([result["log_rank"], result["p_value"]], [theirs.statistic, theirs.pvalue], rtol=1e-12)
    mirrored = delay(group(times[1], positions[1]), group(times[0], positions[0]))
    np.testing.assert_allclose(mirrored["log_rank"], -result["log_rank"], rtol=1e-12)
    np.testing.assert_allclose(mirrored["exact_p_value"], result["exact_p_value"], rtol=1e-12)
    np.testing.assert_allclose(mirrored["log_ratio"], -result["log_ratio"], rtol=1e-12)


def test_a_difference_is_that_of_the_second_to_the_first():
    """Without censoring, restricted means are means; the ratio and the difference have the sign of the delay."""
    rng = np.random.default_rng(3)
    first, second = rng.uniform(1, 5, 7), rng.uniform(6, 9, 9)
    until = float(second.max())
    result = delay(group(np.append(first, until)), group(np.append(second, until)))
    a, b = np.append(first, until), np.append(second, until)
    errors = [times.std(ddof=1) / np.sqrt(len(times)) for times in (a, b)]
    np.testing.assert_allclose(result["restricted_difference"], b.mean() - a.mean(), rtol=1e-12)
    np.testing.assert_allclose(result["restricted_difference_error"], np.hypot(*errors), rtol=1e-12)
    np.testing.assert_allclose(result["log_ratio"], np.log(b.mean() / a.mean()), rtol=1e-12)
    relative = np.hypot(errors[0] / a.mean(), errors[1] / b.mean())
    np.testing.assert_allclose(result["log_ratio_error"], relative, rtol=1e-12)


def test_the_exact_p_value_counts_divisions():
    """Groups of three that do not overlap: of twenty divisions two are as far apart."""
    result = delay(group([1, 2, 3]), group([4, 5, 6]))
    np.testing.assert_allclose(result["exact_p_value"], 2 / 20)
    equal = delay(group([1, 2, 3]), group([1, 2, 3]))
    np.testing.assert_allclose([equal["exact_p_value"], equal["log_ratio"]], [1.0, 0.0], atol=1e-12)


def test_a_group_in_which_nothing_happens_is_later():
    result = delay(group([10, 12, 14, 16]), group([20, 20, 20, 20], [False] * 4))
    assert result["log_rank"] < 0
    assert np.isnan(result["restricted_difference_error"])
    np.testing.assert_allclose(result["exact_p_value"], 2 / 70)
    blank = delay(group([20, 20], [False] * 2), group([20, 20], [False] * 2))
    assert np.isnan(blank["p_value"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kaplan_meier(np.array([]), np.array([], bool)), "times: expected one for each member"),
        (lambda: kaplan_meier(np.ones(3), np.ones(2, bool)), "observed: expected as many as times, 3"),
        (
            lambda: kaplan_meier(np.array([1.0, -2.0]), np.ones(2, bool)),
            r"times: expected finite numbers > 0, got -2.0",
        ),
        (lambda: kaplan_meier(np.ones(2), np.ones(2, bool), until=2.0), "until: expected a number > 0, at most"),
        (lambda: kaplan_meier(np.ones(2), np.ones(2, bool), confidence=1.0), "confidence: expected a number between"),
        (lambda: delay(group([1]), xr.Dataset({"a": 1})), "second: expected a Dataset with observed_time"),
    ],
)
def test_impossible_samples_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
