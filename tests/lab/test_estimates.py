"""Means, ratios and limits with their standard errors, each against its definition or a simulation."""

import math

import numpy as np
import pytest
import xarray as xr

from icllab.core.errors import InputError
from icllab.core.statistics import extrapolate
from icllab.lab import estimates
from icllab.lab.estimates import Estimate


def samples(*shape, seed=0, dims=("tau", "seed")):
    return xr.DataArray(np.random.default_rng(seed).normal(3.0, 1.0, shape), dims=dims, name="x")


def test_a_mean_has_the_error_of_its_definition_whatever_the_order_of_axes():
    x = samples(2, 5)
    for array in (x, x.T):
        found = estimates.mean(array)
        np.testing.assert_allclose(found.value, x.values.mean(1))
        np.testing.assert_allclose(found.error, x.values.std(1, ddof=1) / math.sqrt(5))
    assert np.isnan(estimates.mean(x.isel(seed=[0])).error).all()


def test_missing_samples_are_left_out():
    x = samples(1, 5)
    x[0, 2] = np.nan
    kept = np.delete(x.values[0], 2)
    found = estimates.mean(x)
    assert float(found.value[0]) == pytest.approx(kept.mean())
    assert float(found.error[0]) == pytest.approx(kept.std(ddof=1) / 2)


def test_differences_and_ratios_have_the_spread_of_repeated_measurements():
    """Of 4000 measurements of two means, the spread of difference and ratio is what one estimate states, to 5 %."""
    rng = np.random.default_rng(1)
    one, other = rng.normal(4.0, 0.2, 4000), rng.normal(2.0, 0.1, 4000)
    a, b = Estimate(4.0, 0.2), Estimate(2.0, 0.1)
    assert float((a - b).error) == pytest.approx((one - other).std(), rel=0.05)
    assert float((a + b).error) == pytest.approx((one + other).std(), rel=0.05)
    assert float((a / b).error) == pytest.approx((one / other).std(), rel=0.05)
    assert float((a / b).value) == 2.0
    assert float((a / 2.0).error) == 0.1
    assert float((a + b).value) == 6.0
    assert float(a.log().error) == pytest.approx(np.log(one).std(), rel=0.05)
    assert float(a.log().number().value) == pytest.approx(4.0)
    assert float(a.log().number().error) == pytest.approx(0.2)
    assert a.number() is a


def test_geometric_means_divide_as_their_logarithms_subtract():
    x = np.exp(samples(3, 6))
    a, b = (estimates.geometric_mean(x.isel(tau=i)) for i in (0, 1))
    ratio = a / b
    assert ratio.logarithmic
    logs = np.log(x.values)
    assert float(ratio.value) == pytest.approx(logs[0].mean() - logs[1].mean())
    assert float(ratio.error) == pytest.approx(math.hypot(*(logs[i].std(ddof=1) / math.sqrt(6) for i in (0, 1))))
    assert float((a / 2.0).value) == pytest.approx(logs[0].mean() - math.log(2))
    with pytest.raises(InputError, match="difference: expected estimates of numbers, got 'a geometric mean'"):
        a - b
    with pytest.raises(InputError, match="ratio: expected two geometric means, or none"):
        Estimate(1.0, 0.1) / b


def test_own_errors_average_as_independent_ones():
    error = xr.DataArray([3.0, 4.0], dims="seed")
    found = Estimate(xr.DataArray([1.0, 2.0], dims="seed"), error).average("seed")
    assert (float(found.value), float(found.error)) == (1.5, 2.5)
    unknown = Estimate(xr.DataArray([1.0, 2.0], dims="seed"), error.where(error > 3)).average("seed")
    assert math.isnan(float(unknown.error))


def test_a_stored_quantity_has_the_error_beside_it_or_none():
    dataset = xr.Dataset({"a": ("t", [1.0, 2.0]), "a_error": ("t", [0.1, 0.2]), "b": ("t", [1, 2])})
    assert estimates.stored(dataset, "a").error.values.tolist() == [0.1, 0.2]
    assert estimates.stored(dataset, "b").error.values.tolist() == [0.0, 0.0]


def test_a_limit_is_the_extrapolation_of_each_row():
    sizes = np.array([10.0, 20.0, 40.0])
    value = xr.DataArray([[1.0, 2.0], [1.5, 2.5], [1.75, 2.75]], {"dim": sizes, "tau": [0.5, 2.0]}, ("dim", "tau"))
    error = xr.DataArray([[0.1, 0.2], [0.2, 0.1], [0.1, 0.3]], value.coords, value.dims)
    for order in (1, 2):
        found = estimates.limit(Estimate(value, error), order=order)
        for tau in (0.5, 2.0):
            expected = extrapolate(sizes, value.sel(tau=tau).values, error.sel(tau=tau).values, order=order)
            assert (float(found.value.sel(tau=tau)), float(found.error.sel(tau=tau))) == pytest.approx(expected)
    freedom = xr.DataArray([[7.0, 3.0], [5.0, 11.0], [9.0, 4.0]], value.coords, value.dims)
    few = estimates.limit(Estimate(value, error, freedom=freedom), order=1).freedom
    assert (float(few.sel(tau=0.5)), float(few.sel(tau=2.0))) == (5.0, 3.0)  # those of the least certain size
    exact = estimates.limit(Estimate(2.0 + 3.0 / value["dim"], 0.1), order=1)
    assert float(exact.value) == pytest.approx(2.0)


def test_errors_are_spread_over_the_axes_of_the_value():
    value = xr.DataArray(np.zeros((2, 3)), {"tau": [1, 2], "dim": [1, 2, 3]}, ("tau", "dim"))
    error = xr.DataArray([0.1, 0.2, 0.3], {"dim": [1, 2, 3]}, "dim")
    found = Estimate(value, error)
    assert found.error.dims == ("tau", "dim")
    assert found.error.values.tolist() == [[0.1, 0.2, 0.3]] * 2


def test_degrees_of_freedom_are_those_of_welch_and_satterthwaite():
    """A mean's are n - 1; those of a difference lie between the smaller of both and their sum."""
    few, many = estimates.mean(samples(2, 4)), estimates.mean(samples(2, 11, seed=1))
    np.testing.assert_array_equal(few.freedom, [3, 3])
    part = samples(2, 4)
    part[1, 0] = np.nan
    np.testing.assert_array_equal(estimates.mean(part).freedom, [3, 2])
    a, b = few.error.values**2, many.error.values**2
    wanted = (a + b) ** 2 / (a**2 / 3 + b**2 / 10)
    for found in (few - many, few + many, many - few):
        np.testing.assert_allclose(found.freedom, wanted)
    assert (wanted > 3).all()
    assert (wanted < 13).all()
    np.testing.assert_allclose((few - 1.0).freedom, 3)
    np.testing.assert_allclose((few / 2.0).freedom, 3)
    assert ((few - Estimate(few.value, 1e3)).freedom > 1e9).all()  # an error that is known outweighs that of samples
    ratio = few / many
    c, d = a / many.value.values**2, b * (few.value.values / many.value.values**2) ** 2
    np.testing.assert_allclose(ratio.freedom, (c + d) ** 2 / (c**2 / 3 + d**2 / 10))
    positive = abs(samples(2, 4))
    logarithms = estimates.geometric_mean(positive) / estimates.geometric_mean(abs(samples(2, 4, seed=1)))
    assert logarithms.logarithmic
    assert ((logarithms.freedom >= 3) & (logarithms.freedom <= 6)).all()
    np.testing.assert_array_equal(few.log().freedom, few.freedom)
    np.testing.assert_array_equal(few.log().number().freedom, few.freedom)
    np.testing.assert_array_equal(few.sel(tau=0).freedom, 3)
    squares = few.error.values**2
    np.testing.assert_allclose(few.average("tau").freedom, squares.sum() ** 2 / (squares**2 / 3).sum())
    assert np.isinf(Estimate(1.0, 0.1).freedom)


def test_a_weighted_sum_is_that_of_independent_estimates():
    """A slope, which is one: its value, error and degrees of freedom by their definitions."""
    found = estimates.mean(samples(3, 5))
    weights = xr.DataArray([-0.5, 0.25, 2.0], dims="tau")
    slope = found.combined(weights, "tau")
    squares = (weights.values * found.error.values) ** 2
    assert float(slope.value) == pytest.approx(float(weights.values @ found.value.values))
    assert float(slope.error) == pytest.approx(math.sqrt(squares.sum()))
    assert float(slope.freedom) == pytest.approx(squares.sum() ** 2 / (squares**2 / 4).sum())
    assert np.isnan(Estimate(found.value, np.nan).combined(weights, "tau").error)


@pytest.mark.parametrize(("shape", "count"), [(4.0, 8), (1.0, 8), (4.0, 30)])
def test_the_skewness_of_a_mean_is_that_of_repeated_measurements(shape, count):
    """Gamma samples have the skewness 2/sqrt(shape), and their mean that over sqrt(count); 8 samples do not tell it."""
    rng = np.random.default_rng(2)
    x = xr.DataArray(rng.gamma(shape, size=(400, count)) * np.exp(rng.normal(size=(400, 1))), dims=("tau", "seed"))
    a = estimates.mean(x)
    expected = 2 / math.sqrt(shape * count)
    np.testing.assert_allclose(a.skewness, expected, rtol=0.15)
    np.testing.assert_allclose(estimates.mean(-x).skewness, -a.skewness)
    normal = xr.DataArray(rng.normal(size=(400, count)), dims=("tau", "seed"))
    np.testing.assert_allclose(estimates.mean(normal).skewness, 0.0, atol=0.05 * expected + 0.02)


def test_few_samples_of_no_skewness_state_none():
    rng = np.random.default_rng(3)
    stated = [
        float(estimates.mean(xr.DataArray(rng.normal(size=10), dims=("seed",))).skewness) * math.sqrt(10)
        for _ in range(200)
    ]
    assert np.mean(np.array(stated) == 0.0) > 0.6
    assert abs(np.mean(stated)) < 0.15


def test_skewness_of_combinations_is_that_of_repeated_measurements():
    """Third cumulants add with the cubes of coefficients: against 400,000 measurements of two skewed estimates."""
    rng = np.random.default_rng(4)
    k = 4.0
    one, other = (5.0 + s * (rng.gamma(k, size=400_000) - k) / math.sqrt(k) for s in (0.2, 0.1))
    a, b = Estimate(5.0, 0.2, skewness=1.0), Estimate(5.0, 0.1, skewness=1.0)

    def skewness(x):
        return float(((x - x.mean()) ** 3).mean() / x.std() ** 3)

    for estimate, repeated in ((a - b, one - other), (a + b, one + other), (b - a, other - one)):
        assert float(estimate.skewness) == pytest.approx(skewness(repeated), abs=0.03)
    small = Estimate(100.0, 0.2, skewness=1.0), Estimate(-100.0, 0.1, skewness=1.0)  # to first order
    repeated = one + 95.0, other - 105.0
    assert float((small[0] / small[1]).skewness) == pytest.approx(skewness(repeated[0] / repeated[1]), abs=0.03)
    assert float(small[0].log().skewness) == pytest.approx(skewness(np.log(repeated[0])), abs=0.03)
    assert float((small[0] / 2.0).skewness) == pytest.approx(1.0)
    assert float((small[0] / -2.0).skewness) == pytest.approx(-1.0)
    both = Estimate(xr.DataArray([5.0, 5.0], dims=("tau",)), xr.DataArray([0.2, 0.1], dims=("tau",)), skewness=1.0)
    weights = xr.DataArray([1.0, -3.0], dims=("tau",))
    assert float(both.combined(weights, "tau").skewness) == pytest.approx(skewness(one - 3 * other), abs=0.03)
    assert float(both.sel(tau=1).skewness) == 1.0


def test_means_of_single_and_of_constant_samples_state_no_skewness():
    x = xr.DataArray([[1.0, 1.0, 1.0], [2.0, np.nan, np.nan]], dims=("tau", "seed"))
    assert (estimates.mean(x).skewness == 0).all()
