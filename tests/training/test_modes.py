"""The mode is timed where there is a choice, and stands in the header."""

import jax
import optax
import pytest
from training.predictors import prompts, slope, task

import icllab as icl
from icllab.training.modes import timed


def test_both_modes_are_timed_and_the_faster_is_taken():
    start = icl.ensemble(slope, seeds=2, key=jax.random.key(0))
    header = icl.fit(
        start, task(), data=prompts(9), steps=3, key=jax.random.key(1), batch=4, optimizer=optax.sgd(0.1)
    ).header
    seconds = {mode: found["seconds_per_step"] for mode, found in header["timings"].items()}
    assert set(seconds) == {"map", "vmap"}
    assert header["mode"] == min(seconds, key=seconds.get)
    assert all(found["seconds_to_compile"] > 0 for found in header["timings"].values())


def test_one_member_leaves_no_choice():
    header = icl.fit(
        slope(key=jax.random.key(0)),
        task(),
        data=prompts(9),
        steps=3,
        key=jax.random.key(1),
        batch=4,
        optimizer=optax.sgd(0.1),
    ).header
    assert header["mode"] == "map"
    assert set(header["timings"]) == {"map"}


@pytest.mark.parametrize("cost", [1e-5, 2e-3])
def test_a_timing_divides_by_the_steps_it_took(monkeypatch, cost):
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def run(steps):
        clock[0] += 0.5 * (clock[0] == 0) + cost * steps

    step, compiling = timed(run, True)
    assert step == pytest.approx(cost)
    assert compiling == pytest.approx(0.5)
