"""Sweeps on a dask cluster of real processes on loopback: workers, versions and schedulers that fail."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from faults.processes import (
    DIMS,
    STORE,
    alive,
    assert_same,
    cells,
    complaint,
    ended,
    environment,
    finished_run,
    leftovers,
    measured,
    run_command,
    started,
    wait_until,
)

from icllab.experiments import clusters
from icllab.experiments.store import read_dataset

pytestmark = pytest.mark.slow
QUIET = ["--host", "127.0.0.1", "--no-dashboard"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The Dataset of a run that nothing happens to."""
    return read_dataset(finished_run(tmp_path_factory.mktemp("undisturbed")) / STORE / "results.nc")


class Dask:
    """A scheduler and workers, each a process group of its own; workers live in a folder that is not the run's."""

    def __init__(self, folder):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.processes = []

    def _start(self, name, *words, **variables):
        folder = self.folder / f"{name}-{len(self.processes)}"
        folder.mkdir(parents=True)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{name}", *words, *QUIET],
                cwd=folder,
                env=environment(DASK_TEMPORARY_DIRECTORY=folder, **variables),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.processes.append(process)

    def scheduler(self):
        self._start("scheduler", "--port", str(self.port))
        wait_until(self._answers, 90)

    def _answers(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def worker(self, *words, **variables):
        self._start("worker", self.address, "--nthreads", "1", "--death-timeout", "120", *words, **variables)

    def stop(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def dask(tmp_path):
    there = Dask(tmp_path / "elsewhere")
    try:
        there.scheduler()
        yield there
    finally:
        there.stop()


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def test_workers_killed_in_mid_cell_three_times(dask, tmp_path, log, undisturbed):
    """They have no directory in common with the run, which keeps what they send."""
    dask.worker(STEADY_FAULT="die:3", STEADY_LOG=log)  # its nanny starts another in its place
    out = tmp_path / "out"
    status, _, err = ended(started(run_command(out, "--scheduler", dask.address)), timeout=240)
    assert status == 0, err
    assert len(measured(log)) == len(DIMS) + 3
    assert not list(dask.folder.rglob("*.nc"))
    assert_same(out, undisturbed)
    assert leftovers(out) == []


def test_a_worker_that_hangs(dask, tmp_path, log, undisturbed):
    dask.worker(STEADY_FAULT="hang:1", STEADY_LOG=log)
    command = run_command(tmp_path, "--scheduler", dask.address, "--limit", "8")
    status, _, err = ended(started(command), timeout=240)
    assert status == 0, err
    begun = measured(log)
    assert len(begun) == len(DIMS) + 1
    assert not alive(begun[0][1])
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []


def test_a_cell_that_kills_every_worker_is_given_up(dask, tmp_path, log):
    dask.worker(STEADY_FAULT="die:99", STEADY_LOG=log)
    command = run_command(tmp_path, "--scheduler", dask.address, "--set", "dim=4")
    status, _, err = ended(started(command), timeout=240)
    assert status == 4
    assert "1 of 1 cells failed, 0 are kept" in complaint(err)
    assert "4 different workers, but all those workers died" in complaint(err)
    assert len(measured(log)) == 4


def test_the_scheduler_is_killed_and_started_again(dask, tmp_path, log, undisturbed):
    dask.worker(STEADY_LOG=log, STEADY_PAUSE=1)
    process = started(run_command(tmp_path, "--scheduler", dask.address))
    wait_until(lambda: len(cells(tmp_path)) >= 2, 120)
    for one in list(dask.processes):  # the scheduler first; its workers would follow
        os.killpg(one.pid, signal.SIGKILL)
        one.wait()
    kept = cells(tmp_path)
    assert len(kept) < len(DIMS)
    dask.scheduler()
    dask.worker(STEADY_LOG=log)
    status, _, err = ended(process, timeout=240)
    assert status == 0, err
    assert {dim: cells(tmp_path)[dim] for dim in kept} == kept
    assert_same(tmp_path, undisturbed)
    assert leftovers(tmp_path) == []


def test_without_workers_it_says_so_and_ends_at_once(dask, tmp_path):
    process = started(run_command(tmp_path, "--scheduler", dask.address))
    time.sleep(clusters.ALONE + 8)  # its start too
    os.kill(process.pid, signal.SIGINT)
    status, _, err = ended(process, timeout=15)
    assert status == 130
    assert f"the scheduler at {dask.address} has no workers; they are waited for" in err
    assert "0 of 5 cells are kept" in complaint(err)
    assert leftovers(tmp_path) == []


def test_ctrl_c_while_the_scheduler_is_away_ends_the_run(dask, tmp_path, log):
    dask.worker(STEADY_LOG=log, STEADY_PAUSE=1)
    process = started(run_command(tmp_path, "--scheduler", dask.address))
    wait_until(lambda: len(cells(tmp_path)) >= 1, 120)
    for one in list(dask.processes):
        os.killpg(one.pid, signal.SIGKILL)
        one.wait()
    time.sleep(8)
    os.kill(process.pid, signal.SIGINT)
    status, _, err = ended(process, timeout=20)
    assert status == 130
    assert f"the scheduler at {dask.address} is away" in err
    assert f"{len(cells(tmp_path))} of 5 cells are kept" in complaint(err)
    assert "Traceback" not in err


def test_a_worker_of_another_version_is_refused(dask, tmp_path, log):
    other = tmp_path / "other.py"
    other.write_text("import icllab\nicllab.__version__ = '0.0.1'\n")
    dask.worker("--no-nanny", "--preload", str(other), STEADY_LOG=log)
    status, _, err = ended(started(run_command(tmp_path, "--scheduler", dask.address)), timeout=240)
    assert status == 4
    assert "as the run has, got icllab 0.0.1 and jax" in complaint(err)
    assert measured(log) == []
    assert leftovers(tmp_path) == []
