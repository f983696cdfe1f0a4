"""Times of programs of known curves, their order with censored ones, and the line through their logarithms."""

import numpy as np
import pytest
import xarray as xr

from iclbook.claims.routing import _times

STEPS = np.geomspace(1, 1000, 61)
NAMES = ["a", "b", "c", "d"]
FREQUENCY = xr.DataArray([0.4, 0.3, 0.2, 0.1], dims="program", coords={"program": NAMES})


def curves(halves):
    """Losses that fall from 2 as a logistic function of the logarithm of the step; [seed][program] of half times."""
    halves = np.array(halves, float)
    values = 2 / (1 + (STEPS / halves[..., None]) ** 6)
    coords = {"seed": range(len(halves)), "program": NAMES, "step": STEPS}
    return xr.DataArray(values, dims=("seed", "program", "step"), coords=coords)


def test_times_are_those_at_which_a_share_of_the_plateau_is_gone():
    halves = [[10, 20, 50, 1e5], [30, 20, 100, 200]]
    found = _times.times(curves(halves), plateau=2.0)
    assert found["transitioned"].values.tolist() == [[True, True, True, False], [True] * 4]
    np.testing.assert_allclose(found["transition_time"][1], halves[1], rtol=5e-3)
    assert np.isnan(found["transition_time"][0, 3])
    assert found["observed_time"][0, 3] == 1000
    later = _times.times(curves(halves), plateau=2.0, level=0.8)["transition_time"][1]
    np.testing.assert_allclose(later, np.array(halves[1]) * 4 ** (1 / 6), rtol=1e-2)


def made(times, observed):
    dims = ("seed", "program")
    coords = {"seed": range(len(times)), "program": NAMES}
    rows = {"observed_time": (dims, np.array(times, float)), "transitioned": (dims, np.array(observed, bool))}
    found = xr.Dataset(rows, coords=coords)
    return found.assign(transition_time=found["observed_time"].where(found["transitioned"]))


def test_concordance_counts_the_pairs_whose_order_is_known():
    found = made([[1, 2, 3, 4], [4, 3, 2, 1], [1, 9, 9, 3], [9, 9, 9, 9]], [[1] * 4, [1] * 4, [1, 0, 0, 1], [0] * 4])
    # Of the third: a before all three; d before b and c, which are more frequent.
    np.testing.assert_allclose(_times.concordance(found, FREQUENCY), [1, 0, 3 / 5, np.nan])
    tied = FREQUENCY.copy(data=[0.3, 0.3, 0.3, 0.1])
    np.testing.assert_allclose(_times.concordance(found, tied)[:3], [1, 0, 1 / 3])


def test_the_slope_is_that_of_the_programs_that_are_learned():
    times = 5 * FREQUENCY.values**-0.7
    found = made([times, [*times[:3], 1000]], [[1] * 4, [1, 1, 1, 0]])
    line = _times.slope(found, FREQUENCY)
    np.testing.assert_allclose(line["slope"], -0.7)
    np.testing.assert_allclose(np.exp(line["intercept"]), 5)
    bent = made([times * np.array([1, 2, 1, 1])], [[1] * 4])
    wanted = np.polyfit(np.log(FREQUENCY), np.log(bent["transition_time"][0]), 1)
    assert [float(_times.slope(bent, FREQUENCY)[name][0]) for name in ("slope", "intercept")] == pytest.approx(wanted)
