"""Processes that measure: one that is killed is replaced, and a process that may have none measures itself."""

import multiprocessing
import os
import signal
import time
from concurrent.futures import BrokenExecutor

import pytest

from icllab.core.errors import InputError
from icllab.lab.executors import Inline, Processes, environment, executor_for


def started(pool):
    return pool.submit(os.getpid).result(timeout=60)


def test_a_process_that_is_killed_while_idle_is_replaced(capfd):
    with Processes(2) as pool:
        first = started(pool)
        os.kill(first, signal.SIGKILL)
        time.sleep(0.5)
        assert started(pool) != first
    assert capfd.readouterr().err == ""


def test_a_process_that_crashes_prints_no_stack(capfd, monkeypatch):
    """The parent says that it ended; --debug lets loky print where."""
    monkeypatch.delenv("PYTHONFAULTHANDLER", raising=False)
    for debug in (False, True):
        monkeypatch.setenv("ICL_DEBUG", "1" if debug else "")
        with Processes(1) as pool, pytest.raises(BrokenExecutor):
            pool.submit(os.abort).result(timeout=60)
        assert ("Fatal Python error: Aborted" in capfd.readouterr().err) == debug


def test_the_variables_of_a_share_of_the_cores_are_the_users_first(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment(1)["OMP_NUM_THREADS"] == "3"


@pytest.fixture
def _daemonic(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)


@pytest.mark.usefixtures("_daemonic")
def test_a_daemonic_process_measures_itself_and_says_so():
    with pytest.warns(UserWarning, match="this daemonic process may not start others; it measures all cells"):
        pool, ahead = executor_for(2, None, None, None).__enter__()
    assert isinstance(pool, Inline)
    assert ahead == 1
    with pytest.raises(InputError, match="limit: expected a process that may start others, got 'a daemonic one'"):
        executor_for(2, None, None, 3.0).__enter__()


@pytest.mark.parametrize("address", ["slurm", "slurm:timeout_min=60", "local"])
def test_slurm_has_its_own_command(address):
    with pytest.raises(
        InputError, match=r"expected the address of a dask scheduler, got .*; `icl claim submit` submits"
    ):
        executor_for(None, address, None, None).__enter__()
