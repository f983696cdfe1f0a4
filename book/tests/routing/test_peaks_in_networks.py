"""What is measured of networks, and the check on made-up peaks."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.routing import _small_transformers
from iclbook.claims.routing.peaks_in_networks import claim, measure
from icllab.lab.checks import Outcome

SIZES = {"symbols": 3, "length": 1, "width": 4, "layers": 1, "heads": 1, "zipf_exponent": 1.0}
POINT = SimpleNamespace(
    **SIZES, program=("a", "b", "c"), batch=16, resolution=1e-2, updates=140, every=5, step=(5, 140), seed=(0, 3)
)


@pytest.fixture(scope="module")
def runs():
    with jax.enable_x64(True):
        trained = measure.measure(POINT, key=jax.random.key(0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(measure, "OPTIMIZER", optax.sgd(0.0))
            return trained, measure.measure(POINT, key=jax.random.key(0))


def test_responses_are_of_each_program_to_itself_where_the_last_never_comes(runs):
    trained, still = runs
    (axes, losses), (_, own) = trained["program_loss"], trained["own_response"]
    assert axes == ("seed", "step", "program")
    assert losses.shape == own.shape == (2, 2, 3)
    np.testing.assert_array_equal(still["program_loss"][1][:, 0], still["program_loss"][1][:, 1])
    with jax.enable_x64(True):
        _, family = _small_transformers.sample_family((3,), POINT, key=jax.random.fold_in(jax.random.key(0), 0))
        w, pi, prompts = family.weights[0], jnp.asarray([2 / 3, 1 / 3, 0]), family.prompts[0]
        seen = _small_transformers.seen(family, w[None], prompts, pi, jnp.asarray(1e-2))
    np.testing.assert_allclose(still["own_response"][1][1, 0], -np.diagonal(seen.response[0]), rtol=1e-9)
    # Two programs that are all the data there is: more of one is less of the other.
    np.testing.assert_allclose(np.asarray(seen.response[0])[:, :2] @ np.array([2.0, 1.0]), 0, atol=1e-9)
    assert (losses[:, 1, :2].mean(1) < losses[:, 0, :2].mean(1)).all()
    assert not still["peaked"][1].any()


def planted(monkeypatch, how=None, laws=None):
    """Curves of 200 records: losses that halve at 500, responses with tops at 200, 300 and 400, and one without."""
    t, laws = 5.0 * np.arange(1, 201), [] if laws is None else laws
    fall = 2 * np.log(3) / (1 + 3 * (t[:, None] / 500) ** 4) * np.ones(3)
    tops = np.exp(-2 * np.abs(np.log(t[:, None] / np.array([200.0, 300.0, 400.0]))))
    tops[:, 2] = 1 + t / 100
    small = SimpleNamespace(
        sample_family=lambda seeds, point, *, key: (None, SimpleNamespace(prompts=[0, 1])),
        Batches=SimpleNamespace(from_frequencies=lambda law, *args, **how: laws.append(law[0])),
        descended=lambda family, batches, *, optimizer, every: [None, None],
        seen=lambda *args: SimpleNamespace(losses=fall, response=-tops[:, :, None] * np.eye(3)),
    )
    monkeypatch.setattr(measure, "_small_transformers", small)
    point = SimpleNamespace(**vars(POINT) | {"updates": 1000, "step": (5, 300)})
    return measure.measure(point, key=jax.random.key(0), **(how or {})), fall, tops


def test_peaks_and_times_are_those_of_the_curves(monkeypatch):
    found, fall, tops = planted(monkeypatch)
    np.testing.assert_array_equal(found["peaked"][1], [[True, True, False]] * 2)
    np.testing.assert_allclose(found["peak_time"][1][:, :2], [[200, 300]] * 2, atol=10)
    np.testing.assert_allclose(found["transition_time"][1], 500, rtol=0.02)
    np.testing.assert_allclose(found["own_response"][1][0], tops[[0, 59]])
    np.testing.assert_allclose(found["program_loss"][1][1], fall[[0, 59]])


def test_controls_change_what_they_say(monkeypatch):
    squared, fall, tops = planted(monkeypatch, {"squared": True})
    np.testing.assert_allclose(squared["own_response"][1][0], fall[[0, 59]] ** 2)
    assert not squared["peaked"][1].any()
    laws = []
    planted(monkeypatch, laws=laws)
    np.testing.assert_allclose(laws[0], np.array([2, 1, 0]) / 3)
    moved, *_ = planted(monkeypatch, {"misplaced": True})
    np.testing.assert_allclose(moved["own_response"][1][0], np.roll(tops, 1, axis=1)[[0, 0]])
    np.testing.assert_allclose(moved["peak_time"][1][:, 1:], [[600, 700]] * 2, atol=10)
    np.testing.assert_array_equal(moved["peaked"][1][:, 1:], True)
    assert (moved["peak_time"][1][:, 1:] > moved["transition_time"][1][:, 1:]).all()


def made_up(peaks=0.9, before=0.95, absent=0.0, learned=1.0, seeds=48):
    """Programs that peak in such a share of networks, before T in such a share."""
    i = np.arange(seeds)
    shape = (1, seeds, len(claim.PROGRAMS))
    rows = {name: np.zeros(shape) for name in ("peaked", "peak_time", "transitioned", "transition_time")}
    d, e = claim.PROGRAMS.index(claim.RAREST), claim.PROGRAMS.index(claim.ABSENT)
    rows["peaked"][0, :, d], rows["peaked"][0, :, e] = i < peaks * seeds, i < absent * seeds
    rows["peak_time"][:], rows["transition_time"][:] = 200.0, 300.0
    rows["transition_time"][0, i >= before * peaks * seeds, d] = 100.0
    rows["transitioned"][0, i < learned * seeds, d] = 1.0
    rows["transition_time"][0, i >= learned * seeds, d] = np.nan
    coords = {"layers": [1], "seed": i, "program": list(claim.PROGRAMS)}
    return xr.Dataset({name: (("layers", "seed", "program"), row) for name, row in rows.items()}, coords=coords)


_, failing, outcome = judged(claim.check)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert failing(made_up(peaks=0.1)) == ["peaks"]
    assert failing(made_up(before=0.1)) == ["before"]
    assert failing(made_up(absent=0.9)) == ["absent"]
    assert outcome(made_up(learned=0.8)) is Outcome.UNDECIDED
    assert outcome(made_up(peaks=0.6)) is Outcome.UNDECIDED


def test_a_frequency_among_some_counts_those_alone():
    events = xr.DataArray([True, True, False, False], dims="seed")
    found = claim.frequency(events, xr.DataArray([True, True, True, False], dims="seed"))
    np.testing.assert_allclose(float(found.value), 3 / 5)
    np.testing.assert_allclose(float(found.error), (0.6 * 0.4 / 6) ** 0.5)
    np.testing.assert_allclose(float(claim.frequency(events).value), 3 / 6)


def test_a_record_keeps_the_curves_of_one_seed():
    rows = {name: (("seed", "step"), np.ones((3, 2))) for name in ("program_loss", "own_response")}
    kept = claim.reduce(xr.Dataset(rows | {"rise": ("seed", np.ones(3))}, coords={"seed": [7, 8, 9]}))
    assert int(kept["own_response"].notnull().sum()) == 2
    assert bool(kept["own_response"].sel(seed=7).notnull().all())
    assert kept["rise"].notnull().all()


def test_medium_has_seeds_of_its_own():
    assert min(claim.claim.sizes["small"]["seed"]) >= claim.claim.sizes["medium"]["seed"].count
