"""The theories that know nothing: a constant, a power law and the nearest neighbour."""

import numpy as np
import pytest
import xarray as xr

from icllab.arena import registry


def cells(value, seeds=2, **conditions):
    shape = (len(value), seeds)
    values = {"value": (("cell", "seed"), np.broadcast_to(np.asarray(value, float)[:, None], shape))}
    values["censored"] = (("cell", "seed"), np.zeros(shape))
    return xr.Dataset(values, {name: ("cell", np.asarray(column, float)) for name, column in conditions.items()})


@pytest.fixture(scope="module")
def nulls():
    theories = registry.theories("depth_error")
    return {name: theories[name] for name in ("constant", "power_law", "nearest_neighbour")}


def test_a_power_law_finds_its_exponents_and_is_exponential_in_what_can_be_zero(nulls):
    x, zero = np.repeat([1.0, 2.0, 4.0, 8.0], 2), np.tile([0.0, 3.0], 4)
    train = cells(5.0 * x**1.5 * np.exp(-0.2 * zero), x=x, zero=zero)
    numbers = registry.fitted(nulls["power_law"], train)
    truth = {"constant": np.log(5.0), "ln x": 1.5, "zero": -0.2}
    assert set(numbers) == {*truth, "scale"}
    np.testing.assert_allclose([numbers[name] for name in truth], list(truth.values()), atol=1e-3)
    m, _, _ = nulls["power_law"].predict(numbers, cells([1.0], x=[16.0], zero=[0.0])).arrays(1)
    np.testing.assert_allclose(np.exp(m), 5.0 * 64.0, rtol=1e-2)


def test_the_nearest_neighbour_counts_levels_and_averages_ties(nulls):
    train = cells(np.exp([1.0, 2.0, 4.0, 8.0]), x=[1.0, 10.0, 100.0, 100.0], y=[0.0, 0.0, 0.0, 1.0])
    numbers = registry.fitted(nulls["nearest_neighbour"], train)
    m, s, _ = nulls["nearest_neighbour"].predict(numbers, cells([1, 1, 1], x=[1, 55, 20], y=[0.2, 0, 0])).arrays(3)
    np.testing.assert_allclose(m[:, 0], [1.0, 3.0, 2.0])  # 55 is half-way from 10 to 100
    # Each left out: 2 for 1, the mean of 1 and 4 for 2, 2 for 4 and 4 for 8.
    np.testing.assert_allclose(s[:, 0], np.sqrt((1.0 + 0.25 + 4.0 + 16.0) / 4))


def test_a_constant_is_the_geometric_mean(nulls):
    numbers = registry.fitted(nulls["constant"], cells(np.exp([1.0, 3.0]), x=[1.0, 2.0]))
    np.testing.assert_allclose([numbers["constant"], numbers["scale"]], [2.0, 1.0], atol=1e-4)
