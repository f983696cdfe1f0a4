"""Piecewise linear fits against all cuts, smooth fits of given curves, and the correlation of their noise."""

import itertools

import numpy as np
import pytest
from scipy.signal import lfilter

from icllab.diagnostics.curves.curve_fits import PER_SEGMENT, Segments, SmoothCurves, bic

T = np.geomspace(1, 1e4, 60)
X = np.log(T)


def noise(rho, seed, scale=0.01):
    samples = np.random.default_rng(seed).normal(size=T.size)
    samples[1:] *= np.sqrt(1 - rho**2)
    return scale * lfilter([1.0], [1.0, -rho], samples)


@pytest.mark.parametrize(
    ("name", "curve"),
    [
        ("a polynomial of degree 1", 2 - 0.3 * X),
        ("a polynomial of degree 3", 0.01 * (X - 2) * (X - 5) * (X - 8)),
        ("a power law", 1 + 2 / (1 + (T / 100) ** 0.7)),
        ("an exponential", 1 + 2 * np.exp(-((T / 300) ** 0.5))),
    ],
)
def test_a_smooth_curve_is_itself(name, curve):
    """The floor is ten times the noise: what is left of that decides nothing."""
    result = SmoothCurves(X, T, 10.0, 0.01).best(curve + noise(0.0, 0, 0.001))
    assert result.name == name
    np.testing.assert_allclose(result.residuals, 0, atol=0.005)
    np.testing.assert_allclose(result.values + result.residuals, curve + noise(0.0, 0, 0.001), atol=1e-12)


def test_a_fall_that_is_too_steep_is_not_smooth():
    """Of 10 to 90 per cent within half a decade; the curve is no power law of that steepness if widest is ten."""
    curve = 1 / (1 + (T / 100) ** (2 * np.log(9) / np.log(10**0.5)))
    strict, loose = (SmoothCurves(X, T, widest, 1e-4).best(curve) for widest in (10.0, 3.0))
    assert loose.name == "a power law"
    assert np.abs(loose.residuals).max() < 1e-3
    assert np.abs(strict.residuals).max() > 0.02


@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_the_correlation_of_the_noise(rho):
    """The mean over 20 curves, to within 0.15: what a fit takes of the noise is allowed for."""
    smooth_curves, segments = SmoothCurves(X, T, 10.0, 1e-4), Segments(X, 3, 1e-4)
    rng, result = np.random.default_rng(0), []
    for seed in range(20):
        curve = 2 - 0.3 * X + noise(rho, seed)
        estimate, chance = smooth_curves.chance(smooth_curves.best(curve), segments, curve, 1, 0.0, rng, 100)
        assert chance == 1  # breaks do not lead
        result.append(estimate)
    assert abs(np.mean(result) - rho) < 0.15


def residual_sum(x, v, breaks):
    ends = (0, *breaks, len(v))
    return sum(np.polyfit(x[a:b], v[a:b], 1, full=True)[1].sum() for a, b in itertools.pairwise(ends))


def all_cuts(count, breaks):
    for part in itertools.combinations(range(1, count), breaks):
        if min(np.diff((0, *part, count))) >= PER_SEGMENT:
            yield part


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_cuts_are_the_best_of_all(seed):
    """Of 16 records with up to three breaks: 286 cuts at most, each fitted by itself."""
    rng = np.random.default_rng(seed)
    x, v = np.sort(rng.uniform(0, 5, 16)), rng.normal(size=16) + 1e3
    left, result = Segments(x, 3, 0.0).cuts(v)
    for count in range(4):
        best = min(all_cuts(16, count), key=lambda part: residual_sum(x, v, part))
        assert result[count] == best
        assert left[count] == pytest.approx(residual_sum(x, v, best), rel=1e-6)


def test_a_fit_is_its_lines_and_a_jump_is_between_them():
    """Two lines without noise: levels 1 and 5, slopes 2 and -1, from the ninth of 20 records on."""
    x = np.linspace(0, 3, 20)
    v = np.where(np.arange(20) < 8, 1 + 2 * x, 5 - x)
    segments = Segments(x, 2, 1e-3)
    fit = segments.fits(v)[1]
    assert fit.breaks == (8,) == segments.breaks(v, 1)
    np.testing.assert_allclose(fit.lines, [(1, 2), (5, -1)], rtol=1e-9)
    np.testing.assert_allclose(fit.values, v, rtol=1e-12)
    middle = (x[7] + x[8]) / 2
    assert fit.jump(x, 0) == pytest.approx(5 - middle - 1 - 2 * middle, rel=1e-9)


def test_the_criterion_is_that_of_what_is_left():
    x, v = np.linspace(0, 1, 20), np.random.default_rng(0).normal(size=20)
    segments = Segments(x, 2, 0.1)
    result = [bic(fit.residuals, 3 * k + 2, 0.1) for k, fit in enumerate(segments.fits(v))]
    np.testing.assert_allclose([segments.criterion(v, k) for k in range(3)], result, rtol=1e-9)
    assert segments.gain(v) == pytest.approx(result[0] - min(result), abs=1e-9)
    mean = np.mean(segments.fits(v)[0].residuals ** 2)
    assert result[0] == pytest.approx(20 * np.log(mean + 0.01) + 2 * np.log(20), rel=1e-12)
