"""Who measures cells: this process, processes of this machine, a dask scheduler's workers, or jobs of Slurm.

A run submits jobs to an executor of :mod:`concurrent.futures`, whichever it is, and keeps what it returns.
"""

import contextlib
import functools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

from icllab.core.errors import EnvironmentFault, InputError, expected, install_command

_TIMEOUT = 20
_POLL = 1.0
_SLURM = "slurm"
_TRANSPORTS = ("tcp", "tls", "ws", "wss", "ucx", "inproc")
_EVERY = 1 << 30


@contextlib.contextmanager
def executor_for(
    workers: int | None, scheduler: str | None, executor: Executor | None, limit: float | None, folder: Path
) -> Iterator[tuple[Executor, int]]:
    """The executor of a run, and how many jobs it is given at a time.

    Args:
        workers: Number of processes.
        scheduler: Address of a dask scheduler; ``slurm``, or ``slurm:name=value,...`` with parameters of submitit.
        executor: The user's own.
        limit: Whether a process may have to end itself.
        folder: Where Slurm's jobs keep what they are given, return and print.
    """
    if executor is not None:
        yield executor, _EVERY
    elif scheduler is not None:
        with _scheduler(scheduler, folder) as pool:
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
    """Processes of this machine; one that dies takes only its own job with it, and another takes its place.

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
        """End the processes; what is under way is lost."""
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
    """Start loky's tracker, which removes the semaphores of a process that was killed, without its warning of them."""
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
def _scheduler(address: str, folder: Path) -> Iterator[Executor]:
    transport, separator, _ = address.partition("://")
    if not address or (separator and transport not in _TRANSPORTS):
        raise expected("scheduler", "an address such as tcp://127.0.0.1:8786, or slurm", address)
    kind, _, parameters = address.partition(":")
    if kind in (_SLURM, "local"):
        with Batch(kind, dict(parameter(text) for text in filter(None, parameters.split(","))), folder) as pool:
            yield pool
        return
    try:
        from distributed import Client
    except ImportError:
        raise _extra("--scheduler") from None
    try:
        client = Client(address, timeout=_TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"--scheduler: expected a dask scheduler at {address!r}, got {error}") from None
    with contextlib.closing(client):
        if not client.nthreads():
            warnings.warn(f"the scheduler at {address} has no workers; they are waited for", stacklevel=2)
        yield client.get_executor(pure=False)


def _extra(name: str) -> EnvironmentFault:
    return EnvironmentFault(f"{name}: expected the extra [cluster], it is not installed; {install_command('cluster')}")


def parameter(text: str) -> tuple[str, Any]:
    """A parameter of submitit from ``name=value``; a whole number is one."""
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise expected("scheduler", "slurm:name=value,... with parameters of submitit", text, "slurm:timeout_min=60")
    return name, int(value) if value.isdecimal() else value


def batch_executor(name: str, cluster: str, folder: Path, parameters: Mapping[str, Any], **options: Any) -> Any:
    """An executor of submitit; that of Slurm reads the answers of sbatch by :func:`job_number`.

    Args:
        name: Name of the option or command, for errors.
        cluster: ``slurm``; or ``local``, for processes of this machine.
        folder: Folder of what jobs are given, return and print.
        parameters: Those of ``submitit.AutoExecutor.update_parameters``.
        options: Those of ``submitit.AutoExecutor``.

    Raises:
        EnvironmentFault: submitit is not installed.
        InputError: There is no such cluster here, or submitit does not know a parameter.
    """
    try:
        import submitit
    except ImportError:
        raise _extra(name) from None
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster, **options)
        executor.update_parameters(**parameters)
    except (RuntimeError, NameError, TypeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{name}: expected {cluster} with parameters of submitit, got {reason}") from None
    if cluster == _SLURM:
        executor._executor.__class__ = _slurm_executor()
    return executor


@functools.cache
def _slurm_executor() -> type[Any]:
    from submitit.slurm import slurm

    class SlurmExecutor(slurm.SlurmExecutor):
        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            """Run sbatch here; what submitit runs, decodes and reads is the number alone."""
            command = super()._make_submission_command(submission_file_path)
            return ["echo", f"Submitted batch job {_submitted(command, self.parameters.get('map_count', 1))}"]

        def _internal_process_submissions(self, delayed_submissions: Any) -> list[Any]:
            """Submit jobs; submitit makes another executor for an array, by this name."""
            kind, slurm.SlurmExecutor = slurm.SlurmExecutor, type(self)
            try:
                return super()._internal_process_submissions(delayed_submissions)
            finally:
                slurm.SlurmExecutor = kind

    return SlurmExecutor


class UnknownJobs(EnvironmentFault):
    """Jobs may have been submitted, but their number is not known."""


def _submitted(command: list[str], count: int) -> str:
    """Run sbatch for a number of jobs; return the number that Slurm gives them."""
    try:
        process = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise EnvironmentFault(f"submit: expected sbatch to run, got {error}") from error
    answer, complaint = (text.decode(errors="replace").strip() for text in (process.stdout, process.stderr))
    number, status = job_number(answer), process.returncode
    if status == 0 and number is not None:
        return number
    # Slurm may have taken jobs although sbatch waited in vain for its answer.
    if status > 0 and number is None and "timed out" not in complaint:
        reason = " ".join((complaint or answer or f"status {status}").split())
        raise EnvironmentFault(f"submit: expected slurm to take {count} jobs, got {reason}")
    came = f"status {status} and {f'{answer} {complaint}'.strip()!r}"
    advice = "the jobs may run: look with squeue before you submit again"
    raise UnknownJobs(f"submit: expected the number of {count} jobs from sbatch, got {came}; {advice}")


def job_number(answer: str) -> str | None:
    """The number in an answer of sbatch: ``Submitted batch job N``, else a line of ``N`` or ``N;cluster``.

    None if there is no such number, or more than one.
    """
    numbers = re.findall(r"Submitted batch job ([0-9]+)\b", answer)
    lines = (re.fullmatch(r"([0-9]+)(?:;\S+)?", line.strip()) for line in answer.splitlines())
    (number, *others) = {*numbers} or {line[1] for line in lines if line} or {None}
    return None if others else number


class Batch(Executor):
    """Jobs of Slurm through submitit, one a cell; one that is preempted or reaches its time limit is queued again.

    Args:
        cluster: ``slurm``; or ``local``, which runs the jobs as processes of this machine.
        parameters: Those of ``submitit.AutoExecutor.update_parameters``: ``timeout_min``, ``slurm_partition``.
        folder: What jobs are given, return and print; the jobs reach it under this path.
    """

    def __init__(self, cluster: str, parameters: dict[str, Any], folder: Path) -> None:
        self._executor = batch_executor("scheduler", cluster, folder, parameters)
        self._jobs: dict[Future[Any], Any] = {}
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit one job."""
        future: Future[Any] = Future()
        self._jobs[future] = self._executor.submit(Requeued(fn), *args, **kwargs)
        return future

    def _watch(self) -> None:
        while not self._closed.wait(_POLL):
            for future, job in list(self._jobs.items()):
                if job.done():
                    del self._jobs[future]
                    try:
                        future.set_result(job.result())
                    except Exception as error:
                        future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the jobs that have not ended."""
        self._closed.set()
        self._watcher.join()
        for job in self._jobs.values():
            job.cancel()


class Requeued:
    """A function that submitit queues again, with the same arguments, when its job is preempted."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._queued = False

    def __call__(self, *arguments: Any) -> Any:
        """Call the function; a job that is queued again has no result, although the function may make a fault of it."""
        try:
            return self.function(*arguments)
        except Exception:
            if self._queued:  # submitit ends the process by SystemExit, wherever that is
                raise SystemExit(-1) from None
            raise

    def checkpoint(self, *arguments: Any) -> Any:
        """What is queued: the cell begins again, from the checkpoints in its scratch directory if it keeps some."""
        from submitit.helpers import DelayedSubmission

        self._queued = True
        return DelayedSubmission(Requeued(self.function), *arguments)
