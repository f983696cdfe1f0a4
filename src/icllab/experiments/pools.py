"""Who computes cells: this process, several of this machine, or a dask scheduler's workers.

Whoever it is writes its cells itself, so nothing is lost with a pool but the cells under way.
"""

import concurrent.futures
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from icllab.core.errors import EnvironmentFault

Submit = Callable[..., "concurrent.futures.Future[float]"]


@contextlib.contextmanager
def pool(workers: int, scheduler: str | None) -> Iterator[Submit | None]:
    """How cells are handed out: None (here, one after the other), local processes, or a dask scheduler."""
    if scheduler is not None:
        try:
            from distributed import Client
        except ImportError:
            raise EnvironmentFault(
                "--scheduler: expected the extra [cluster], it is not installed; pip install 'icl-lab[cluster]'"
            ) from None
        try:
            client = Client(scheduler, timeout=20)
        except (OSError, ValueError) as error:
            raise EnvironmentFault(f"--scheduler: expected a dask scheduler at {scheduler!r}, got {error}") from None
        with client:
            yield client.get_executor(pure=False).submit
    elif workers > 1:
        with _processes(workers) as submit:
            yield submit
    else:
        yield None


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[Submit]:
    """Local processes. After Ctrl-C the cells under way are finished and kept; a second one stops at once."""
    import multiprocessing

    executor = concurrent.futures.ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        initializer=_live_as_worker,
        initargs=(max(1, (os.cpu_count() or 1) // workers),),
    )

    def submit(*call: Any) -> "concurrent.futures.Future[float]":
        # A process started now inherits the mask: Ctrl-C goes to a terminal's whole group, and is ours to handle.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return executor.submit(*call)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    try:
        yield submit
    finally:
        started = dict(getattr(executor, "_processes", None) or {})
        try:
            executor.shutdown(wait=True, cancel_futures=True)
        except KeyboardInterrupt:
            for process in started.values():
                process.kill()
            raise


def _live_as_worker(threads: int) -> None:
    """Use one's share of the cores, leave Ctrl-C to the parent, and end with it if it is killed."""
    import multiprocessing

    # Threads of linear algebra wait by spinning: processes that each use all cores take several times the CPU time.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    if threads == 1 and "xla_cpu_multi_thread_eigen" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
