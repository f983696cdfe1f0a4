"""Sweeps on a dask cluster of real processes on loopback, and as jobs of submitit: workers and schedulers that fail."""

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
    ICL,
    STORE,
    assert_same,
    cells,
    complaint,
    ended,
    environment,
    leftovers,
    measured,
    run_command,
    started,
    wait_until,
)

from icllab.lab.run import TRIES
from icllab.lab.submission import Shard

pytestmark = pytest.mark.slow
QUIET = ["--host", "127.0.0.1", "--no-dashboard"]


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


def test_a_cell_that_kills_every_worker_is_given_up(dask, tmp_path, log):
    dask.worker(STEADY_FAULT="die:99", STEADY_LOG=log)
    command = run_command(tmp_path, "--scheduler", dask.address, "--set", "dim=4")
    status, _, err = ended(started(command), timeout=240)
    assert status == 4
    assert "1 of 1 cells failed, 0 are kept" in complaint(err)
    assert "KilledWorker" in complaint(err)
    assert len(measured(log)) == TRIES * 4  # dask itself tries a task on four workers


def test_a_scheduler_that_is_killed_ends_the_run_and_the_same_command_goes_on(dask, tmp_path, log, undisturbed):
    dask.worker(STEADY_LOG=log, STEADY_PAUSE=1)
    process = started(run_command(tmp_path, "--scheduler", dask.address))
    wait_until(lambda: len(cells(tmp_path)) >= 2, 120)
    for server in list(dask.processes):  # the scheduler first; its workers would follow
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    status, _, err = ended(process, timeout=120)
    assert status == 4
    assert "every finished cell is kept, the same command goes on" in complaint(err)
    kept = cells(tmp_path)
    assert 2 <= len(kept) < len(DIMS)
    assert ended(started(run_command(tmp_path)), timeout=120)[0] == 0
    assert {dim: cells(tmp_path)[dim] for dim in kept} == kept
    assert_same(tmp_path, undisturbed)


def test_without_workers_it_says_so_and_ctrl_c_ends_it(dask, tmp_path):
    process = started(run_command(tmp_path, "--scheduler", dask.address))
    time.sleep(12)  # its start
    os.kill(process.pid, signal.SIGINT)
    status, _, err = ended(process, timeout=15)
    assert status == 130
    assert f"the scheduler at {dask.address} has no workers; they are waited for" in err
    assert "0 of 5 cells are kept" in complaint(err)
    assert leftovers(tmp_path) == []


def test_a_worker_of_another_version_is_refused(dask, tmp_path, log):
    other = tmp_path / "other.py"
    other.write_text("import icllab\nicllab.__version__ = '0.0.1'\n")
    dask.worker("--no-nanny", "--preload", str(other), STEADY_LOG=log)
    status, _, err = ended(started(run_command(tmp_path, "--scheduler", dask.address)), timeout=240)
    assert status == 4
    assert "as the run has, got icllab 0.0.1 and jax" in complaint(err)
    assert measured(log) == []
    assert leftovers(tmp_path) == []


def test_jobs_of_submitit_measure_the_same_and_a_lost_one_is_submitted_again(tmp_path, log, undisturbed, monkeypatch):
    """``local`` runs as processes of this machine what Slurm runs."""
    submitit = pytest.importorskip("submitit")
    out = tmp_path / "out"
    monkeypatch.setenv("STEADY_FAULT", "die:1")

    def failures():
        executor = submitit.AutoExecutor(folder=tmp_path / "jobs", cluster="local")
        executor.update_parameters(timeout_min=5)
        words = [run_command(out, "--shard", f"{i}/2")[len(ICL) :] for i in (1, 2)]
        jobs = [executor.submit(Shard(command, str(out / STORE))) for command in words]
        return sum(job.exception() is not None for job in jobs)

    assert failures() == 1  # one process was killed, and its job with it
    assert failures() == 0
    assert len(measured(log)) == len(DIMS) + 1
    assert (out / STORE / "verdict.json").exists()  # the last shard judged
    assert_same(out, undisturbed)
    assert leftovers(out) == []
