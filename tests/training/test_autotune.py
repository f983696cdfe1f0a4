"""The mode is timed where there is a choice, and stands in the header."""

import jax
import numpy as np
import optax
import pytest
from training.predictors import Rooted, prompts, slope, task

import icllab as icl
from icllab.core.errors import EnvironmentFault
from icllab.training import Sweep, train_loop
from icllab.training.autotune import timed

WITHOUT_MEMORY = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")


@pytest.fixture
def memory(monkeypatch):
    """A device that has memory for so many members side by side, 0 to begin with; it counts what it was given."""
    room, given = [0], []
    advanced = train_loop.advanced

    def limited(program, mode, own, state, first, last, limit):
        given.append(limit.shape[0])
        if limit.shape[0] > room[0]:
            raise WITHOUT_MEMORY
        return advanced(program, mode, own, state, first, last, limit)

    monkeypatch.setattr(train_loop, "advanced", limited)
    return room, given


def five(steps, mode="vmap", **how):
    """Five members, of which the last stops being a number."""
    start = icl.ensemble(
        lambda *, key, shift: Rooted(shift), seeds=1, key=jax.random.key(0), shift=[1.0, 3.0, 4.0, 2.0, 0.0]
    )
    how = {"data": prompts(8), "key": jax.random.key(1), "batch": None, "optimizer": optax.sgd(0.5)} | how
    return icl.fit(start, task(), steps=steps, record="every", sweep=Sweep(mode=mode), **how)


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
    assert header["timings"]["map"]["seconds_per_step"] is None


@pytest.mark.parametrize("cost", [1e-5, 2e-3])
def test_a_timing_divides_by_the_steps_it_took(monkeypatch, cost):
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def run(steps):
        clock[0] += 0.5 * (clock[0] == 0) + cost * steps

    step, compiling = timed(run, True)
    assert step == pytest.approx(cost)
    assert compiling == pytest.approx(0.5)


def test_without_memory_members_are_halved_until_they_fit(memory, tmp_path):
    """Of five three and then two: what each learns, and when it ends, is what it was."""
    room, given = memory
    room[0] = 5
    whole = five(12)
    assert whole.header["member_block"] == 5
    room[0], given[:] = 2, []
    with pytest.warns(UserWarning, match="a device was out of memory: . members side by side from now on") as said:
        run = five(6, store=tmp_path)
    assert [str(one.message).split(": ")[2][0] for one in said] == ["3", "2"]
    assert run.header["member_block"] == 2
    assert set(given) == {5, 3, 2}
    room[0], given[:] = 5, []
    run = five(12, store=tmp_path)  # goes on as it went, whatever the memory is now
    assert set(given) == {2}
    assert run.header["member_block"] == 2
    assert sorted(set(run.status)) == ["diverged", "ok"]
    np.testing.assert_array_equal(run.dataset.status, whole.dataset.status)
    np.testing.assert_array_equal(run.dataset.ended, whole.dataset.ended)
    np.testing.assert_allclose(run.members.stacked.shift, whole.members.stacked.shift, rtol=1e-5)
    np.testing.assert_allclose(run.dataset.training_loss, whole.dataset.training_loss, rtol=1e-5)


def test_members_one_after_the_other_need_no_halving(memory):
    """The device of these has room for one member; `lax.map` gives it all, of which one is computed at a time."""
    memory[0][0] = 5
    assert five(2, mode="map").header["member_block"] == 1


def test_without_memory_for_one_member_there_is_one_line(memory):
    with (
        pytest.warns(UserWarning, match="out of memory"),
        pytest.raises(EnvironmentFault, match="expected memory for one member at a time, got RESOURCE_EXHAUSTED: Out"),
    ):
        five(2)
    with pytest.raises(EnvironmentFault, match="expected memory for one member at a time"):
        five(2, mode="map")


def test_another_fault_of_a_device_is_no_want_of_memory(monkeypatch):
    def faulty(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(train_loop, "advanced", faulty)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        five(2)
