"""Runs that are interrupted, terminated or killed lose at most the cells under way."""

import os
import signal
from multiprocessing import connection

import pytest
from faults.processes import (
    DIMS,
    STORE,
    alive,
    assert_same,
    cells,
    check_command,
    complaint,
    ended,
    finished,
    finished_run,
    inside,
    leftovers,
    measured,
    run_command,
    started,
    wait_until,
)

from icllab.experiments import pools
from icllab.experiments.store import read_dataset


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The Dataset of a run that nothing happens to."""
    return read_dataset(finished_run(tmp_path_factory.mktemp("undisturbed")) / STORE / "results.nc")


@pytest.fixture
def minds_interrupts():
    """This process does, even where the tests were started with interrupts ignored, as in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_run_that_is_stopped_goes_on_where_it_was(number, status, tmp_path, undisturbed):
    log = tmp_path / "log"
    process = started(run_command(tmp_path), STEADY_PAUSE=0.3, STEADY_LOG=log)
    wait_until(lambda: len(cells(tmp_path)) >= 2)
    process.send_signal(number)
    code, out, err = ended(process)
    assert code == status
    assert out == ""
    kept = cells(tmp_path)
    assert 2 <= len(kept) < len(DIMS)
    if code == 130:
        assert f"{len(kept)} of 5 cells are kept" in complaint(err)
        assert "Traceback" not in err
    if number == signal.SIGINT:
        assert finished(check_command(tmp_path)).returncode == 3  # cells missing

    began = len(measured(log))
    done = finished(run_command(tmp_path), STEADY_LOG=log)
    assert done.returncode == 0
    assert {dim: cells(tmp_path)[dim] for dim in kept} == kept
    assert sorted(dim for dim, _ in measured(log)[began:]) == sorted(set(DIMS) - set(kept))
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []


def test_ctrl_c_with_workers_finishes_the_cells_under_way(tmp_path, undisturbed):
    log = tmp_path / "log"
    process = started(run_command(tmp_path, "--workers", "2"), STEADY_PAUSE=0.4, STEADY_LOG=log)
    wait_until(lambda: len(cells(tmp_path)) >= 1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, _, err = ended(process)
    kept = cells(tmp_path)
    assert code == 130
    assert f"{len(kept)} of 5 cells are kept" in complaint(err)
    assert "Traceback" not in err
    assert {dim for dim, _ in measured(log)} == set(kept)  # none was begun in vain
    assert finished(run_command(tmp_path, "--workers", "2"), STEADY_LOG=log).returncode == 0
    assert sorted(dim for dim, _ in measured(log)) == sorted(DIMS)  # none was begun twice
    assert_same(tmp_path, undisturbed)


@pytest.mark.parametrize("moment", ["an order is handed out", "an answer is read"])
def test_ctrl_c_between_two_instructions_loses_nothing(moment, tmp_path, monkeypatch, capfd, minds_interrupts):
    def interrupted_after(call):
        def done(*arguments):
            answer = call(*arguments)
            if calls.append(None) or len(calls) == 4:
                signal.raise_signal(signal.SIGINT)
            return answer

        calls = []
        return done

    if moment == "an order is handed out":
        monkeypatch.setattr(pools._Worker, "give", interrupted_after(pools._Worker.give))
    else:
        monkeypatch.setattr(connection.Connection, "recv", interrupted_after(connection.Connection.recv))
    monkeypatch.setenv("STEADY_LOG", str(tmp_path / "log"))
    status, _, err = inside(capfd, run_command(tmp_path, "--workers", "2"))
    kept = cells(tmp_path)
    assert status == 130
    assert 2 <= len(kept) < len(DIMS)
    assert f"{len(kept)} of 5 cells are kept" in complaint(err)
    assert {dim for dim, _ in measured(tmp_path / "log")} == set(kept)


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    log = tmp_path / "log"
    process = started(run_command(tmp_path, "--workers", "2"), STEADY_PAUSE=300, STEADY_LOG=log)
    wait_until(lambda: len(measured(log)) == 2)
    os.killpg(process.pid, signal.SIGINT)
    with pytest.raises(Exception, match="timed out"):
        process.wait(timeout=1)
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = ended(process, timeout=15)
    assert code == 130
    assert "0 of 5 cells are kept" in complaint(err)
    wait_until(lambda: not any(alive(pid) for _, pid in measured(log)), 10)


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path):
    log = tmp_path / "log"
    process = started(run_command(tmp_path, "--workers", "2"), STEADY_PAUSE=300, STEADY_LOG=log)
    wait_until(lambda: len(measured(log)) == 2)
    assert all(alive(pid) for _, pid in measured(log))
    process.kill()
    ended(process)
    wait_until(lambda: not any(alive(pid) for _, pid in measured(log)), 10)


def test_two_processes_may_share_a_directory(tmp_path, undisturbed):
    log = tmp_path / "log"
    both = [started(run_command(tmp_path), STEADY_PAUSE=0.4, STEADY_LOG=log) for _ in range(2)]
    for process in both:
        code, _, err = ended(process)
        assert code == 0, err
    assert sorted(dim for dim, _ in measured(log)) == sorted(DIMS)  # none was begun twice
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []
