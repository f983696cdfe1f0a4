"""The race of memorising and the context: flows against sampled labels, closed forms against flows, the threshold."""

import numpy as np
import pytest
from scipy.special import expit

from icllab.core.errors import InputError
from icllab.theory import memorisation_race as race


def sampled(classes, pairs, match, value, *, time, rate=0.25, prompts=8_000):
    """Gradient descent on sampled labels of orthogonal items: logit of the table, value and match at the end."""
    rng, table = np.random.default_rng(0), 0.0
    for _ in range(round(time / rate)):
        others = 2 * rng.binomial(pairs - 1, 0.5, size=prompts) / (pairs - 1) - 1
        p = np.exp(match) / (np.exp(match) + pairs - 1)
        error = expit(-(table + value * (p + (1 - p) * others)))  # of labels turned so that the target is 1
        to_value = np.mean(error * (p + (1 - p) * others))
        to_match = np.mean(error * value * p * (1 - p) * (1 - others))
        to_table = np.mean(error) / classes
        value, match, table = value + rate * to_value, match + rate * to_match, table + rate * to_table
    return table, value, match


@pytest.mark.parametrize("classes", [20.0, 60.0])
def test_the_race_is_that_of_sampled_labels(classes):
    pairs, match, value, time = 32, 0.3, -0.2, 70.0
    path = race.table_race(classes, pairs, match, value, times=[0.0, time])
    want = sampled(classes, pairs, match, value, time=time)
    np.testing.assert_allclose([path.table[-1], path.value[-1], path.match[-1]], want, rtol=0.03)
    assert path.copy[0] == pytest.approx(value * np.exp(match) / (np.exp(match) + pairs - 1))


def test_the_noise_of_other_labels_turns_the_match_too():
    time, start = 8.0, {"match": 0.0, "value": 1.5}
    path = race.table_race(1e9, 12, start["match"], start["value"], times=[time])
    _, value, match = sampled(1e9, 12, start["match"], start["value"], time=time, prompts=40_000)
    assert path.match[0] - start["match"] == pytest.approx(match - start["match"], rel=0.03)
    assert path.value[0] - start["value"] == pytest.approx(value - start["value"], abs=0.01)


def test_the_noise_of_other_labels_speeds_up_a_table():
    path = race.table_race(5.0, 24, 3.0, 2.5, times=[1.0])
    table, _, _ = sampled(5.0, 24, 3.0, 2.5, time=1.0, rate=0.05, prompts=200_000)
    quiet = race.table_race(5.0, 10**6, 3.0 + np.log((10**6 - 1) / 23), 2.5, times=[1.0])  # as much attention
    assert path.table[0] == pytest.approx(table, rel=0.005)
    assert path.table[0] > 1.01 * quiet.table[0]


@pytest.mark.parametrize("pairs", [2, 3, 7])
def test_a_race_starts_with_the_right_hand_side_of_its_equations(pairs):
    """With two pairs N - 1 is 1: N in its place would halve the noise of the other labels."""
    classes, match, value, time = 3.0, 0.4, 1.7, 1e-4
    p = np.exp(match) / (np.exp(match) + pairs - 1)
    m = value * p  # the table is at zero
    slope = expit(m) * expit(-m)
    noise = (1 - p) ** 2 / (pairs - 1)
    table = (expit(-m) + noise * value**2 / 2 * slope * (expit(m) - expit(-m))) / classes
    values = p * expit(-m) - noise * value * slope
    matches = value * p * (1 - p) * (expit(-m) + (1 - p) / (pairs - 1) * value * slope)
    path = race.table_race(classes, pairs, match, value, times=[0.0, time])
    rates = [(part[-1] - part[0]) / time for part in (path.table, path.value, path.match)]
    np.testing.assert_allclose(rates, [table, values, matches], rtol=1e-4)


def test_the_time_of_the_context_is_that_of_a_race_with_nothing_to_memorise():
    time = race.context_time(24, 0.4, 0.1, logit=0.8)
    path = race.table_race(1e9, 24, 0.4, 0.1, times=[0.0, time])
    assert path.copy[-1] == pytest.approx(0.8, rel=1e-5)
    assert race.context_time(24, 3.0, 2.0, logit=0.5) == 0.0


def test_without_the_noise_of_labels_the_drive_has_its_closed_form():
    # w' = e^beta / N, beta' = w w' until both are large
    for match, value in ((0.0, 0.0), (0.5, -0.4), (-0.3, 0.8)):
        w = np.linspace(value, value + 12, 200_001)
        want = np.trapezoid(np.exp(-(match + (w**2 - value**2) / 2)), w)
        assert race.drive_per_pair(match, value) == pytest.approx(want, rel=1e-6)
    pairs = 100_000  # the noise costs a part that does not shrink with N
    assert race.context_time(pairs) / 2 / pairs == pytest.approx(1.37, abs=0.005)
    assert race.drive_per_pair() == pytest.approx(1.253, abs=0.0005)
    assert race.context_time(2 * pairs) / race.context_time(pairs) == pytest.approx(2, rel=1e-3)


def test_a_table_alone():
    classes, loss = 7.0, 0.05
    time, drive = race.table_memorising(classes, loss=loss)
    times = np.linspace(0, time, 4001)
    phi = race.table_race(classes, 10**9, -30.0, 0.0, times=times).table
    assert np.log1p(np.exp(-phi[-1])) == pytest.approx(loss, rel=1e-4)
    assert np.trapezoid(expit(-phi), times) == pytest.approx(drive, rel=1e-4)
    assert race.table_memorising(2 * classes, loss=loss).time == pytest.approx(2 * time)


def test_the_threshold_of_a_table():
    pairs = 64
    classes = race.table_threshold(pairs, time=40.0 * pairs)
    few, many = (race.table_race(f * classes, pairs, times=[40.0 * pairs]) for f in (0.7, 1.4))
    assert few.copy[-1] < 0.1 * few.table[-1]
    assert many.table[-1] < 0.8 * many.copy[-1]
    at = race.table_race(classes, pairs, times=[40.0 * pairs])
    assert at.copy[-1] == pytest.approx(at.table[-1], rel=1e-4)


def test_the_threshold_of_a_power_law():
    law = {"prefactor": 0.3, "exponent": 0.8}
    threshold = race.threshold_classes(12.0, **law)
    assert 0.3 * threshold**0.8 == pytest.approx(12.0)
    assert race.threshold_classes(24.0, **law) / threshold == pytest.approx(2 ** (1 / 0.8))


def test_arguments_are_refused():
    with pytest.raises(InputError, match="pairs"):
        race.context_time(1)
    with pytest.raises(InputError, match="loss"):
        race.table_memorising(3.0, loss=0.8)
    with pytest.raises(InputError, match="times"):
        race.table_race(3.0, 4, times=[1.0, 1.0])
    with pytest.raises(InputError, match="exponent"):
        race.threshold_classes(1.0, prefactor=1.0, exponent=0.0)
