"""What is measured of programs at a size of seconds, and the check on made-up losses."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from first_updates import adam_rate
from judging import judged

from iclbook.claims.routing import _transformers
from iclbook.claims.routing.one_by_one import claim
from iclbook.claims.routing.one_by_one.measure import measure
from icllab.lab.checks import Outcome
from icllab.tasks import StringPrograms

SIZES = {"symbols": 3, "length": 2, "width": 4, "heads": 1, "batch": 8, "prompts": 4, "zipf_exponent": 1.0}
POINT = SimpleNamespace(**SIZES, layers=1, program=("a", "b", "ba"), step=(0, 2), seed=(0, 1))
FIXED = {"symbols": 5, "zipf_exponent": 1.0}


def test_losses_are_those_of_the_programs_before_and_after_training(monkeypatch):
    tasks, optimizers, trained = [], [], _transformers.train

    def kept(task, network, point, **how):
        tasks.append(task)
        optimizers.append(how["optimizer"])
        return trained(task, network, point, **how)

    monkeypatch.setattr(_transformers, "train", kept)
    (dims, losses), (_, reversed_losses) = (
        measure(POINT, key=jax.random.key(0), **how)["program_loss"] for how in ({}, {"reversed": True})
    )
    assert all(isinstance(task, StringPrograms) for task in tasks)
    assert dims == ("seed", "program", "step")
    assert losses.shape == (2, 3, 2)
    np.testing.assert_allclose(reversed_losses[:, :, 0], losses[:, :, 0], rtol=1e-5)
    assert np.abs(reversed_losses - losses)[:, :, 1].min() > 1e-6
    assert [adam_rate(one) for one in optimizers] == pytest.approx([0.003] * 4, rel=1e-4)
    for task, wanted in zip(tasks, [[6, 3, 2]] * 2 + [[2, 3, 6]] * 2, strict=True):
        np.testing.assert_allclose(task.frequencies, np.array(wanted) / 11, rtol=1e-5)
        assert task.programs == ((0,), (1,), (1, 0))
        assert task.lengths == (2,)


def made_up(slope=-0.5, seeds=8, last=claim.STEPS[-1], width=32, missed=0):
    """Logistic losses; programs at 60 steps times frequency to the slope."""
    rng = np.random.default_rng(0)
    steps = np.array([step for step in claim.STEPS if step <= last])
    frequency = dict(zip(claim.PROGRAMS, 1 / np.arange(1, 13) / np.sum(1 / np.arange(1, 13)), strict=True))
    times = {name: 60 * frequency[name] ** slope * np.exp(0.1 * rng.normal(size=seeds)) for name in claim.PROGRAMS}
    halves = np.array([times[name] for name in claim.PROGRAMS]).T
    halves[:missed, 10] = 1e6
    losses = np.log(5) / (1 + (steps / halves[..., None]) ** 6)
    dims = ("width", "seed", "program", "step")
    coords = {"width": [width], "seed": range(seeds), "program": list(claim.PROGRAMS), "step": steps}
    attrs = {"configuration": json.dumps({"fixed": FIXED})}
    found = xr.Dataset({"program_loss": (dims, losses[None])}, coords=coords, attrs=attrs)
    return claim.theory(found.sortby("program"))  # as results are


outcomes, failing, outcome = judged(claim.check)


def test_frequencies_are_those_of_the_ranks():
    found = made_up().sel(program=list(claim.PROGRAMS))
    np.testing.assert_allclose(found["frequency"] / found["frequency"][0], 1 / np.arange(1, 13))
    assert float(found["frequency"].sum()) == pytest.approx(1)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert set(failing(made_up(slope=0.3))) == {"order[width=32]", "later[width=32]"}
    assert set(failing(made_up(slope=-1.4))) == {"less_than_in_proportion[width=32]"}


def test_a_program_that_is_not_learned_is_censored_and_does_not_decide():
    """One in 96 leaves the verdict; three are too many for the lower end of the interval, though not for the share."""
    assert outcome(made_up(missed=1)) is Outcome.HOLDS
    assert outcomes(made_up(missed=3))["learned"] is Outcome.UNDECIDED
    assert outcomes(made_up(missed=8))["learned"] is Outcome.UNDECIDED


def test_rare_programs_count_less_where_they_are_discounted(monkeypatch):
    """The loss of a program is multiplied by the power of its frequency over the largest."""
    tasks, trained = [], _transformers.train

    def kept(task, network, point, **how):
        tasks.append(task)
        return trained(task, network, point, **how)

    monkeypatch.setattr(_transformers, "train", kept)
    measure(POINT, key=jax.random.key(0), discount=2.0)
    for task in tasks:
        np.testing.assert_allclose(task.weights, [1, 1 / 4, 1 / 9], rtol=1e-5)
