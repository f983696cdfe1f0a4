"""Planted cliffs are found where they are; smooth curves and shuffled ones have nothing to report."""

import inspect

import jax
import numpy as np
import pytest
import xarray as xr
from scipy.signal import lfilter
from scipy.stats import binom

from icllab.core.errors import InputError
from icllab.diagnostics import change_points
from icllab.diagnostics.curves.breakpoints import BreakRule, _block_bootstrap
from icllab.diagnostics.curves.curve_fits import Segments

STEPS = np.unique(np.geomspace(1, 1e4, 70).round())


def curve(values, steps=STEPS):
    """Members of a curve."""
    return xr.DataArray(np.atleast_2d(values), dims=("member", "step"), coords={"step": steps})


def noise(seed, size, members=1):
    return size * np.random.default_rng(seed).normal(size=(members, len(STEPS)))


def correlated(seed, rho, size):
    """Of neighbouring records, stationary from the first on."""
    values = noise(seed, size)
    values[:, 1:] *= (1 - rho**2) ** 0.5
    return lfilter([1.0], [1.0, -rho], values, axis=1)


def cliff(at, width=0.01):
    """A fall from 1 to 0, of so many decades between 10 and 90 per cent."""
    return 1 / (1 + np.exp(np.clip(2 * np.log(9) * (np.log10(STEPS) - np.log10(at)) / width, -50, 50)))


def test_a_cliff_is_reported_where_it_is_with_its_height():
    result = change_points(curve(0.3 + cliff(300) - 0.1 * np.log10(STEPS) + noise(0, 0.03, 4)), resamples=100)
    assert result["reported"].values.tolist() == [True]
    low, high = result["change_interval"].values[0]
    assert low <= 300 <= high < 1.5 * low
    assert low < float(result["change_point"][0]) < high
    assert abs(float(result["jump"][0]) + 1) < 5 * result.attrs["noise"] / len(STEPS) ** 0.5
    assert result["reason"].values.tolist() == ["its place is known, and no smooth curve does as well"]
    assert float(result["smooth_bic"]) > float(result["bic"].min()) + 10
    assert result.attrs["smooth_chance"] == pytest.approx(1 / 101)  # none of a hundred simulated curves


def test_a_straight_line_is_a_smooth_curve_that_breaks_do_not_beat():
    result = change_points(curve(0.3 - 0.1 * np.log10(STEPS) + noise(0, 0.03, 4)), resamples=100)
    assert result.attrs["smooth_chance"] == 1
    assert float(result["smooth_bic"]) < float(result["bic"][1:].min())


def test_slopes_jump_and_noise_are_those_of_the_lines_that_were_drawn():
    """Two lines that break at 300: a slope of -0.1 in log t before it and +0.2 after, 2 lower there."""
    x, after = np.log(STEPS), STEPS >= 300
    line = -0.1 * x + after * (0.3 * (x - np.log(300)) - 2)
    result = change_points(curve(line + noise(2, 0.05)), resamples=100)
    assert result["reported"].values.tolist() == [True]
    assert float(result["slope_change"][0]) == pytest.approx(0.3, abs=0.05)
    assert float(result["jump"][0]) == pytest.approx(-2, abs=0.1)
    assert result.attrs["noise"] == pytest.approx(0.05, rel=0.3)


def test_a_fall_in_half_a_decade_has_a_beginning_and_an_end():
    result = change_points(curve(cliff(300, width=0.5) + noise(0, 0.01)), resamples=100)
    places = result["change_point"].values[result["reported"].values]
    assert places[0] < 300 < places[-1]
    assert places[-1] < 30 * places[0]


SMOOTH = {
    "power law": STEPS**-0.5,
    "slow power law": STEPS**-0.1,
    "steep power law": STEPS**-1.5,
    "late power law": (1 + STEPS / 200) ** -0.8,
    "exponential": np.exp(-STEPS / 300),
    "a fall of more than a decade": cliff(300, width=1.3),
    "logarithm": np.log(STEPS),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_a_smooth_curve_has_nothing_to_report(name):
    """However little noise there is, so that segments fit well."""
    for size in (0.1, 0.001):
        scale = np.ptp(SMOOTH[name])
        result = change_points(curve(0.2 + SMOOTH[name] + scale * noise(1, size, 3)), resamples=100)
        assert not result["reported"].any()
        assert all("without a break" in str(reason) for reason in result["reason"].values)


@pytest.mark.parametrize("key", range(4))
def test_shuffled_checkpoints_have_nothing_to_report(key):
    """The same order for all members: their mean has a pattern, which other members would have too."""
    values = STEPS**-0.5 + noise(key, 0.03, 5)
    shuffled = values[:, np.random.default_rng(key).permutation(len(STEPS))]
    assert not change_points(curve(shuffled), resamples=120, key=key)["reported"].any()


def test_smooth_curves_with_correlated_noise_have_nothing_to_report():
    """Segments follow its slow part. A random walk is nothing but that."""
    power = STEPS**-0.5
    result = [change_points(curve(power + correlated(key, 0.7, 0.05)), resamples=100, key=key) for key in range(8)]
    assert sum(bool(item["reported"].any()) for item in result) == 0
    rho = [item.attrs["autocorrelation"] for item in result]
    assert np.std(rho, ddof=1) / 8**0.5 < 0.1
    assert abs(np.mean(rho) - 0.7) < 3 * np.std(rho, ddof=1) / 8**0.5
    walks = [change_points(curve(np.cumsum(noise(key, 1.0))), resamples=100, key=key) for key in range(8)]
    assert sum(bool(item["reported"].any()) for item in walks) == 0
    assert any("with noise of its autocorrelation" in str(item["reason"].values[:1]) for item in (*result, *walks))


def test_a_cliff_is_found_in_correlated_noise():
    for key in range(4):
        result = change_points(curve(cliff(300) + correlated(key, 0.5, 0.05)), resamples=100, key=key)
        intervals = result["change_interval"].values[result["reported"].values]
        assert any(low <= 300 <= high for low, high in intervals)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.5, 0.7])
def test_of_many_smooth_curves_with_correlated_noise_few_have_something_to_report(rho):
    """At most three in a hundred: of 100, more than 8 would have a chance of less than one in two hundred."""
    wrong = 0
    for key in range(100):
        result = change_points(curve(STEPS**-0.5 + correlated(key, rho, 0.05)), resamples=100, key=key)
        wrong += bool(result["reported"].any())
    assert binom.sf(8, 100, 0.03) < 0.005
    assert wrong <= 8


@pytest.mark.slow
def test_of_many_smooth_and_shuffled_curves_hardly_any_has_something_to_report():
    """At most one in a hundred: of 200, more than 6 would have a chance of less than one in two hundred."""
    wrong = 0
    for key in range(200):
        rng = np.random.default_rng(key)
        power = STEPS ** -rng.uniform(0.1, 1.5) + noise(key, 10 ** rng.uniform(-3, -1), 3)
        if key % 2:
            power = rng.permuted(power[:1], axis=1) if key % 4 == 1 else power[:, rng.permutation(len(STEPS))]
        wrong += int(change_points(curve(power), resamples=120, key=key)["reported"].any())
    assert binom.sf(6, 200, 0.01) < 0.005
    assert wrong <= 6


@pytest.mark.slow
def test_intervals_cover_a_planted_cliff_as_often_as_they_say():
    """Of 200 cliffs, each found; 95 per cent intervals have the place in at least 90 per cent."""
    coverage, found_any = 0, 0
    for key in range(200):
        rng = np.random.default_rng(key)
        at = 10 ** rng.uniform(1, 3)
        result = change_points(curve(cliff(at) + noise(key, 0.2)), resamples=100, key=key)
        intervals = result["change_interval"].values[result["reported"].values]
        found_any += bool(len(intervals))
        coverage += any(low <= at <= high for low, high in intervals)
    assert found_any >= 190
    assert coverage >= 0.9 * found_any


def test_a_break_of_unknown_place_is_not_reported():
    """A slope that changes by little: where, could be anywhere within a decade."""
    bend = np.maximum(np.log10(STEPS) - 2, 0)
    result = change_points(curve(0.5 * bend + noise(3, 0.25)), resamples=100)
    assert not result["reported"].any()
    sharp = change_points(curve(2 * bend + noise(3, 0.01)), resamples=100)
    ratio = np.divide(*sharp["change_interval"].values[0][::-1])
    assert sharp["reported"].any()
    assert ratio < 3


def test_members_whose_cliffs_are_elsewhere_widen_the_interval():
    late = np.stack([cliff(at) for at in np.geomspace(30, 3000, 9)]) + noise(0, 0.01, 9)
    equal = np.stack([cliff(300)] * 9) + noise(0, 0.01, 9)
    spread, sharp = (change_points(curve(values), resamples=100) for values in (late, equal))
    assert not spread["reported"].any()
    assert sharp["reported"].values.tolist() == [True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 0.9}, r"^change_points: confidence= is now rule=BreakRule\(confidence=...\)$"),
        (
            {"scale": "linear"},
            r"^change_points: scale= is gone: segments are straight in the logarithm of the step$",
        ),
        ({"resamples": 3}, r"^resamples: expected an integer of at least 100, got 3$"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        change_points(curve(cliff(300)), **options)


def test_a_rule_is_of_numbers_in_range():
    for options, message in (
        ({"confidence": 1.0}, "confidence: expected a number between 0 and 1, got 1.0"),
        ({"widest": 1.0}, "widest: expected a ratio above 1, got 1.0"),
    ):
        with pytest.raises(InputError, match=f"^{message}$"):
            BreakRule(**options)


def test_a_rule_decides_which_breaks_are_reported_and_how_wide_their_intervals_are():
    values = curve(cliff(300) + noise(0, 0.03, 4))
    usual = change_points(values, resamples=100)
    strict = change_points(values, resamples=100, rule=BreakRule(widest=1.01))
    assert usual["reported"].any()
    assert not strict["reported"].any()
    noisy = curve(cliff(300) + noise(0, 0.2))
    tables = [change_points(noisy, resamples=100, max_breaks=1, rule=BreakRule(confidence=c)) for c in (0.01, 0.95)]
    widths = [float(np.log(table["change_interval"]).diff("bound").sum()) for table in tables]
    assert 0 < widths[0] < widths[1]


def test_a_short_curve_is_refused():
    with pytest.raises(InputError, match=r"^curve: expected at least 12 steps that are recorded .*, got 5$"):
        change_points(curve(np.ones(6), np.arange(6.0)))


def test_resampled_noise_has_the_variance_without_bias():
    """RSS / (T - 3K - 2), of each record, over the curves whose breaks are looked for; within four standard errors."""

    class Noted(Segments):
        def breaks(self, v, k):
            records.append(v)
            return super().breaks(v, k)

    records, rng, x = [], np.random.default_rng(0), np.linspace(0, 3, 20)
    segments = Noted(x, 1, 0.0)
    fit = segments.fits(np.where(x < 1.5, 0.0, 8.0) + rng.normal(size=20))[1]
    _block_bootstrap(fit, rng, 2000, segments)
    square = np.mean((np.array(records) - fit.values) ** 2, axis=1)
    error = square.std(ddof=1) / len(square) ** 0.5
    target = np.sum(fit.residuals**2) / (20 - 3 - 2)
    assert error < 0.02 * target
    assert abs(square.mean() - target) < 4 * error


def test_a_key_is_a_seed_or_one_of_jax():
    value = curve(cliff(300) + noise(0, 0.03, 4))
    item, equal, second = (change_points(value, resamples=100, key=jax.random.key(seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(item["change_interval"], equal["change_interval"])
    assert item["reported"].values.tolist() == second["reported"].values.tolist() == [True]
    for wrong, message in (
        ("a", "key: expected an integer of at least 0, got 'a'"),
        (-1, "key: expected an integer of at least 0, got -1"),
        (jax.random.split(jax.random.key(0)), "key: expected one random key of JAX"),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            inspect.unwrap(change_points)(value, resamples=100, key=wrong)
