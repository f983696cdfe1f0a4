"""Smooth curves that are known are found, and so is the correlation of the noise about them."""

import numpy as np
import pytest
from scipy.signal import lfilter

from icllab.diagnostics.curves.segments import Segments
from icllab.diagnostics.curves.smooth_curves import SmoothCurves

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
