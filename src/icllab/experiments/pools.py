"""Who measures cells: this process, several of this machine, or the workers of a dask scheduler.

A pool is given orders and hands back their answers, in whatever order they come. It touches no file of the results:
whoever asked keeps what it is answered.
"""

import contextlib
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from icllab.core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from icllab.experiments.cells import Answer, Order

_STILLBORN = 3
"""Workers in a row that end before they can be given anything, after which no other is started."""
_NAME = "icllab worker"
_UNGUARDED = 119
"""Exit status of a worker whose script starts workers on import."""
_GUARD = "put the call under `if __name__ == '__main__':`"


class Pool(ABC):
    """What a run needs of those who measure for it.

    Attributes:
        interrupted: Tells whoever waits for a long time whether the run was interrupted meanwhile.
    """

    interrupted: Callable[[], bool] = staticmethod(lambda: False)

    @property
    def deserted(self) -> bool:
        """Whether there is nobody who could end what was handed out."""
        return False

    @property
    @abstractmethod
    def room(self) -> int:
        """Orders that are worked on at a time."""

    @property
    def apart(self) -> bool:
        """Whether others measure, who can end after Ctrl-C what they are at."""
        return True

    @abstractmethod
    def give(self, order: "Order") -> None:
        """Hand out an order."""

    @abstractmethod
    def answers(self, seconds: float) -> "list[tuple[Order, Answer]]":
        """Those that have come; none where none came in so many seconds."""

    @abstractmethod
    def close(self) -> None:
        """Stop; what is under way is lost."""


@contextlib.contextmanager
def pool(workers: int, scheduler: str | None, limit: float | None) -> Iterator[Pool]:
    """Who measures: a dask scheduler's workers, processes of this machine, or this one, which no limit may end."""
    if scheduler is not None:
        from icllab.experiments.clusters import Cluster

        chosen: Pool = Cluster(scheduler)
    elif workers > 1 or limit is not None:
        chosen = Processes(workers)
    else:
        chosen = Here()
    try:
        yield chosen
    finally:
        chosen.close()


def require_guard() -> None:
    """Refuse to start workers while this process, itself a worker, still imports the script of its parent.

    The parent of a worker of ours tells it, in one line; others get the error.
    """
    import multiprocessing

    current = multiprocessing.current_process()
    if not getattr(current, "_inheriting", False):
        return
    if current.name == _NAME:
        raise SystemExit(_UNGUARDED)
    raise _unguarded()


def _unguarded() -> InputError:
    return InputError(f"workers: expected a script that starts none when it is imported, got one that does; {_GUARD}")


class Here(Pool):
    """This process, one cell after the other."""

    def __init__(self) -> None:
        self._order: Order | None = None

    @property
    def room(self) -> int:
        """One."""
        return 1

    @property
    def apart(self) -> bool:
        """No: a cell under way here is what is interrupted."""
        return False

    def give(self, order: "Order") -> None:
        """Note what to do when an answer is asked for."""
        self._order = order

    def answers(self, seconds: float) -> "list[tuple[Order, Answer]]":
        """Measure, however long it takes."""
        from icllab.experiments.cells import measured

        order, self._order = self._order, None
        return [] if order is None else [(order, measured(order))]

    def close(self) -> None:
        """Nothing is to be stopped."""


class Processes(Pool):
    """Processes of this machine; another takes the place of one that dies."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._idle: list[_Worker] = []
        self._working: list[_Worker] = []
        self._stillborn = 0

    @property
    def room(self) -> int:
        """The number of processes."""
        return self._workers

    def give(self, order: "Order") -> None:
        """Hand an order to a process that waits, or to a new one."""
        worker = self._idle.pop() if self._idle else _Worker(max(1, (os.cpu_count() or 1) // self.room))
        worker.give(order)
        self._working.append(worker)

    def answers(self, seconds: float) -> "list[tuple[Order, Answer]]":
        """Those that have come; of a process that has died, that it has."""
        from multiprocessing.connection import wait

        from icllab.experiments.cells import Answer

        came = []
        ready = wait([worker.pipe for worker in self._working], seconds)
        for worker in [one for one in self._working if one.pipe in ready]:
            try:
                said = worker.pipe.recv()
            except (EOFError, OSError):
                self._working.remove(worker)
                order, reason = worker.order, worker.ended()
                if not worker.awake and worker.process.exitcode == _UNGUARDED:
                    raise _unguarded() from None
                if worker.awake:
                    came.append((order, Answer("died", message=reason)))
                else:
                    self._began_in_vain(reason)
                    self.give(order)
                continue
            self._stillborn = 0
            if isinstance(said, Answer):
                self._working.remove(worker)
                self._idle.append(worker)
                came.append((worker.order, said))
            else:
                worker.awake = True
        return came

    def _began_in_vain(self, reason: str) -> None:
        self._stillborn += 1
        if self._stillborn >= _STILLBORN:
            raise EnvironmentFault(
                f"workers: expected processes that start, {_STILLBORN} in a row did not ({reason}); "
                f"where a script starts workers, {_GUARD}"
            )

    def close(self) -> None:
        """Let go of those that wait, and end those that measure."""
        for worker in self._working:
            worker.process.kill()
        for worker in [*self._idle, *self._working]:
            worker.pipe.close()
        for worker in [*self._idle, *self._working]:
            worker.process.join()


class _Worker:
    """A process, what it was asked last, and the pipe through which it answers."""

    def __init__(self, threads: int) -> None:
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, threads), name=_NAME)
        self.awake = False
        self.order: Any = None
        # A process started now inherits the mask: Ctrl-C goes to a terminal's whole group, and is ours to handle.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()

    def give(self, order: "Order") -> None:
        """Hand over an order; one that has died is noticed when its answer is waited for."""
        self.order = order
        with contextlib.suppress(OSError):
            self.pipe.send(order)

    def ended(self) -> str:
        """How a process that has died did."""
        self.process.join()
        self.pipe.close()
        code = self.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        limit = self.order.limit
        return f"its worker process {how}" + ("" if limit is None or code < 0 else f" (the limit is {limit:g} s)")


def _serve(pipe: "Connection", threads: int) -> None:
    """A worker's life: say that it is awake, answer every order, end with the pipe."""
    _live_as_worker(threads)
    from icllab.experiments.cells import measured

    with contextlib.suppress(EOFError, OSError):
        pipe.send(None)
        while True:
            pipe.send(measured(pipe.recv()))


def _live_as_worker(threads: int) -> None:
    """Use one's share of the cores, leave Ctrl-C to the parent, and end with it if it is killed."""
    import multiprocessing

    # Threads of linear algebra wait by spinning: processes that each use all cores take several times the CPU time.
    # XLA's threads, which it counts in NPROC, hand parts of each loop to each other even where they are one core's.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"):
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
