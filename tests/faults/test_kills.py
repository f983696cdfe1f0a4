"""Runs that are interrupted, terminated or killed lose at most the cells under way."""

import os
import signal

import pytest
from faults.processes import (
    DIMS,
    alive,
    assert_same,
    cells,
    check_command,
    complaint,
    ended,
    finished,
    finished_run,
    leftovers,
    measured,
    results,
    run_command,
    started,
    wait_until,
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The Dataset of a run that nothing happens to."""
    return results(finished_run(tmp_path_factory.mktemp("undisturbed")))


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


def test_ctrl_c_with_workers_keeps_the_finished_cells(tmp_path, undisturbed):
    log = tmp_path / "log"
    process = started(run_command(tmp_path, "--workers", "2"), STEADY_PAUSE=0.4, STEADY_LOG=log)
    wait_until(lambda: len(cells(tmp_path)) >= 1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, _, err = ended(process, timeout=15)
    kept = cells(tmp_path)
    assert code == 130
    assert f"{len(kept)} of 5 cells are kept" in complaint(err)
    assert "Traceback" not in err
    assert not any(alive(pid) for _, pid in measured(log))
    begun = len(measured(log))
    assert finished(run_command(tmp_path, "--workers", "2"), STEADY_LOG=log).returncode == 0
    assert sorted(dim for dim, _ in measured(log)[begun:]) == sorted(set(DIMS) - set(kept))
    assert_same(tmp_path, undisturbed)


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path):
    log = tmp_path / "log"
    process = started(run_command(tmp_path, "--workers", "2"), STEADY_PAUSE=300, STEADY_LOG=log)
    wait_until(lambda: len(measured(log)) == 2)
    assert all(alive(pid) for _, pid in measured(log))
    process.kill()
    ended(process)
    wait_until(lambda: not any(alive(pid) for _, pid in measured(log)), 10)


def test_two_processes_may_share_a_directory(tmp_path, undisturbed):
    """A cell may be measured twice; none is lost or half, and the results are those of one process."""
    log = tmp_path / "log"
    both = [started(run_command(tmp_path), STEADY_PAUSE=0.4, STEADY_LOG=log) for _ in range(2)]
    for process in both:
        code, _, err = ended(process)
        assert code == 0, err
    assert {dim for dim, _ in measured(log)} == set(DIMS)
    assert len(measured(log)) < 2 * len(DIMS)  # each passes by what the other has finished
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []


def test_a_cell_goes_on_from_the_checkpoints_in_its_scratch_directory(tmp_path, undisturbed):
    """Every process is killed after its first checkpoint; were it not found again, no cell would ever end."""
    log = tmp_path / "log"
    done = finished(run_command(tmp_path, "--workers", "2"), STEADY_SCRATCH=1, STEADY_LOG=log)
    assert done.returncode == 0, done.stderr
    assert sorted(dim for dim, _ in measured(log)) == sorted(2 * DIMS)
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []
