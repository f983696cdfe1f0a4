"""What is particular to this claim: its check on made-up breaks and coefficients, and what a descent is measured by."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.singular import _ranks as ranks
from iclbook.claims.singular.llc_along_training import claim, measure
from icllab.lab.checks import Outcome

SEEDS = 10
PLANTED = np.array([200.0, 385.0, 790.0])
KNOWN = np.array([4.9106, 6.0, 6.9106, 7.5])


def made_up(moved=1.0, spurious=0, missed=0, rise=1.0, scatter=0.02, warned=0.0):
    """Breaks at ``moved`` times the planted steps but in some runs; coefficients of the strata, their rise scaled."""
    rng = np.random.default_rng(0)
    intervals = np.full((1, SEEDS, claim.BREAKS, 2), np.nan)
    intervals[0, :, : claim.RANKS] = moved * PLANTED[:, None] * np.array([0.97, 1.03])
    intervals[0, :spurious, 3] = [2500.0, 2600.0]
    intervals[0, :missed, 2] = np.nan
    rank = np.array([0, 1, 2, 3, 3])
    coefficient = KNOWN[0] + rise * (KNOWN[rank] - KNOWN[0]) + scatter * rng.normal(size=(1, SEEDS, 5))
    dims = ("chains", "seed")
    dataset = xr.Dataset(
        {
            "exact_loss": ((*dims, "step"), np.ones((1, SEEDS, len(claim.STEPS)))),
            "break_interval": ((*dims, "change", "side"), intervals),
            "planted_step": ((*dims, "jump"), np.broadcast_to(PLANTED, (1, SEEDS, 3))),
            "learning_coefficient": ((*dims, "checkpoint"), coefficient),
            "learning_coefficient_error": ((*dims, "checkpoint"), np.full(coefficient.shape, scatter)),
            "sampler_warnings": ((*dims, "checkpoint"), np.full(coefficient.shape, warned)),
        },
        coords={"chains": [8], "step": list(claim.STEPS), "checkpoint": list(claim.CHECKPOINTS), "jump": [0, 1, 2]},
        attrs={"configuration": json.dumps({"fixed": {"dim": 4, "nbeta": 72382.0}})},
    )
    return claim.theory(dataset)


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_it_holds_where_all_is_as_claimed():
    np.testing.assert_allclose(made_up()["rank_coefficient"], KNOWN, atol=1e-4)
    assert outcome(made_up()) is Outcome.HOLDS
    assert outcome(made_up(spurious=1)) is not Outcome.FAILS
    assert outcome(made_up(spurious=5)) is Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"moved": 1.2}, {"breaks"}),
        ({"spurious": SEEDS}, {"breaks"}),
        ({"rise": 0.3}, {"step"}),
        ({"rise": -1.0}, {"step"}),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert names(made_up(**changes)) == found


def test_a_missed_break_counts_and_leaves_no_rise():
    dataset = made_up(missed=SEEDS)
    assert "breaks" in names(dataset)
    assert np.isnan(claim.rises(dataset).sel(jump=2)).all()
    assert not np.isnan(claim.rises(dataset).sel(jump=1)).any()


def test_a_break_that_is_reported_twice_counts():
    dataset = made_up()
    twice = dataset["break_interval"].copy()
    twice[..., 3, :] = twice[..., 2, :].values * 1.01
    assert names(dataset.assign(break_interval=twice)) == {"breaks"}


def test_many_warnings_leave_it_undecided():
    assert outcome(made_up(warned=1.0)) is Outcome.UNDECIDED


def test_a_rise_is_from_the_last_checkpoint_before_to_the_first_after():
    dataset = made_up(scatter=0.0)
    np.testing.assert_allclose(claim.rises(dataset).isel(chains=0, seed=0), np.diff(KNOWN), atol=1e-6)
    late = dataset.assign(break_interval=dataset["break_interval"] * np.where(np.arange(4) == 0, 1.4, 1.0)[:, None])
    # An interval beyond the checkpoint at 266 leaves the first rise between that and the one at 546.
    np.testing.assert_allclose(claim.rises(late).isel(chains=0, seed=0, jump=0), KNOWN[2] - KNOWN[1], atol=1e-6)


def test_a_descent_is_measured_at_its_records_and_every_seed_has_keys_of_its_own(monkeypatch):
    """Losses halve at known steps; chains, breaks and starts have different keys."""
    keys, seen = [], []

    def noted(key):
        keys.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))

    def descend(machine, start):
        levels, _ = machine.plateau_losses(claim.RANKS)
        jumps = np.array([30, 60, 110])
        losses = np.repeat(levels, np.diff([0, *jumps, 1000]))
        return {"queries": jnp.arange(1000.0), "keys": jnp.arange(1000.0)}, losses

    def found(curve, *, key, max_breaks):
        noted(key)
        seen.append(curve.values[0])
        rows = {
            "change_interval": (("change", "side"), [[1.0, 2.0], [3.0, 4.0]]),
            "reported": ("change", [False, True]),
        }
        return xr.Dataset(rows)

    def estimated(posterior, *, key, **options):
        noted(key)
        seen.append(float(posterior.at["keys"]))
        return xr.Dataset({"estimate": 1.0, "mcse": 0.1, "rhat": 1.0}, attrs={"warnings": []})

    def small(key, dim, width, start):
        noted(key)
        return start

    monkeypatch.setattr(measure.ranks, "descend", descend)
    monkeypatch.setattr(measure.ranks, "small_weights", small)
    monkeypatch.setattr(measure.ranks.Machine, "__call__", lambda self, w: jnp.zeros(1))
    monkeypatch.setattr(measure, "change_points", found)
    monkeypatch.setattr(measure, "coefficient_at_temperature", estimated)
    point = SimpleNamespace(dim=4, length=2, start=1e-12, step=(70, 700, 6993), checkpoint=(70, 6993), seed=(0, 1))
    point = SimpleNamespace(**vars(point), nbeta=1e4, chains=4, warm_up=10)
    values = measure.measure(point, key=jax.random.key(0))
    assert len(set(keys)) == len(keys) == 8
    levels = np.asarray(ranks.Machine.init(4, 2, measure.SIZES).plateau_losses(3)[0])
    np.testing.assert_allclose(seen[0], levels[[0, 2, 3]])
    assert seen[1:3] == [10, 999]
    np.testing.assert_array_equal(values["planted_step"][1][0], [210, 420, 770])
    np.testing.assert_array_equal(values["break_interval"][1][0, 0], [3, 4])
    assert np.isnan(values["break_interval"][1][0, 1:]).all()
    seen.clear()
    backwards = measure.measure(point, key=jax.random.key(0), backwards=True)
    np.testing.assert_allclose(backwards["exact_loss"][1][0], levels[[0, 2, 3]])
    assert seen[1:3] == [989, 0]
