"""What is measured while one program joins others, at a size of seconds, and the check on made-up losses."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from icllab.claims.routing import _transformers
from icllab.claims.routing.daughters_in_the_whole import claim
from icllab.claims.routing.daughters_in_the_whole.measure import measure
from icllab.lab.checks import Outcome

SIZES = {"symbols": 3, "length": 1, "width": 4, "heads": 1, "batch": 8, "prompts": 200, "zipf_exponent": 1.0}
POINT = SimpleNamespace(**SIZES, layers=1, updates=2, together=2000, program=("a", "b"), step=(0, 2), seed=(0,))
PI = 1 / np.arange(1, 7) / np.sum(1 / np.arange(1, 7))


@pytest.fixture(scope="module")
def runs():
    """What is measured with the others learned before and without, and task, start and end of every run."""
    made, trained = [], _transformers.train

    def kept(task, network, point, **how):
        run = trained(task, network, point, **how)
        made.append((np.asarray(task.frequencies, float).round(4).tolist(), network, run))
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_transformers, "train", kept)
        found = [measure(POINT, key=jax.random.key(0), known=known) for known in (True, False)]
    return found, made


def test_the_others_are_learned_first_and_then_all(runs):
    _, made = runs
    assert [frequencies for frequencies, *_ in made] == [[1, 0], [0.6667, 0.3333], [0.6667, 0.3333]]

    def same(one, other):
        return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))

    (_, start, others), (_, joined, _), (_, plain, _) = made
    assert same(joined.readout, others.members.member(0).readout)
    assert same(plain.readout, start.readout)
    assert not same(joined.readout, start.readout)


def test_the_whole_is_the_mean_over_programs_as_often_as_they_come(runs):
    (known, _), _ = runs
    dims, losses = known["program_loss"]
    assert (dims, losses.shape) == (("seed", "program", "step"), (1, 2, 2))
    assert known["whole_loss"][0] == ("seed", "step")
    np.testing.assert_allclose(known["whole_loss"][1][0], np.array([2, 1]) / 3 @ losses[0], rtol=0.1)


def made_up(share=1.0, delay=1.1, others=0.02, first=0.001, unknown=0, seeds=9, programs=claim.PROGRAMS):
    """Logistic losses: the last program of half time 100; the whole's fall, time and the others' losses as given."""
    rng = np.random.default_rng(0)
    steps = np.array(claim.STEPS, float)
    noise = np.exp(0.02 * rng.normal(size=(seeds, 1)))
    own = np.log(5) / (1 + (steps / (100 * noise)) ** 4)
    losses = np.full((seeds, len(programs), len(steps)), first)
    losses[:, -1] = own
    losses[:unknown, :-1, 0] = 0.5
    pi = PI[: len(programs)] / PI[: len(programs)].sum()
    losses[:, :-1, 5] = others / (1 - pi[-1])
    whole = pi[-1] / share * np.log(5) / (1 + (steps / (delay * 100 * noise)) ** 4)
    dims = ("layers", "updates", "seed", "program", "step")
    coords = {"layers": [2], "updates": [1500], "seed": range(seeds), "program": list(programs), "step": steps}
    rows = {"program_loss": (dims, losses[None, None]), "whole_loss": (dims[:3] + dims[4:], whole[None, None])}
    attrs = {"configuration": json.dumps({"fixed": {"symbols": 5, "zipf_exponent": 1.0}})}
    return claim.theory(xr.Dataset(rows, coords=coords, attrs=attrs))


_, failing, outcome = judged(claim.check)


def test_numbers_are_those_that_the_curves_are_made_with():
    found = made_up(delay=1.2, others=0.03, first=0.0)
    np.testing.assert_allclose(found["share"], 1, atol=1e-3)
    np.testing.assert_allclose(found["time_ratio"], 1.2, rtol=2e-2)
    np.testing.assert_allclose(found["joining_time"], 100, rtol=0.1)
    np.testing.assert_allclose(found["others_most"], 0.03 / (PI[-1] * np.log(5)), rtol=1e-2)
    np.testing.assert_allclose(found["own_loss"].isel(step=0), PI[-1] * np.log(5), rtol=1e-4)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert failing(made_up(share=0.7, delay=0.9)) == ["share"]
    assert failing(made_up(delay=1.8)) == ["time"]
    assert failing(made_up(others=0.05)) == ["others"]


def test_networks_that_do_not_know_the_others_are_left_out():
    assert outcome(made_up(unknown=2)) is Outcome.HOLDS
    assert outcome(made_up(unknown=5)) is Outcome.UNDECIDED
