"""Limits of curves that are known: from exact free energies with noise, and none where there is none."""

import math

import numpy as np
import pytest

from icllab.diagnostics.singular.extrapolation import KINDS, extrapolated

LOG_T = np.linspace(math.log(72_382) - 2.5 * math.log(10), math.log(72_382), 13)
STEP, LOW, HIGH = 0.02, -200.0, 30.0
CROSSINGS = [(1,), (2,), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (1, 1, 1), (1, 1, 2), (1, 2, 3)]


def free_energy(powers):
    r"""-log E[exp(-t prod w_i^{2k_i})] of standard normal w, from the density of the logarithm of the product."""
    y = LOW + STEP * np.arange(round((HIGH - LOW) / STEP))
    density = None
    for k in powers:
        w = np.exp(np.clip(y / (2 * k), -300, 5))
        one = STEP * np.sqrt(2 / np.pi) * np.exp(-(w**2) / 2) * w / (2 * k)
        if density is None:
            density = one
        else:  # index i stands for LOW + i STEP: of two, for twice LOW
            both = np.fft.irfft(np.fft.rfft(density, 2 * len(y)) * np.fft.rfft(one, 2 * len(y)))
            first = round(-LOW / STEP)
            density = both[first : first + len(y)]
    return -np.log(np.exp(-np.exp(np.minimum(y + LOG_T[:, None], 6))) @ density)


def slopes_of(energy, noise, seed, repeats=16):
    """Repeats of the slopes between points, each interval with noise of its own."""
    found = np.diff(energy) / np.diff(LOG_T)
    return found + noise * math.sqrt(repeats) * np.random.default_rng(seed).normal(size=(repeats, len(found)))


@pytest.fixture(scope="module")
def crossings():
    """Powers, lambda, m and the free energy."""
    rows = []
    for powers in CROSSINGS:
        poles = [1 / (2 * k) for k in powers]
        rows.append((powers, min(poles), poles.count(min(poles)), free_energy(powers)))
    return rows


def test_the_free_energy_of_one_variable_is_that_of_a_quadratic(crossings):
    """K = w^2: (1 + 2t)^(-1/2)."""
    np.testing.assert_allclose(crossings[0][3], np.log1p(2 * np.exp(LOG_T)) / 2, atol=2e-5)


def test_intervals_hold_lambda_where_single_temperatures_do_not(crossings):
    """Of 40 curves with an error of 0.008 at each interval; the ends of the curves are mostly more than two below."""
    held, below, apart = [], [], []
    for powers, value, _, energy in crossings:
        for seed in range(4):
            found = extrapolated(LOG_T, slopes_of(energy, 0.008, seed), parameters=len(powers))
            held.append(found.interval[0] <= value <= found.interval[1])
            below.append(found.level + 2 * found.level_error < value)
            apart.append((found.value - value) / found.error)
    assert np.mean(held) >= 0.9
    assert np.mean(below) > 0.5
    assert np.sqrt(np.mean(np.square(apart))) < 1.3


def test_a_settled_curve_has_its_level_for_a_limit():
    """Where the error is small so is that of the limit, and little of it is left to be gone."""
    found = extrapolated(LOG_T, slopes_of(1.7 * LOG_T, 1e-3, 0), parameters=5)
    assert found.value == pytest.approx(1.7, abs=3 * found.error)
    assert found.error < 0.02
    assert abs(found.left) < 0.01
    for seed in range(4):
        noisy = extrapolated(LOG_T, slopes_of(1.7 * LOG_T, 0.005, seed), parameters=5)
        assert np.ptp(noisy.interval) < 15 * noisy.level_error
    assert found.multiplicities[0] > 0.9
    assert found.misfit > 0.01


@pytest.mark.parametrize("m", [2, 3])
def test_a_multiplicity_is_allowed_for(m):
    """F = 2 log t - (m-1) log(log t + 1): the limit is 2 and lies (m-1)/(log t + 1) above the end."""
    energy = 2 * LOG_T - (m - 1) * np.log(LOG_T + 1)
    found = extrapolated(LOG_T, slopes_of(energy, 1e-3, 1), parameters=6)
    assert found.interval[0] < 2 < found.interval[1]
    assert found.error < 0.05 * m
    assert found.left == pytest.approx((m - 1) / (LOG_T[-1] + 1), abs=0.03)
    assert found.level + found.left == pytest.approx(found.value, abs=0.01)
    assert found.level == pytest.approx(2 - (m - 1) / (LOG_T[-1] + 1), abs=0.005)
    assert found.multiplicities.sum() == pytest.approx(1)
    assert abs(2 + np.argmax(found.multiplicities[1:]) - m) <= 1


def test_a_pole_of_the_opposite_sign_is_a_way_up():
    """F = 0.6 log t - log(1 - t^-0.2): what is left is 0.2 / (t^0.2 - 1), by the expansion's own derivative."""
    energy = 0.6 * LOG_T - np.log1p(-np.exp(-0.2 * LOG_T))
    found = extrapolated(LOG_T, slopes_of(energy, 1e-3, 6), parameters=2)
    assert found.level == pytest.approx(0.6 - 0.2 / (np.exp(0.2 * LOG_T[-1]) - 1), abs=0.005)
    assert found.value == pytest.approx(0.6, abs=3 * found.error)
    assert found.error < 0.03
    assert found.level + found.left == pytest.approx(found.value, abs=0.01)


def test_the_level_is_that_of_the_last_point():
    """F = x^2 / 50, whose slope at the end is x / 25: not that of the last interval's middle."""
    found = extrapolated(LOG_T, slopes_of(LOG_T**2 / 50, 1e-7, 7), parameters=5)
    assert found.level == pytest.approx(LOG_T[-1] / 25, abs=1e-5)


def test_a_curve_from_above_goes_down():
    """F = 0.6 log t - log(1 + 3 t^-0.25): the second pole stands 0.25 behind, with the same sign."""
    energy = 0.6 * LOG_T - np.log1p(3 * np.exp(-0.25 * LOG_T))
    found = extrapolated(LOG_T, slopes_of(energy, 2e-3, 2), parameters=4)
    assert found.level > 0.63
    assert found.left < 0
    assert found.interval[0] < 0.6 < found.interval[1]


def test_no_more_than_half_the_parameters():
    found = extrapolated(LOG_T, slopes_of(1.52 * LOG_T, 0.005, 3), parameters=3)
    assert found.value == found.interval[1] == 1.5
    assert len(found.multiplicities) == 3


def test_a_curve_that_no_coefficient_has_is_told():
    """Curvatures over six decades: directions come into sight one after the other, and no pole does that."""
    energy = np.log1p(np.exp(LOG_T)[:, None] * np.geomspace(1e-6, 1, 12)).sum(1) / 2
    assert extrapolated(LOG_T, slopes_of(energy, 0.003, 4), parameters=12).misfit < 1e-3


def test_errors_are_those_of_repeats():
    """Twice the noise is twice the error of the level, and intervals are wider by more than half."""
    one, two = (extrapolated(LOG_T, slopes_of(1.7 * LOG_T, noise, 5), parameters=8) for noise in (0.01, 0.02))
    assert two.level_error == pytest.approx(2 * one.level_error, rel=0.1)
    assert np.ptp(two.interval) > 1.5 * np.ptp(one.interval)


def test_kinds_of_curves_have_probabilities():
    assert sum(KINDS) == pytest.approx(1, rel=1e-12)
    assert min(KINDS) > 0
