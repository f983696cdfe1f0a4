"""Every stated interval holds what it is an interval of as often as it says, counted on made-up data."""

import numpy as np
import pytest
import xarray as xr
from contracts.calibration import FEWER, REPEATS, assert_coverage, censored

from icllab.diagnostics.curves.survival import kaplan_meier
from icllab.diagnostics.curves.transition_times import transitions


def test_intervals_of_event_times_hold_as_often_as_they_say():
    rng, median, at = np.random.default_rng(1), np.log(2), 0.9
    holds = []
    for _ in range(REPEATS):
        table = kaplan_meier(*censored(rng), confidence=0.9)
        low, high = table["median_time_interval"].values
        bounds = table["survival_interval"].sel(time=at, method="ffill").values
        holds.append([low <= median <= high, bounds[0] <= np.exp(-at) <= bounds[1]])
    assert_coverage(np.mean(holds, axis=0), 0.9)


@pytest.mark.parametrize("members", [3, 8])
def test_the_interval_of_a_plateau_holds_as_often_as_it_says(members):
    """Members on plateaus of their own: what is stated is an interval of their mean."""
    rng, step = np.random.default_rng(2), np.arange(0, 101, 10.0)
    holds = []
    for _ in range(FEWER):
        levels = 1 + 0.1 * rng.normal(size=members)
        curves = np.where(step < 70, levels[:, None], 0.0)
        table = transitions(xr.DataArray(curves, dims=("seed", "step"), coords={"step": step}), plateau=1.0, end=0.0)
        low, high = table["plateau_interval"].values
        holds.append(low <= 1.0 <= high)
    assert_coverage(np.mean(holds), 0.95, FEWER)
