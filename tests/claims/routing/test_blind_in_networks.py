"""Runs that differ in nothing but their data, what is seen of them, and the check on made-up series."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from icllab.claims.routing import _detection
from icllab.claims.routing.blind_in_networks import claim, measure
from icllab.lab.checks import Outcome

SIZES = {
    "symbols": 3,
    "length": 1,
    "width": 2,
    "layers": 1,
    "heads": 1,
    "zipf_exponent": 1.0,
    "noise": 0.2,
    "last": 0.3,
}
POINT = SimpleNamespace(
    **SIZES,
    program="abc",
    batch=8,
    resolution=1e-2,
    tilts=3,
    kind=claim.KINDS,
    step=(5, 10, 15, 20, 25, 30),
    seed=(0, 2),
)


@pytest.fixture(scope="module")
def runs():
    with jax.enable_x64(True):
        return [measure.measure(POINT, key=jax.random.key(0), silent=silent) for silent in (False, True)]


def test_frequencies_are_a_power_law_and_one_that_begins():
    law = np.array([2, 1, 0]) / 3
    found = measure.frequencies(POINT, "planted", 12.5)
    np.testing.assert_allclose(found[:13], np.tile(law, (13, 1)))
    np.testing.assert_allclose(found[13:], np.tile([*(0.7 * law[:2]), 0.3], (17, 1)))
    np.testing.assert_allclose(measure.frequencies(POINT, "never", 12.5), np.tile(law, (30, 1)))
    np.testing.assert_allclose(measure.frequencies(POINT, "start", 12.5)[0], [*(0.7 * law[:2]), 0.3])


def test_runs_are_the_same_until_the_data_begin(runs):
    found, silent = runs
    assert found["monitored"][0] == ("kind", "seed", "step", "detector")
    (planted, never, start), (onset, *others) = found["monitored"][1], found["onset"][1]
    steps = np.array(POINT.step)
    for i, seed_onset in enumerate(onset):
        assert 9 <= seed_onset <= 18
        before = steps <= np.ceil(seed_onset)
        np.testing.assert_array_equal(planted[i, before], never[i, before])
        assert (planted[i, ~before] != never[i, ~before]).all()
    assert all(np.array_equal(onset, one) for one in others)
    assert (start[:, 0] != never[:, 0]).all()
    np.testing.assert_array_equal(silent["monitored"][1][0], never)


def test_onsets_are_uniform_between_three_and_six_tenths_of_the_run(monkeypatch):
    """And the same for every kind of run of a seed."""
    untrained = SimpleNamespace(
        sample_family=lambda *args, **how: (None, None),
        Batches=SimpleNamespace(from_frequencies=lambda *args, **how: None),
        descended=lambda family, batches, **how: batches,
    )
    monkeypatch.setattr(measure, "_small_transformers", untrained)
    monkeypatch.setattr(measure, "monitored", lambda *args: np.zeros(1))
    point = SimpleNamespace(**{**vars(POINT), "seed": tuple(range(900))})
    shares = measure.measure(point, key=jax.random.key(0))["onset"][1] / point.step[-1]
    np.testing.assert_array_equal(shares, shares[:1].repeat(3, axis=0))
    sorted_ = np.sort(shares[0])
    distance = np.abs(sorted_ - np.linspace(0.3, 0.6, 900)).max() / 0.3  # Kolmogorov's, to 1/900
    assert distance < 2 / 900**0.5  # exceeded with a probability of 2 exp(-8)


def test_the_size_of_responses_is_over_tilts(monkeypatch):
    """Of the mean loss to a mixture of tilts: the mixture of its responses to each program alone."""
    response, losses = np.arange(9.0).reshape(1, 3, 3), np.array([[1.0, 2.0, 6.0]])
    seen = SimpleNamespace(response=response, losses=losses, dimension=np.array([7.0]))
    monkeypatch.setattr(measure._small_transformers, "seen", lambda *args: seen)
    tilts = np.array([[1.0, 0, 0], [0, 0.5, 0.5]])
    found = measure.monitored(POINT, SimpleNamespace(prompts=[None]), None, 0, tilts)
    np.testing.assert_allclose(found, [[3, 7, np.sqrt((3**2 + 4.5**2) / 2)]])


def made_up(rises=(0.5, 0.0, 0.5), seeds=64, wrong=0.0, kinds=claim.KINDS):
    """Noise of one per cent; after an onset the detectors' logarithms rise by so much."""
    rng, steps = np.random.default_rng(0), np.arange(50.0, 3001, 50)
    logs = 0.01 * rng.normal(size=(len(kinds), seeds, len(steps), 3))
    onset = np.broadcast_to(rng.uniform(900, 1800, seeds), (len(kinds), seeds))
    logs[0] += (steps >= onset[0, :, None])[..., None] * np.array(rises)
    some = np.arange(seeds) % 2 * (np.arange(seeds) < wrong * seeds) > 0  # of those that set no threshold
    logs[1:, some] += (steps >= 1500)[:, None]
    coords = {"kind": list(kinds), "seed": np.arange(seeds), "step": steps, "detector": list(_detection.DETECTORS)}
    rows = {"monitored": (("kind", "seed", "step", "detector"), np.exp(logs)), "onset": (("kind", "seed"), onset)}
    return claim.theory(xr.Dataset(rows, coords=coords))


_, failing, outcome = judged(claim.check)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert failing(made_up(rises=(0.0, 0.0, 0.5))) == ["beats[detector=loss]"]
    assert set(failing(made_up(rises=(0.5, 0.0, 0.0)))) == {"stands_out", "beats[detector=response]"}
    assert failing(made_up(rises=(0.5, 0.5, 0.5))) == ["beats_not[detector=dimension]"]
    assert "beats[detector=response]" in failing(made_up(wrong=1.0))
