"""Transitions over several axes are those of each curve, and what cannot be seen is said, not judged."""

import numpy as np
import xarray as xr

from iclbook.claims.induction import _transitions
from icllab.diagnostics import transitions
from icllab.lab.checks import Outcome

STEPS = np.arange(0, 1001, 10)
TIMES = np.array([[[200.0, 300.0], [500.0, 250.0]], [[400.0, 600.0], [2000.0, 350.0]]])  # [kind, rate, seed]


def curves():
    rising = 1 / (1 + np.exp(-(STEPS - TIMES[..., None]) / 20))
    coordinates = {"attention": ["b", "a"], "rate": [0.3, 0.1], "seed": [4, 7], "step": STEPS}
    return xr.DataArray(rising, dims=("attention", "rate", "seed", "step"), coords=coordinates)


def test_each_group_is_timed_by_itself_under_its_own_coordinates():
    found = _transitions.risen(curves(), plateau=0.0, end=1.0)
    assert set(found.data_vars) == set(_transitions.OF_MEMBERS)
    assert list(found.coords) == ["attention", "rate", "seed"]
    np.testing.assert_allclose(found["transition_time"], np.where(TIMES > 1000, np.nan, TIMES), rtol=1e-9)
    np.testing.assert_array_equal(found["transitioned"], TIMES < 1000)
    assert found["median_time"].dims == ("attention", "rate")
    # Without levels each group's own are taken, of its members together.
    own = _transitions.risen(curves()).sel(attention="a", rate=0.3)
    np.testing.assert_array_equal(
        own["relative_width"], transitions(curves().sel(attention="a", rate=0.3, drop=True))["relative_width"]
    )


def group(times, last=1000.0):
    times = np.asarray(times, float)
    there = times < last
    return xr.Dataset({"observed_time": ("seed", np.where(there, times, last)), "transitioned": ("seed", there)})


def test_a_delay_has_a_direction():
    early, late = group([100, 120, 140, 160, 180, 200]), group([700, 800, 900, 2000, 2000, 2000])
    for pair, outcome in (((early, late), Outcome.HOLDS), ((late, early), Outcome.FAILS)):
        (found,) = _transitions.delayed("later", "it comes later", *pair)
        assert found.outcome is outcome
        np.testing.assert_allclose(found.measured, 2 / 924)  # the two most extreme of all divisions of twelve
    few = [one.isel(seed=slice(0, 2)) for one in (early, late)]
    assert _transitions.delayed("later", "it comes later", *few)[0].outcome is Outcome.UNDECIDED
    never = group([2000] * 6)
    (found,) = _transitions.delayed("later", "it comes later", never, never)
    assert (found.outcome, found.measured) == (Outcome.UNDECIDED, 1.0)


def test_guessing_a_label_of_the_context_is_right_in_one_of_n():
    steps = xr.Dataset(coords={"step": [0, 10]}, attrs={"configuration": '{"fixed": {"pairs": 4}}'})
    found = _transitions.guessing(steps)
    np.testing.assert_allclose(found["accuracy_line"], [0.25, 0.25])
    np.testing.assert_allclose(found["chance_loss"], np.log([4.0, 4.0]))
