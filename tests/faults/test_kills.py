"""Runs that are interrupted, terminated or killed lose at most the cells under way."""

import os
import signal

import pytest
from faults.processes import (
    DIMS,
    Fork,
    alive,
    assert_same,
    cells,
    check_command,
    complaint,
    inside,
    leftovers,
    measured,
    run_command,
    strictly,
    wait_until,
)


@pytest.fixture
def fork(tmp_path_factory):
    """``Fork`` with its streams apart from the results; what a test leaves under way is killed."""
    folder, forks = tmp_path_factory.mktemp("streams"), []

    def start(command, **variables):
        forks.append(Fork(folder / str(len(forks)), command, **variables))
        return forks[-1]

    yield start
    for process in forks:
        if process.process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)


def test_a_run_that_is_stopped_three_times_goes_on_where_it_was(tmp_path, fork, log, capfd, undisturbed):
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)):
        before = cells(tmp_path)
        count = len(before)
        process = fork(run_command(tmp_path), STEADY_PAUSE=3)
        wait_until(lambda count=count: len(cells(tmp_path)) > count)
        os.kill(process.pid, number)
        code, out, err = process.ended()
        assert (code, out) == (status, "")
        kept = cells(tmp_path)
        assert len(before) < len(kept) < len(DIMS)
        assert {dim: kept[dim] for dim in before} == before
        if code == 130:
            assert f"{len(kept)} of 5 cells are kept" in complaint(err)
            assert "Traceback" not in err
    assert inside(capfd, check_command(tmp_path))[0] == 3  # cells are missing
    count = len(measured(log))
    assert inside(capfd, run_command(tmp_path))[0] == 0
    assert {dim: cells(tmp_path)[dim] for dim in kept} == kept
    assert sorted(dim for dim, _ in measured(log)[count:]) == sorted(set(DIMS) - set(kept))
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []


def test_ctrl_c_with_workers_keeps_the_finished_cells(tmp_path, fork, log, capfd, undisturbed):
    process = fork(run_command(tmp_path, "--workers", "2"), STEADY_PAUSE=0.4)
    wait_until(lambda: len(cells(tmp_path)) >= 1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, _, err = process.ended(timeout=15)
    kept = cells(tmp_path)
    assert code == 130
    assert f"{len(kept)} of 5 cells are kept" in complaint(err)
    assert "Traceback" not in err
    assert not any(alive(pid) for _, pid in measured(log))
    count = len(measured(log))
    assert inside(capfd, run_command(tmp_path))[0] == 0
    assert sorted(dim for dim, _ in measured(log)[count:]) == sorted(set(DIMS) - set(kept))
    assert_same(tmp_path, undisturbed)


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path, fork, log):
    process = fork(run_command(tmp_path, "--workers", "2"), STEADY_PAUSE=300)
    wait_until(lambda: len(measured(log)) == 2)
    assert all(alive(pid) for _, pid in measured(log))
    os.kill(process.pid, signal.SIGKILL)
    _, _, err = process.ended()
    assert all(line.startswith(("claims/steady: ", "a claim that prints")) for line in err.splitlines()), err
    wait_until(lambda: not any(alive(pid) for _, pid in measured(log)), 10)


def test_processes_may_share_a_directory_and_shards_overlap(tmp_path, fork, log, undisturbed):
    """A cell may be measured twice; none is lost or half, and the results are those of one process."""
    parts = ([], ["--shard", "1/2"], ["--shard", "1/3"])
    processes = [fork(run_command(tmp_path, "--json", *words), STEADY_PAUSE=0.4) for words in parts]
    answers = [process.ended() for process in processes]
    assert [status for status, _, _ in answers] == [0] * len(parts), answers
    whole, *shards = (strictly(out) for _, out, _ in answers)
    assert whole["verdict"] == "holds"
    for answer in shards:
        last = "the last shard to end: every cell is here" in answer["notes"]
        assert answer["verdict"] == ("holds" if last else None)
    assert {dim for dim, _ in measured(log)} == set(DIMS)
    assert len(measured(log)) < len(DIMS) + 5  # each passes by what others have finished
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []


def test_a_cell_goes_on_from_the_checkpoints_in_its_scratch_directory(tmp_path, log, capfd, monkeypatch, undisturbed):
    """The worker is killed after its first checkpoint; were it not found again, the cell would never end."""
    monkeypatch.setenv("STEADY_SCRATCH", "1")
    status, _, err = inside(capfd, run_command(tmp_path, "--workers", "2", "--set", "dim=2"))
    assert status == 0, err
    begun = measured(log)
    assert [dim for dim, _ in begun] == [2, 2]
    assert begun[0][1] != begun[1][1]
    assert not any(alive(pid) for _, pid in begun)
    assert_same(tmp_path, undisturbed.sel(dim=[2]))
    assert leftovers(tmp_path) == []
