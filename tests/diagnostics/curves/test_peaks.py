"""Tops of curves that are written down, their errors, and what is no peak."""

import numpy as np
import pytest
import xarray as xr

from icllab.core.errors import InputError
from icllab.diagnostics.curves.peaks import peaks, running_median

T = np.arange(120)


def curves(logs):
    logs = np.atleast_2d(logs)
    return xr.DataArray(np.exp(logs), coords={"step": 10.0 * T}, dims=("seed", "step"))


def tent(rise, fall, top=40):
    return np.where(top >= T, rise * T / top, rise - fall * (T - top) / (T[-1] - top))


def noise(size, seed=0):
    return size * np.random.default_rng(seed).normal(size=(200, len(T)))


def test_a_tent_has_its_top_rise_and_fall():
    """The level at an end is the median of five records: two records from the end of a straight side."""
    found = peaks(curves(tent(2.0, 4.0))).isel(seed=0)
    assert abs(float(found["peak_time"]) - 400) <= 10
    slope_up, slope_down = 2 / 40, 4 / 79
    top = 2 - slope_down  # the median of the five records around the top is the second on the flatter side
    np.testing.assert_allclose(found["rise"], top - 2 * slope_up, atol=0.02)
    np.testing.assert_allclose(found["fall"], top - (2 - 4 + 2 * slope_down), atol=0.02)
    assert bool(found["peaked"])


def test_errors_are_those_of_a_record_about_a_smooth_curve():
    """Of white noise on a slow curve: root two times its size, in the mean of squares within 5 %."""
    slow = 1e-3 * (T - 60.0) ** 2 / 10
    found = peaks(curves(-slow + noise(0.2)))
    for name in ("rise_error", "fall_error"):
        size = float((found[name] ** 2).mean() ** 0.5)
        assert abs(size / (0.2 * 2**0.5) - 1) < 0.05, name
    louder = peaks(curves(-slow + noise(0.2) * np.where(T < 60, 1, 3)))
    sizes = [float((louder[name] ** 2).mean() ** 0.5) for name in ("rise_error", "fall_error")]
    np.testing.assert_allclose(sizes, np.hypot(0.6, [0.2, 0.6]), rtol=0.05)  # the top lies in the loud half
    doubled = peaks(curves(-slow + noise(0.4)))
    np.testing.assert_allclose((doubled["rise_error"] ** 2).mean() ** 0.5 / size, 2, rtol=0.1)


@pytest.mark.parametrize(
    "logs",
    [0 * T, -0.05 * T, 0.05 * T, -3.0 * (T > 40), 3.0 * (T > 40), -3 / (1 + np.exp(-(T - 60) / 5)), 6 * np.log1p(T)],
    ids=["flat", "falls", "rises", "step down", "step up", "sigmoid", "logarithm"],
)
def test_a_monotone_curve_has_no_peak(logs):
    assert float(peaks(curves(logs + noise(0.2)))["peaked"].mean()) <= 0.02
    assert not peaks(curves(logs))["peaked"].any()


def test_a_valley_is_no_peak():
    assert not peaks(curves(-tent(2.0, 2.0)))["peaked"].any()


def test_a_peak_needs_its_height_on_both_sides():
    for rise, fall, wanted in ((2.0, 2.0, True), (0.5, 2.0, False), (2.0, 0.5, False)):
        assert bool(peaks(curves(tent(rise, fall)))["peaked"]) is wanted
    assert bool(peaks(curves(tent(0.5, 0.5)), height=1.3)["peaked"])
    assert not bool(peaks(curves(tent(2.0, 2.0)), height=8.0)["peaked"])


def test_a_peak_exceeds_its_noise():
    """A rise by 2 in the logarithm is 4.7 errors at a noise of 0.3, and 2.4 at 0.6."""
    shares = [float(peaks(curves(tent(2.0, 3.0) + noise(size)))["peaked"].mean()) for size in (0.3, 0.6)]
    assert shares[0] > 0.8
    assert shares[1] < 0.2
    assert float(peaks(curves(tent(2.0, 3.0) + noise(0.6)), sigmas=1.0)["peaked"].mean()) > 0.9


def test_a_top_at_an_end_is_no_peak():
    early, late = np.where(T < 1, 5.0, 0.0) - 0.05 * T, tent(4.0, 4.0, top=118)
    assert not peaks(curves(early), height=1.01, sigmas=0.0)["peaked"].any()
    assert not peaks(curves(late))["peaked"].any()


def test_single_spikes_are_no_peak():
    spiked = -0.05 * T + 5.0 * (T == 60)
    assert (peaks(curves(spiked))["peak_time"] < 50).all()
    np.testing.assert_allclose(running_median(np.array([1.0, 2, 9, 4, 5])), [2, 3, 4, 4.5, 5])


def test_axes_are_kept_and_the_scale_does_not_matter():
    logs = np.stack([tent(2.0, 3.0), tent(0.1, 3.0)])
    both = xr.DataArray(
        np.exp(logs).T[:, None, :], coords={"time": T, "program": ["a", "b"]}, dims=("time", "seed", "program")
    )
    found = peaks(both, along="time")
    assert found["peaked"].dims == ("seed", "program")
    np.testing.assert_array_equal(found["peaked"], [[True, False]])
    assert list(found["program"].values) == ["a", "b"]
    xr.testing.assert_allclose(found, peaks(1e-6 * both, along="time"))


def test_what_is_no_positive_curve_is_refused():
    with pytest.raises(InputError, match="positive"):
        peaks(curves(0.0 * T) - 1)
    with pytest.raises(InputError, match="21"):
        peaks(curves(0.0 * T).isel(step=slice(20)))
    with pytest.raises(InputError, match="height"):
        peaks(curves(0.0 * T), height=1.0)
    with pytest.raises(InputError, match="sigmas"):
        peaks(curves(0.0 * T), sigmas=-1.0)
