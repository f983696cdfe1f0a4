"""Executors that measure cells: this process, processes of this machine, or the workers of a dask scheduler.

A run submits jobs to an executor of :mod:`concurrent.futures`, whichever it is, and keeps what it returns.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from icllab.core.errors import EnvironmentFault, expected, install_command

_TIMEOUT = 20
_POLL = 1.0
_TRANSPORTS = ("tcp", "tls", "ws", "wss", "ucx", "inproc")
_EVERY = 1 << 30


@contextlib.contextmanager
def executor_for(
    workers: int | None, scheduler: str | None, executor: Executor | None, limit: float | None
) -> Iterator[tuple[Executor, int]]:
    """Open the executor of a run; yield it and the number of jobs that it takes at a time.

    Args:
        workers: Number of processes.
        scheduler: Address of a dask scheduler.
        executor: The user's own.
        limit: Seconds after which a process may have to end itself.
    """
    if executor is not None:
        yield executor, _EVERY
    elif scheduler is not None:
        with _scheduler(scheduler) as pool:
            yield pool, _EVERY
    elif (workers or 1) > 1 or limit is not None:
        if multiprocessing.current_process().daemon:  # it may have no children
            if limit is not None:
                raise expected("limit", "a process that may start others", "a daemonic one", "leave the limit out")
            warnings.warn("workers: this daemonic process may not start others; it measures all cells", stacklevel=4)
            yield Inline(), 1
            return
        with Processes(workers or 1) as pool:
            yield pool, workers or 1
    else:
        yield Inline(), 1


class Inline(Executor):
    """This process, one job after the other."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the function now."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Processes(Executor):
    """Processes of this machine. If a process dies, only its own job is lost, and a new process takes its place.

    Each is an executor of loky with one worker, which does not import the caller's script.
    """

    def __init__(self, workers: int) -> None:
        self._threads = max(1, (os.cpu_count() or 1) // workers)
        self._executors: list[Any] = []
        self._free: list[Any] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit to a free process, or to a new one."""
        executor, future = self._submitted(fn, *args, **kwargs)
        future.add_done_callback(lambda future: self._release(executor, future))
        return future

    def _submitted(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Future[Any]]:
        while self._free:
            executor = self._free.pop()
            with contextlib.suppress(BrokenExecutor):  # killed while it had nothing to do: another takes its place
                return executor, executor.submit(fn, *args, **kwargs)
        executor = self._start()
        return executor, executor.submit(fn, *args, **kwargs)

    def _start(self) -> Any:
        from loky.process_executor import ProcessPoolExecutor

        _start_tracker()
        variables = environment(self._threads)
        if not os.environ.get("ICL_DEBUG"):  # loky lets a process that crashes print its stack, unless this is set
            variables["PYTHONFAULTHANDLER"] = os.environ.get("PYTHONFAULTHANDLER", "")
        executor = ProcessPoolExecutor(
            max_workers=1, initializer=_live_as_worker, initargs=(os.getpid(),), env=variables
        )
        self._executors.append(executor)
        return executor

    def _release(self, executor: Any, future: Future[Any]) -> None:
        if future.cancelled() or not isinstance(future.exception(), BrokenExecutor):
            self._free.append(executor)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; unfinished jobs are lost."""
        for executor in self._executors:
            executor.shutdown(wait=wait, kill_workers=True)


def environment(threads: int) -> dict[str, str]:
    """The variables that keep a process to its share of the cores, unless the user's environment says otherwise."""
    # Threads of linear algebra wait by spinning: processes that each use all cores take several times the CPU time.
    # XLA's threads, which it counts in NPROC, hand parts of each loop to each other even where they are one core's.
    shares = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"), str(threads))
    variables = {name: os.environ.get(name, value) for name, value in shares.items()}
    flags = os.environ.get("XLA_FLAGS", "")
    if threads == 1 and "xla_cpu_multi_thread_eigen" not in flags:
        flags = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    return variables | ({"XLA_FLAGS": flags} if flags else {})


def _start_tracker() -> None:
    """Start loky's tracker of semaphores; it removes those of a killed process, and its warning is silenced."""
    from loky.backend import resource_tracker

    sys.warnoptions.append("ignore:resource_tracker")
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove("ignore:resource_tracker")


def _live_as_worker(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextlib.contextmanager
def _scheduler(address: str) -> Iterator[Executor]:
    transport, separator, _ = address.partition("://")
    if not address or (separator and transport not in _TRANSPORTS):
        raise expected("scheduler", "an address such as tcp://127.0.0.1:8786", address)
    if address.partition(":")[0] in ("slurm", "local"):
        raise expected(
            "scheduler", "the address of a dask scheduler", address, "`icl claim submit` submits jobs to Slurm"
        )
    try:
        from distributed import Client
    except ImportError:
        raise missing_extra("--scheduler") from None
    try:
        client = Client(address, timeout=_TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"--scheduler: expected a dask scheduler at {address!r}, got {error}") from None
    with contextlib.closing(client):
        if not client.nthreads():
            warnings.warn(f"the scheduler at {address} has no workers; they are waited for", stacklevel=2)
        yield client.get_executor(pure=False)


def missing_extra(name: str) -> EnvironmentFault:
    """The error if an option or command needs the extra ``[cluster]`` and it is not installed."""
    return EnvironmentFault(f"{name}: expected the extra [cluster], it is not installed; {install_command('cluster')}")
