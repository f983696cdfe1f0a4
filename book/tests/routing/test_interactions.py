"""What is measured of programs together and alone at a size of seconds, and the check on made-up losses."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.routing import _transformers
from iclbook.claims.routing.interactions import claim
from iclbook.claims.routing.interactions.measure import measure
from icllab.lab.checks import Outcome

SIZES = {"symbols": 3, "length": 1, "width": 4, "heads": 1, "batch": 8, "prompts": 4, "zipf_exponent": 1.0}
POINT = SimpleNamespace(**SIZES, layers=1, program=("a", "b"), training=("together", "alone"), step=(0, 3), seed=(0,))


@pytest.fixture(scope="module")
def runs():
    """What is measured, and the weights of programs of every run, with and without others."""
    counted, trained = [], _transformers.train

    def kept(task, network, point, **how):
        counted.append(task)
        return trained(task, network, point, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_transformers, "train", kept)
        found = [measure(POINT, key=jax.random.key(0), apart=apart)["program_loss"] for apart in (False, True)]
    return found, counted


def test_every_program_counts_alone_once_and_all_count_together(runs):
    _, counted = runs
    weights = [task.weights.tolist() for task in counted]
    assert weights == [[1, 0], [0, 1], [1, 1], [1, 0], [0, 1]]
    for task in counted:
        assert not np.any(task.task.turns)
        np.testing.assert_allclose(task.task.frequencies, [2 / 3, 1 / 3], rtol=1e-6)


def test_losses_are_the_programs_own(runs):
    ((dims, losses), (_, apart)), _ = runs
    assert dims == ("seed", "training", "program", "step")
    assert losses.shape == (1, 2, 2, 2)
    np.testing.assert_allclose(losses[:, 0, :, 0], losses[:, 1, :, 0], rtol=1e-6)
    assert np.abs(losses[:, 0] - losses[:, 1])[..., 1].min() > 1e-6
    np.testing.assert_array_equal(apart[:, 0], apart[:, 1])
    np.testing.assert_allclose(apart[:, 1], losses[:, 1], rtol=1e-5)


def test_alike_every_program_does_what_the_first_does(monkeypatch):
    counted, trained = [], _transformers.train

    def kept(task, network, point, **how):
        counted.append(task.task)
        return trained(task, network, point, **how)

    monkeypatch.setattr(_transformers, "train", kept)
    for alike in (False, True):
        measure(POINT, key=jax.random.key(0), alike=alike)
    plain, same = counted[0], counted[-1]
    np.testing.assert_array_equal(same.tables, np.tile(plain.tables[:1], (2, 1)))
    assert not np.array_equal(plain.tables, same.tables)


def made_up(ratio=4.0, spread=0.2, censored=0, programs=claim.PROGRAMS, seeds=10):
    """Logistic losses: alone at 60 steps with a spread between seeds, beside others later by a ratio."""
    rng = np.random.default_rng(0)
    alone = 60 * np.exp(spread * rng.normal(size=(seeds, len(programs))))
    together = ratio * alone * np.exp(0.1 * rng.normal(size=alone.shape))
    together[:censored] = 1e6
    halves = np.stack([together, alone], axis=1)
    losses = np.log(5) / (1 + (np.array(claim.STEPS) / halves[..., None]) ** 6)
    dims = ("layers", "seed", "training", "program", "step")
    coords = {"layers": [2], "seed": range(seeds), "training": [claim.TOGETHER, claim.ALONE]}
    coords |= {"program": list(programs), "step": list(claim.STEPS)}
    attrs = {"configuration": json.dumps({"fixed": {"symbols": 5}})}
    found = xr.Dataset({"program_loss": (dims, losses[None])}, coords=coords, attrs=attrs)
    return claim.theory(found.sortby("training"))  # as results are


outcomes, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_ratios_are_of_times_together_over_alone():
    found = made_up(ratio=3.0)
    np.testing.assert_allclose(np.exp(np.log(found["time_ratio"]).mean("seed")), 3, rtol=0.1)
    # One that is not learned beside others is later than the last step.
    late = made_up(censored=1)
    alone = late["transition_time"].sel(training=claim.ALONE, seed=0)
    np.testing.assert_allclose(late["time_ratio"].sel(seed=0), claim.STEPS[-1] / alone)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert outcome(made_up(censored=2)) is Outcome.HOLDS
    assert names(made_up(ratio=0.5)) == {"later", "beyond_spread"}
    assert names(made_up(ratio=1.3, spread=1.0)) == {"beyond_spread"}
    assert names(made_up(ratio=1.0)) >= {"beyond_spread"}
