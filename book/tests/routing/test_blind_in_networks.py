"""Runs that differ in nothing but their data, what is seen of them, and the controls."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.routing.blind_in_networks import claim, measure
from icllab.lab.checks import Outcome

SIZES = {"symbols": 3, "length": 1, "width": 2, "layers": 1, "heads": 1, "zipf_exponent": 1.0, "noise": 0.2}
POINT = SimpleNamespace(
    **SIZES,
    program="abc",
    batch=8,
    resolution=1e-2,
    last=0.3,
    kind=("never", "start", "0.4"),
    updates=30,
    every=5,
    seed=(0, 3),
    rule=claim.RULES,
    level=(2.0,),
)


@pytest.fixture(scope="module")
def runs():
    """Series and batches of every kind of run, and those under two controls; [kind, seed, record, series]."""
    worlds = []
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        of_batches, batches = measure.monitored, []
        patch.setattr(measure, "monitored", lambda *args: batches.append(args[2]) or of_batches(*args))
        patch.setattr(measure, "first_passages", lambda rows, point: rows)
        for how in ({}, {"noisier": 0.9}):
            batches.clear()
            found = measure.measure(POINT, key=jax.random.key(0), **how)
            worlds.append((found["first_passage"][1], found["onset"][1], list(batches)))
    return worlds


def test_frequencies_are_a_power_law_and_one_that_begins():
    law = np.array([2, 1, 0]) / 3
    found = measure.frequencies(POINT, "0.4", 12.5)
    np.testing.assert_allclose(found[:13], np.tile(law, (13, 1)))
    np.testing.assert_allclose(found[13:], np.tile([*(0.6 * law[:2]), 0.4], (17, 1)))
    np.testing.assert_allclose(measure.frequencies(POINT, "never", 12.5), np.tile(law, (30, 1)))
    np.testing.assert_allclose(measure.frequencies(POINT, "start", 12.5), np.tile([*(0.7 * law[:2]), 0.3], (30, 1)))


def test_runs_are_the_same_until_the_data_begin(runs):
    (never, start, planted), onset, _ = runs[0]
    assert never.shape == (2, 6, 3)
    ends = POINT.every * np.arange(1, 7)
    for i, seed_onset in enumerate(onset[0]):
        assert 9 <= seed_onset <= 18
        before = ends <= np.ceil(seed_onset)
        np.testing.assert_array_equal(planted[i, before], never[i, before])
        assert (planted[i, ends >= seed_onset + 5] != never[i, ends >= seed_onset + 5]).all()
    assert (onset == onset[:1]).all()
    assert (start[:, 0] != never[:, 0]).all()


def test_a_series_is_of_the_batches_since_the_last_record(runs):
    """Loss, gradient and response in this order, against those of the path and its batches."""
    rows, _, batches = runs[0]
    with jax.enable_x64(True):
        of_networks = jax.random.fold_in(jax.random.key(0), 0)
        _, family = measure._small_transformers.sample_family(POINT.seed, POINT, key=of_networks)
        path = measure._small_transformers.descent(family, batches[0], optimizer=measure.OPTIMIZER, every=5)
        sizes = measure._small_transformers.response_sizes(
            family, path.weights[1], family.prompts[1], batches[0][1], jax.numpy.asarray(1e-2)
        )
    np.testing.assert_allclose(rows[0, :, :, 0], path.loss)
    np.testing.assert_allclose(rows[0, :, :, 1], path.slope)
    np.testing.assert_allclose(rows[0, 1, :, 2], sizes)


def test_controls_change_what_they_say(runs):
    (plain, _, batches), (noisier, onset, noisy) = runs
    np.testing.assert_array_equal(noisier[:, 0], plain[:, 0])  # the even seed, which sets thresholds
    late = np.arange(30) >= onset[0, 1]
    for kind in range(3):
        before, after = (np.asarray(rows[kind][1].wrong) for rows in (batches, noisy))
        np.testing.assert_array_equal(before[~late], after[~late])
        assert (after[late] >= 0).mean() > 0.8


def test_onsets_are_uniform_between_three_and_six_tenths_of_the_run(monkeypatch):
    untrained = SimpleNamespace(
        sample_family=lambda *args, **how: (None, SimpleNamespace(symbols=3)),
        Batches=SimpleNamespace(from_frequencies=lambda *args, **how: None),
    )
    monkeypatch.setattr(measure, "_small_transformers", untrained)
    monkeypatch.setattr(measure, "replaced", lambda batches, *args: batches)
    monkeypatch.setattr(measure, "monitored", lambda point, family, batches: np.ones((len(batches), 6, 3)))
    point = SimpleNamespace(**{**vars(POINT), "seed": tuple(range(900))})
    shares = measure.measure(point, key=jax.random.key(0))["onset"][1] / point.updates
    np.testing.assert_array_equal(shares, shares[:1].repeat(3, axis=0))
    distance = np.abs(np.sort(shares[0]) - np.linspace(0.3, 0.6, 900)).max() / 0.3  # Kolmogorov's, to 1/900
    assert distance < 2 / 900**0.5  # exceeded with a probability of 2 exp(-8)


def test_rules_are_those_of_the_cell_and_listen_after_the_quiet_part():
    rows = np.ones((1, 20, 3))
    rows[0, [3, 12], 0] = 2.0
    rows[0, 14, 1] = 0.5
    point = SimpleNamespace(rule=("rise", "score"), level=(2.0, 13.0, 14.0), every=10)
    found = measure.first_passages(rows, point)
    assert found.shape == (1, 3, 2, 3)
    np.testing.assert_array_equal(found[0, 0, 0], [130, 130, np.nan])  # ln 2 is 13.9 units of a rise
    np.testing.assert_array_equal(found[0, 0, 1], [130, 130, 130])
    np.testing.assert_array_equal(found[0, 1, 0], [160, np.nan, np.nan])  # a fall is no rise, the way back is one
    np.testing.assert_array_equal(found[0, 1, 1], [150, 150, 150])


def made_up(loss=1.0, others=0.0, false=0.0):
    """Judged runs in which a share of alarms is as given, for each series and rule."""
    judged, axes = np.arange(60), ("share", "judged", "series", "rule")
    shares = np.array([[others, loss], [others, others], [others, others]])
    hit = (judged[:, None, None] < 60 * shares)[None] * np.ones((1, 1, 1, 1))
    coords = {"share": [0.5], "judged": judged, "series": ["loss", "gradient", "response"], "rule": ["score", "rise"]}
    alarm = (judged < 60 * false)[:, None, None] * np.ones((60, 3, 2))
    return xr.Dataset({"hit": (axes, hit), "false_alarm": (axes[1:], alarm)}, coords)


_, failing, outcome = judged(claim.check)


def test_the_loss_has_to_find_and_the_others_to_miss():
    assert outcome(made_up()) is Outcome.HOLDS
    assert {name.partition("[")[0] for name in failing(made_up(loss=0.5))} == {"finds"}
    assert len(failing(made_up(others=0.9))) == 4
    assert len(failing(made_up(false=0.6))) == 6
