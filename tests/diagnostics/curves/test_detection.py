"""Scores and sums of made-up series, thresholds from runs without a change, and the rate that they keep."""

import numpy as np
import pytest
import xarray as xr

from icllab.core.errors import InputError
from icllab.diagnostics.curves import detection


def test_scores_count_standard_deviations_of_the_records_before():
    logs = np.array([0.0, 1.0] * 5)
    logs[9] = -3.0
    found = detection.scores(np.exp(logs))
    assert (found[:8] == 0).all()
    spread = np.std([0, 1] * 4, ddof=1)
    np.testing.assert_allclose(found[8:], [-0.5 / spread, -3.5 / spread])
    np.testing.assert_allclose(detection.scores(np.exp(np.append(np.zeros(8), 0.01)))[8], 0.01 / detection.FLOOR)


def test_rises_are_from_the_mean_of_four_records():
    logs = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 4.0])
    np.testing.assert_allclose(detection.rises(np.exp(logs)), [0, 0, 0, 0, 2.5, 1.5])


def test_nothing_but_the_past_is_used():
    series = np.exp(np.random.default_rng(0).normal(size=(2, 20)))
    changed = series.copy()
    changed[:, 15:] *= 7
    for function in (detection.scores, detection.rises, lambda rows: detection.cumulative_sums(detection.scores(rows))):
        np.testing.assert_array_equal(function(series)[:, :15], function(changed)[:, :15])
        assert (function(series)[:, 15] != function(changed)[:, 15]).all()


def test_sums_go_both_ways_and_forget():
    found = detection.cumulative_sums(np.array([2.0, 2.0, 0.0, -2.0, -2.0, 0.0]))
    np.testing.assert_allclose(found, [1.5, 3.0, 2.5, 1.5, 3.0, 2.5])
    np.testing.assert_array_equal(detection.cumulative_sums(np.full((2, 5), 0.4)), 0)


def test_first_passages_are_of_each_level():
    found = detection.first_passages(
        np.array([[0, 3, 1, 5], [0, 0, 0, 1]]), np.array([5, 10, 15, 20]), np.array([2, 4])
    )
    np.testing.assert_array_equal(found, [[10, 20], [np.nan, np.nan]])


def passages(highest, levels):
    first = np.where(highest[:, None] > levels, 1.0, np.nan)
    return xr.DataArray(first, coords={"level": levels}, dims=("seed", "level"))


def test_the_threshold_lets_as_many_runs_alarm_as_the_rate_allows():
    """Of 39 runs with 1 to 39 for the highest: at a rate of 0.05 one of them, at 0.1 three, at 0.025 none."""
    levels = np.arange(0.5, 41.0)
    some = passages(np.arange(1.0, 40.0), levels)
    for rate, wanted in ((0.05, 38.5), (0.1, 36.5), (0.025, 39.5)):
        assert float(detection.threshold(some, rate=rate)) == wanted
    assert np.isinf(detection.threshold(some, rate=0.02))
    assert np.isinf(detection.threshold(some.sel(level=slice(30)), rate=0.05))
    with pytest.raises(InputError, match="rate"):
        detection.threshold(some, rate=1.0)


def test_a_further_run_alarms_at_the_rate_on_average():
    """2000 thresholds of 79 runs each, on one further run each: 5 %, and not a few per cent more."""
    rng, levels = np.random.default_rng(0), np.linspace(0, 6, 600)
    false = 0
    for _ in range(10):
        first = np.where(np.abs(rng.normal(size=(80, 200)))[:, :, None] > levels, 1.0, np.nan)
        runs = xr.DataArray(first, coords={"level": levels}, dims=("seed", "series", "level"))
        level = detection.threshold(runs[:-1], rate=0.05)
        false += int(detection.alarms(runs[-1:], level).notnull().sum())
    assert 0.035 < false / 2000 < 0.055


def test_alarms_are_first_passages_of_each_series_threshold():
    first = xr.DataArray(
        [[[1.0, 2.0, np.nan], [3.0, 4.0, 5.0]]], coords={"level": [1.0, 2.0, 3.0]}, dims=("seed", "series", "level")
    )
    found = detection.alarms(first, xr.DataArray([2.0, 3.0], dims="series"))
    np.testing.assert_array_equal(found, [[2.0, 5.0]])
    found = detection.alarms(first, xr.DataArray([3.0, np.inf], dims="series"))
    np.testing.assert_array_equal(found, [[np.nan, np.nan]])
