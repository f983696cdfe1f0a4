"""A choice by the other seeds is unbiased; places of peaks and slopes, with their errors."""

import numpy as np
import pytest
import xarray as xr

from iclbook.claims.asymptotics import _statistics
from iclbook.claims.asymptotics._statistics import best_for_others

RATIOS = np.array([0.25, 0.5, 0.75, 1.0, 1.3, 1.7, 2.2, 3.0, 6.0])


def test_a_choice_by_the_other_seeds_is_not_biased():
    """Of many rows of pure noise the largest has a mean of over 1; the one that others choose has mean 0."""

    def chosen(values):
        return values[best_for_others(values), np.arange(values.shape[1])]

    rng = np.random.default_rng(2)
    means = [chosen(rng.normal(size=(30, 4))).mean() for _ in range(400)]
    error = np.std(means, ddof=1) / 20
    assert error < 0.04
    assert abs(np.mean(means)) < 4 * error


def test_leading_axes_choose_on_their_own_and_a_single_seed_for_itself():
    values = np.random.default_rng(3).normal(size=(2, 5, 4))
    both = best_for_others(values)
    assert both.shape == (2, 4)
    np.testing.assert_array_equal(both[1], best_for_others(values[1]))
    np.testing.assert_array_equal(best_for_others(values[..., :1])[:, 0], values[..., 0].argmax(1))


def test_a_crossing_is_interpolated_in_the_logarithm():
    kappas = np.array([0.5, 1.0, 2.0, 8.0])
    columns = np.array([[0.2, 0.4, 0.8, 1.0], [0.2, 1.0, 0.6, 0.9], [0.6, 0.7, 0.8, 0.9], [0.1, 0.2, 0.3, 0.4]]).T
    found = _statistics.crossing(kappas, columns, 0.5)
    np.testing.assert_allclose(found[0], np.log(2) / 4, rtol=1e-12)  # a quarter of the way from 1 to 2
    np.testing.assert_allclose(found[1], np.log(0.5) + np.log(2) * 0.3 / 0.8, rtol=1e-12)
    assert found[2] == -np.inf
    assert found[3] == np.inf
    # The last crossing counts: 0.7 is passed between 1/2 and 1, and again between 2 and 8.
    np.testing.assert_allclose(
        _statistics.crossing(kappas, columns[:, 1:2], 0.7)[0], np.log(2) + np.log(4) / 3, rtol=1e-12
    )


def test_the_bootstrap_gives_the_standard_error_of_a_mean():
    values = np.random.default_rng(1).normal(size=12)
    found = _statistics.bootstrap(lambda means: means, values)
    assert float(found.value) == values.mean()
    assert float(found.error) == pytest.approx(
        values.std(ddof=1) / 12**0.5, rel=0.06
    )  # 4 standard errors of 2000 resamples


def test_the_place_of_a_peak_is_that_of_a_parabola_and_of_none_at_an_end():
    x = np.log(RATIOS)
    columns = np.stack([1 - (x - place) ** 2 for place in (-0.5, 0.0, 0.7)] + [x, -x], axis=1)
    found, _ = _statistics.peaks(RATIOS, columns)
    np.testing.assert_allclose(found[:3], [-0.5, 0.0, 0.7], atol=(x[-1] - x[0]) / 1000)
    assert np.isnan(found[3:]).all()
    assert np.isnan(_statistics.peaks(RATIOS[:3], columns[:3])[0]).all()  # too few points


def test_the_bootstrap_error_of_the_place_is_that_of_repetitions():
    """Over 80 data sets of 12 seeds, the spread of the places and the mean of their stated errors."""
    rng = np.random.default_rng(1)
    clean = 0.5 * np.exp(-((np.log(RATIOS) - 0.2) ** 2) / 1.2)
    found = np.array(
        [_statistics.peak(RATIOS, np.exp(clean[:, None] + 0.1 * rng.normal(size=(len(RATIOS), 12)))) for _ in range(80)]
    )
    spread = found[:, 0].std(ddof=1)  # known to 8 %
    stated = np.mean(found[:, 1])
    assert 0.75 < stated / spread < 1.25
    assert abs(found[:, 0].mean() - 0.2) < 0.1  # the polynomial of degree 4 is not the bell


def test_the_slope_is_exact_on_a_power_law_and_has_the_error_of_least_squares():
    dims, errors = np.array([4.0, 6.0, 9.0, 13.0]), np.array([0.1, 0.05, 0.2, 0.1])
    found, error = _statistics.slope(dims, 0.3 + 1.7 * np.log(dims), errors)
    np.testing.assert_allclose(found, 1.7, rtol=1e-12)
    design = np.stack([np.ones(4), np.log(dims)], axis=1)
    np.testing.assert_allclose(error, np.sqrt(np.linalg.inv((design.T / errors**2) @ design)[1, 1]), rtol=1e-12)
    places = np.append(0.3 + 1.7 * np.log(dims), np.nan)
    assert _statistics.slope(np.append(dims, 20.0), places, np.append(errors, np.nan)) == (found, error)


def test_the_variance_of_a_crossing_from_few_seeds_is_that_of_repetitions():
    """Of 600 repetitions with three seeds the ratio of both is 1, to three of its relative errors of .065."""
    rng = np.random.default_rng(0)
    below = xr.DataArray(np.ones((4, 3)), {"kappa": [1.0, 2.0, 4.0, 8.0]}, ("kappa", "seed"))
    mean = np.array([0.1, 0.3, 0.7, 0.9])[:, None]
    found, stated = [], []
    for _ in range(600):
        above = below.copy(data=mean + 0.01 * rng.normal(size=(4, 3)))
        (place,), covariance = _statistics.ratio_crossings(above, below, "kappa", [0.5])
        found.append(place)
        stated.append(covariance[0, 0])
    assert np.mean(found) == pytest.approx(np.log(8) / 2, abs=0.01)
    assert np.mean(stated) / np.var(found, ddof=1) == pytest.approx(1.0, abs=0.2)
