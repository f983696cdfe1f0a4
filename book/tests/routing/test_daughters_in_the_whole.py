"""What is measured while one program joins others, at a size of seconds, and the check on made-up losses."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.routing import _transformers
from iclbook.claims.routing.daughters_in_the_whole import claim
from iclbook.claims.routing.daughters_in_the_whole.measure import measure
from icllab.lab.checks import Outcome

SIZES = {"symbols": 3, "length": 1, "width": 4, "heads": 1, "batch": 8, "prompts": 200, "zipf_exponent": 1.0}
KINDS = ("together", "alone", "fresh")
POINT = SimpleNamespace(
    **SIZES, layers=1, updates=2, together=2000, program=("a", "b"), step=(0, 2), training=KINDS, seed=(0,)
)
PI = 1 / np.arange(1, 7) / np.sum(1 / np.arange(1, 7))


@pytest.fixture(scope="module")
def runs():
    """What is measured, and task, start, end and keys of every run; taught and not."""
    made, trained = [], _transformers.train

    def kept(task, network, point, **how):
        run = trained(task, network, point, **how)
        made.append((task, network, run, how))
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_transformers, "train", kept)
        found = [measure(POINT, key=jax.random.key(0), taught=taught) for taught in (True, False)]
    return found, made


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def test_the_program_joins_the_same_weights_together_and_alone(runs):
    _, made = runs
    (others, start, earlier, _), together, alone, fresh = made[:4]
    np.testing.assert_allclose(others.frequencies, [1, 0])
    mother = earlier.members.member(0)
    for (counted, network, *_), weights, begins in ((together, [1, 1], mother), (alone, [0, 1], mother)):
        np.testing.assert_allclose(counted.weights, weights)
        np.testing.assert_allclose(counted.task.frequencies, [2 / 3, 1 / 3], rtol=1e-6)
        assert same(network.readout, begins.readout)
    assert same(fresh[1].readout, start.readout)
    assert not same(mother.readout, start.readout)
    np.testing.assert_allclose(fresh[0].weights, [0, 1])
    keys = [jax.random.key_data(how["key"]).tolist() for *_, how in (together, alone, fresh)]
    assert keys[0] == keys[1] == keys[2]
    assert jax.random.key_data(made[0][3]["key"]).tolist() not in keys


def test_the_untaught_network_is_another_one_that_has_learned_nothing(runs):
    _, made = runs
    (_, start, earlier, _), together, alone, fresh = made[4:]
    assert same(together[1].readout, earlier.members.member(0).readout)
    assert same(fresh[1].readout, start.readout)
    assert not same(alone[1].readout, start.readout)
    assert not same(alone[1].readout, together[1].readout)


def test_the_whole_is_the_mean_over_programs_as_often_as_they_come(runs):
    (taught, _), _ = runs
    dims, losses = taught["program_loss"]
    assert (dims, losses.shape) == (("seed", "training", "program", "step"), (1, 3, 2, 2))
    dims, whole = taught["whole_loss"]
    assert dims == ("seed", "training", "step")
    np.testing.assert_allclose(whole[0], np.einsum("c,kcs->ks", np.array([2, 1]) / 3, losses[0]), rtol=0.1)


def made_up(delay=1.2, sooner=0.4, first=0.001, unknown=0, spread=0.3, seeds=72):
    """Logistic losses: times of the whole and of fresh networks relative to the program alone, half at 100."""
    rng = np.random.default_rng(0)
    steps, alone = np.array(claim.STEPS, float), 100 * np.exp(spread * rng.normal(size=(seeds, 1)))
    times = {"together": delay * alone, "alone": alone, "fresh": alone / sooner}
    losses = np.full((seeds, 3, 6, len(steps)), first)
    losses[:unknown, 0, :-1, 0] = 0.5
    times["together"][:unknown] *= 5  # which would fail
    times["fresh"][:unknown] /= 50
    for i, kind in enumerate(KINDS):
        losses[:, i, -1] = np.log(5) / (1 + (steps / times[kind]) ** 4)
    whole = losses[:, :, -1] * PI[-1]
    dims = ("layers", "updates", "seed", "training", "program", "step")
    coords = {"layers": [2], "updates": [1500], "seed": range(seeds), "training": list(KINDS)}
    coords |= {"program": list(claim.PROGRAMS), "step": steps}
    rows = {"program_loss": (dims, losses[None, None]), "whole_loss": (dims[:4] + dims[5:], whole[None, None])}
    attrs = {"configuration": json.dumps({"fixed": {"symbols": 5, "zipf_exponent": 1.0}})}
    return claim.theory(xr.Dataset(rows, coords=coords, attrs=attrs))


_, failing, outcome = judged(claim.check)


def test_numbers_are_those_that_the_curves_are_made_with():
    found = made_up(delay=1.3, sooner=0.5, first=0.0, spread=0.0)
    np.testing.assert_allclose(found["alone_time"], 100, rtol=1e-2)
    np.testing.assert_allclose(found["time_ratio"], 1.3, rtol=2e-2)
    np.testing.assert_allclose(found["fresh_ratio"], 0.5, rtol=2e-2)
    np.testing.assert_allclose(found["own_loss"].isel(step=0), PI[-1] * np.log(5), rtol=1e-4)
    np.testing.assert_allclose(made_up(first=0.01)["others_loss"], 0.01 * (1 - PI[-1]), rtol=1e-4)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert failing(made_up(delay=1.8)) == failing(made_up(delay=0.5)) == ["time"]
    assert failing(made_up(sooner=1.0)) == ["sooner"]


def test_networks_that_do_not_know_the_others_are_left_out():
    assert outcome(made_up(unknown=48)) is Outcome.HOLDS
    assert outcome(made_up(unknown=49)) is Outcome.UNDECIDED
