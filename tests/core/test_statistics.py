"""Means, their errors, the limit of a finite-size measurement, and where a curve rises or is least."""

import itertools

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linprog

from icllab.core.statistics import (
    binomial_limits,
    crossed_mean_and_error,
    dip,
    dip_p_value,
    extrapolate,
    first_rise,
    lowest,
    mean_and_error,
)


def test_mean_and_error_against_numpy():
    samples = np.random.default_rng(0).normal(size=(3, 50))
    mean, error = mean_and_error(samples)
    np.testing.assert_allclose(mean, samples.mean(1), rtol=1e-13)
    np.testing.assert_allclose(error, samples.std(1, ddof=1) / np.sqrt(50), rtol=1e-13)
    np.testing.assert_allclose(mean_and_error(samples.T, axis=0)[1], error, rtol=1e-13)


def test_missing_samples_count_for_nothing():
    mean, error = mean_and_error(np.array([[1.0, 3.0, np.nan], [5.0, np.nan, np.nan], [np.nan] * 3]))
    np.testing.assert_array_equal(mean, [2.0, 5.0, np.nan])
    np.testing.assert_allclose(error, [1.0, np.nan, np.nan])


def test_an_infinite_sample_has_an_infinite_mean_and_no_error():
    mean, error = mean_and_error(np.array([1.0, np.inf]))
    assert mean == np.inf
    assert np.isnan(error)


def test_where_one_of_two_kinds_of_repetition_makes_no_difference_the_other_counts_alone():
    samples = np.random.default_rng(2).normal(size=7)
    alone = mean_and_error(samples)
    np.testing.assert_allclose(crossed_mean_and_error(np.tile(samples, (5, 1))), alone, rtol=1e-12)
    np.testing.assert_allclose(crossed_mean_and_error(np.tile(samples[:, None], (1, 5))), alone, rtol=1e-12)
    assert np.isnan(crossed_mean_and_error(samples[None])[1])


def test_of_two_kinds_of_repetition_both_make_the_error():
    r"""With standard deviations 1, 2 and 3 of 4 members, 9 draws and both: 1/4 + 4/9 + 9/36 is the variance."""
    rng = np.random.default_rng(3)
    a, b, c = (rng.normal(size=(20_000, *shape)) for shape in ((4, 1), (1, 9), (4, 9)))
    means, errors = crossed_mean_and_error(a + 2 * b + 3 * c)
    assert np.var(means) == pytest.approx(1 / 4 + 4 / 9 + 9 / 36, rel=0.04)  # the spread of 20 000 is known to 1 %
    assert np.mean(errors**2) == pytest.approx(1 / 4 + 4 / 9 + 2 * 9 / 36, rel=0.04)


@pytest.mark.parametrize("order", [1, 2])
def test_polynomials_in_one_over_d_are_recovered_exactly(order):
    dims = np.array([10.0, 20.0, 40.0, 80.0])
    coefficients = [0.7, 3.0, -20.0][: order + 1]
    values = sum(c * dims**-j for j, c in enumerate(coefficients))
    limit, error = extrapolate(dims, values, np.full(4, 0.01), order=order)
    assert limit == pytest.approx(0.7, abs=1e-12)
    assert error > 0.01 / 2  # extrapolation costs: the plain mean of four has 0.005


def test_with_as_many_sizes_as_unknowns_it_is_richardson():
    limit, error = extrapolate([40, 80], [1.2, 1.1], [0.03, 0.04])
    assert limit == pytest.approx(2 * 1.1 - 1.2)
    assert error == pytest.approx(np.hypot(2 * 0.04, 0.03))


def test_the_error_it_states_is_the_error_it_makes():
    rng = np.random.default_rng(1)
    dims, errors = np.array([12.0, 24.0, 48.0]), np.array([0.05, 0.03, 0.02])
    limits, stated = zip(
        *(extrapolate(dims, 1 + 5 / dims + errors * rng.normal(size=3), errors, order=2) for _ in range(4000)),
        strict=True,
    )
    # The spread of 4000 draws is known to 1.1 %.
    assert np.std(limits) == pytest.approx(stated[0], rel=0.05)
    assert abs(np.mean(limits) - 1) < 4 * stated[0] / np.sqrt(4000)


def test_too_few_sizes_say_nothing():
    assert np.isnan(extrapolate([10, 20], [1, 2], [0.1, 0.1], order=2)).all()
    assert np.isnan(extrapolate([10, 20], [1, np.nan], [0.1, np.nan])).all()
    assert np.isnan(extrapolate([10, 20], [1, 2], [0.1, 0.0])).all()


def test_a_rise_is_where_straight_lines_first_reach_zero_from_below():
    points = [0.0, 1.0, 3.0]
    values = [[-1.0, 1.0, 0.5], [-1.0, -0.5, 0.5], [-3.0, -1.0, 1.0], [-1.0, 0.0, 0.0]]
    np.testing.assert_allclose(first_rise(points, np.array(values)), [0.5, 2.0, 2.0, 1.0])
    never = [[-1.0, -0.5, -0.1], [1.0, -0.5, 1.0], [0.0, 0.0, 0.0], [-1.0, np.nan, np.nan]]
    assert np.isnan(first_rise(points, np.array(never))).all()
    assert float(first_rise(points, np.array([-2.0, 2.0, 9.0]))) == 0.5


def test_the_lowest_point_of_a_parabola_of_the_ends_and_of_nothing():
    """Exact for any parabola with its vertex inside; at an end it is the end."""
    points = np.array([0.0, 1.0, 3.0, 4.0, 7.0])
    vertices = np.array([[1.3], [3.4], [-2.0], [9.0]])
    values = 2 * (points - vertices) ** 2 - 5
    np.testing.assert_allclose(lowest(points, values), [1.3, 3.4, 0.0, 7.0], rtol=1e-12)
    assert np.isnan(lowest(points, np.array([1.0, 0.0, np.nan, 1.0, 2.0])))


def dip_by_linear_programs(x):
    """The dip from its definition: the least distance of a distribution with its mode, and atom, at each sample."""
    n = len(x)
    distances = []
    for mode in range(n):
        # unknowns: values below the mode's atom (0 to mode) and above it (mode to n - 1), and the distance
        left, right = np.arange(mode + 1), np.arange(mode, n)
        size, rows, bounds = n + 2, [], []

        def place(i, side):
            return i if side == "left" else i + 1

        def at_most(terms, bound, size=size, rows=rows, bounds=bounds):
            row = np.zeros(size)
            for k, c in terms:
                row[k] += c
            rows.append(row)
            bounds.append(bound)

        for side, part in (("left", left), ("right", right)):
            sign = 1 if side == "left" else -1
            for i in part:
                k = place(i, side)
                if not (side == "left" and i == mode):
                    at_most([(k, -1), (n + 1, -1)], -(i + 1) / n)  # near the top of the step
                if not (side == "right" and i == mode):
                    at_most([(k, 1), (n + 1, -1)], i / n)  # and its bottom
            for a, b, c in zip(part, part[1:], part[2:], strict=False):
                slopes = [(place(a, side), -1 / (x[b] - x[a])), (place(b, side), 1 / (x[b] - x[a]))]
                slopes += [(place(b, side), 1 / (x[c] - x[b])), (place(c, side), -1 / (x[c] - x[b]))]
                at_most([(k, sign * value) for k, value in slopes], 0.0)
            for a, b in itertools.pairwise(part):
                at_most([(place(a, side), 1), (place(b, side), -1)], 0.0)
        at_most([(place(mode, "left"), 1), (place(mode, "right"), -1)], 0.0)
        cost = np.zeros(size)
        cost[-1] = 1
        solution = linprog(cost, np.array(rows), bounds, bounds=[(0, 1)] * size)
        distances.append(solution.fun if solution.status == 0 else np.inf)
    return min(distances)


@pytest.mark.parametrize("seed", range(6))
def test_the_dip_is_the_distance_from_distributions_of_one_mode(seed):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.normal(size=9) + 4 * (seed % 3) * rng.integers(2, size=9))
    assert dip(x) == pytest.approx(dip_by_linear_programs(x), abs=1e-9)


def test_the_dip_of_even_samples_is_least_and_that_of_two_heaps_is_a_quarter():
    assert dip(np.arange(10.0)) == pytest.approx(1 / 20)
    heaps = np.concatenate([np.linspace(0, 1e-6, 50), np.linspace(1, 1 + 1e-6, 50)])
    assert dip(heaps) == pytest.approx(0.25, abs=0.01)
    assert dip(-3 * heaps + 2) == pytest.approx(dip(heaps))


def test_two_modes_are_seen_and_one_is_not():
    rng, repeats, n = np.random.default_rng(3), 60, 48
    draws = {
        "normal": lambda: rng.normal(size=n),
        "exponential": lambda: rng.exponential(size=n),
        "uniform": lambda: rng.random(n),
        "overlapping": lambda: rng.normal(size=n) + 4 * rng.integers(2, size=n),
        "two": lambda: rng.normal(size=n) + 8 * rng.integers(2, size=n),
    }
    alarms = {name: np.mean([dip_p_value(draw()) < 0.05 for _ in range(repeats)]) for name, draw in draws.items()}
    assert alarms["normal"] == alarms["exponential"] == 0.0
    assert alarms["uniform"] <= 0.05 + 3 * (0.05 * 0.95 / repeats) ** 0.5
    assert 0.2 < alarms["overlapping"] < 0.8
    assert alarms["two"] == 1.0


def test_a_p_value_of_the_dip_is_never_zero():
    """The observed samples count as one of the draws, so the least p-value is 1 / (draws + 1)."""
    heaps = np.concatenate([np.linspace(0, 1e-6, 24), np.linspace(1, 1 + 1e-6, 24)])
    for draws in (99, 1000):
        assert dip_p_value(heaps, draws) == pytest.approx(1 / (draws + 1), rel=1e-12)
        assert dip_p_value(np.arange(48.0), draws) == pytest.approx(1.0, rel=1e-12)


def test_limits_of_a_probability_have_the_binomial_tails():
    low, high = binomial_limits(np.array([0, 3, 10]), 10, 0.01)
    assert low[0] == 0
    assert high[-1] == 1
    np.testing.assert_allclose(stats.binom.sf([2, 9], 10, low[1:]), 0.01)
    np.testing.assert_allclose(stats.binom.cdf([0, 3], 10, high[:-1]), 0.01)
