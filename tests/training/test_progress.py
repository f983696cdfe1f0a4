"""The progress of a training: on stderr where asked for, and silent where nobody looks."""

import jax
import optax
import pytest
from training.predictors import prompts, slope, task

import icllab as icl
from icllab.training import Record

OPTIONS = {"steps": 2, "batch": 4, "optimizer": optax.sgd(0.1)}


def fit(**options):
    return icl.fit(slope(key=jax.random.key(0)), task(), data=prompts(9), key=jax.random.key(1), **OPTIONS, **options)


@pytest.mark.parametrize("options", [{}, {"progress": False}, {"progress": False, "record": Record(progress=True)}])
def test_silent_without_a_terminal(capfd, options):
    fit(**options)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("options", [{"progress": True}, {"record": Record(progress=True)}])
def test_steps_and_loss_where_they_are_asked_for(capfd, options):
    fit(**options)
    out, err = capfd.readouterr()
    assert out == ""
    assert "2 of 2 steps" in err
    assert "loss " in err


def test_the_progress_of_an_ensemble_counts_its_members(capfd):
    members = icl.ensemble(slope, seeds=3, key=jax.random.key(0))
    icl.fit(members, task(), data=prompts(9), key=jax.random.key(1), progress=True, **OPTIONS)
    assert "3 of 3 members" in capfd.readouterr().err
