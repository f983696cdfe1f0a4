"""Medians and fractions with their intervals: coverage, censoring, and what checks make of them."""

import numpy as np
import pytest
import xarray as xr
from scipy.stats import binom

from icllab.core.errors import InputError
from icllab.lab import checks, intervals
from icllab.lab.checks import Outcome

TAIL = 0.00135


def seeds(values):
    return xr.DataArray(np.asarray(values), dims="seed")


@pytest.mark.parametrize(("count", "rank"), [(9, 0), (10, 1), (14, 2), (20, 4), (48, 14)])
def test_a_median_lies_between_two_samples_in_order(count, rank):
    """The rank is the largest whose tail of Bin(n, 1/2) is at most that of three standard errors."""
    interval = intervals.median(seeds(np.arange(1.0, count + 1)))
    assert float(interval.value) == (count + 1) / 2
    if rank:
        assert [float(interval.low), float(interval.high)] == [rank, count + 1 - rank]
        assert binom.cdf(rank - 1, count, 0.5) <= TAIL < binom.cdf(rank, count, 0.5)
    else:
        assert [float(interval.low), float(interval.high)] == [-np.inf, np.inf]


def test_intervals_of_a_median_miss_as_often_as_the_binomial_distribution_says():
    """Of 4000 skew samples of 12 the interval of two standard errors misses P(B <= 2) = 1.9 % on each side."""
    x = xr.DataArray(np.random.default_rng(0).lognormal(0, 2, (4000, 12)), dims=("draw", "seed"))
    interval = intervals.median(x, sigmas=2.0)
    expected = 4000 * binom.cdf(2, 12, 0.5)
    for misses in ((interval.low > 1).sum(), (interval.high < 1).sum()):
        assert float(misses) == pytest.approx(expected, abs=3 * expected**0.5)


@pytest.mark.parametrize("dims", [("tau", "seed"), ("seed", "tau")])
def test_medians_leave_out_what_is_missing_along_any_axis(dims):
    x = xr.DataArray(np.random.default_rng(1).normal(size=(3, 16)), dims=("tau", "seed"))
    x[1, :5] = np.nan
    interval = intervals.median(x.transpose(*dims))
    alone = intervals.median(seeds(x[1, 5:].values))
    for name in ("value", "low", "high"):
        assert getattr(interval, name).dims == ("tau",)
        assert float(getattr(interval, name)[1]) == float(getattr(alone, name))
    assert float(interval.low[0]) == np.sort(x[0])[1]


def test_a_censored_time_is_its_length_below_and_endless_above():
    times, observed = np.r_[np.arange(1.0, 13), [13.0] * 8], np.arange(20) < 12
    order = np.random.default_rng(2).permutation(20)
    interval = intervals.median(seeds(times[order]), seeds(observed[order]))
    assert [float(interval.value), float(interval.low), float(interval.high)] == [10.5, 4.0, np.inf]
    interval = intervals.median(seeds(times[order]), seeds((np.arange(20) < 18)[order]))
    assert float(interval.high) == 13.0
    none = intervals.median(seeds(times), seeds(np.zeros(20)))
    assert [float(none.low), float(none.high)] == [4.0, np.inf]
    with pytest.raises(InputError, match="observed"):
        intervals.median(seeds(times).expand_dims(tau=2), seeds(observed))


@pytest.mark.parametrize("horizon", [1.0, 2.0, 5.0])
def test_medians_of_censored_times_cover_the_true_one(horizon):
    """Of 4000 samples of exponential times with median 1, at most the tails of two standard errors miss, each side."""
    times = np.random.default_rng(3).exponential(1 / np.log(2), (4000, 15))
    observed = times < horizon
    cut = xr.DataArray(np.minimum(times, horizon), dims=("draw", "seed"))
    interval = intervals.median(cut, cut.copy(data=observed), sigmas=2.0)
    most = 4000 * binom.cdf(3, 15, 0.5)
    for misses in ((interval.low > 1).sum(), (interval.high < 1).sum()):
        assert float(misses) <= most + 3 * most**0.5
    np.testing.assert_array_equal(interval.low, np.sort(cut)[:, 3])


def test_a_ratio_lies_between_the_ratios_of_the_limits():
    a, b = intervals.median(seeds(np.arange(20.0, 40))), intervals.median(seeds(np.arange(1.0, 21)))
    ratio = a / b
    assert float(ratio.value) == 29.5 / 10.5
    assert [float(ratio.low), float(ratio.high)] == [23 / 17, 36 / 4]
    few = intervals.median(seeds(np.arange(1.0, 6)))
    assert [float((few / b).low), float((few / b).high)] == [0.0, np.inf]
    assert [float((b / few).low), float((b / few).high)] == [0.0, np.inf]


@pytest.mark.parametrize("count", [10, 24, 48])
def test_fractions_have_the_limits_at_which_the_tails_are_those_of_three_standard_errors(count):
    for hits in range(count + 1):
        interval = intervals.fraction(seeds(np.arange(count) < hits))
        low, high = float(interval.low), float(interval.high)
        assert float(interval.value) == hits / count
        assert low == 0 if hits == 0 else binom.sf(hits - 1, count, low) == pytest.approx(TAIL, rel=1e-3)
        assert high == 1 if hits == count else binom.cdf(hits, count, high) == pytest.approx(TAIL, rel=1e-3)


def test_fractions_are_of_those_that_are_present():
    members = xr.DataArray([[1.0, 0.0, np.nan, np.nan], [1.0, 1.0, 1.0, 0.0]], dims=("kind", "seed"))
    interval = intervals.fraction(members)
    assert interval.value.values.tolist() == [0.5, 0.75]
    assert float(interval.low[0]) == float(intervals.fraction(seeds([True, False])).low)


def test_checks_compare_the_limit_on_the_side_of_the_bound():
    """A skew interval: 10.5 from 4 to 17."""
    interval = intervals.median(seeds(np.arange(1.0, 21)))
    for check, bound, outcome in [
        (checks.above, 3.9, Outcome.HOLDS),
        (checks.above, 4.1, Outcome.UNDECIDED),
        (checks.above, 16.9, Outcome.UNDECIDED),
        (checks.above, 17.1, Outcome.FAILS),
        (checks.below, 17.1, Outcome.HOLDS),
        (checks.below, 16.9, Outcome.UNDECIDED),
        (checks.below, 3.9, Outcome.FAILS),
    ]:
        (finding,) = check("m", "median", interval, bound)
        assert finding.outcome is outcome, (check, bound)
    skew = intervals.Interval(*(xr.DataArray(v) for v in (1.0, 0.8, 3.0, 0.8, 3.0)))
    for target, margin, outcome in [
        (1.0, 2.1, "holds"),
        (2.0, 1.3, "holds"),
        (1.0, 1.9, "undecided"),
        (0.2, 0.5, "fails"),
        (3.5, 0.4, "fails"),
    ]:
        (finding,) = checks.near("m", "median", skew, target, margin=margin)
        assert finding.outcome.value == outcome, (target, margin)
    for target, largest, outcome in [
        (2.9, 1.0, "holds"),
        (3.1, 1.0, "fails"),
        (0.7, 1.0, "fails"),
        (0.9, 0.5, "undecided"),
    ]:
        (finding,) = checks.agrees("m", "median", skew, target, largest_error=largest)
        assert finding.outcome.value == outcome, (target, largest)


def test_findings_of_intervals_are_finite_numbers():
    """A median without an upper limit has the error of its lower side."""
    interval = intervals.median(seeds(np.arange(1.0, 21)), seeds(np.arange(20) < 5))
    (finding,) = checks.above("m", "median", interval, 2.0)
    assert finding.outcome is Outcome.HOLDS
    assert [finding.measured, finding.tolerance] == [10.5, 6.5]
    assert finding.standard_error == pytest.approx(6.5 / 3)
