"""The workers of a dask scheduler, on however many machines; the scheduler may go away for a while and come back.

Scheduler and workers need this library in the versions of the run, and the claim; they share no file system with it.
"""

import contextlib
import queue
import time
from concurrent.futures import CancelledError
from typing import Any

from icllab.core.errors import EnvironmentFault
from icllab.experiments.cells import Answer, Order, measured
from icllab.experiments.pools import Pool

PATIENCE = 600.0
"""Seconds that a scheduler may be away."""
_TIMEOUT = 20
_FRESH = 1.0


class Cluster(Pool):
    """A dask scheduler and those who work for it.

    What is under way when the scheduler goes is given to the one that comes in its place. A cell whose worker dies is
    given to another by dask itself, as often as its ``allowed-failures`` says (three times).
    """

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            raise EnvironmentFault(
                "--scheduler: expected the extra [cluster], it is not installed; pip install 'icl-lab[cluster]'"
            ) from None
        self._distributed = distributed
        self.address = address
        self._given: dict[Any, tuple[Order, Any]] = {}
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked, self._threads = 0.0, 0
        try:
            self._client: Any = distributed.Client(address, timeout=_TIMEOUT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise EnvironmentFault(f"--scheduler: expected a dask scheduler at {address!r}, got {error}") from None

    @property
    def room(self) -> int:
        """Threads of all workers that are there now; one cell is handed out before there are any."""
        now = time.monotonic()
        if now - self._asked > _FRESH:
            try:
                self._threads = sum(self._client.nthreads().values())
            except (OSError, CancelledError, RuntimeError):
                self._return()
            self._asked = now
        return max(1, self._threads)

    def give(self, order: Order) -> None:
        """Hand an order to the scheduler."""
        try:
            future = self._client.submit(measured, order, pure=False)
        except (OSError, CancelledError, RuntimeError):
            self._return()
            future = self._client.submit(measured, order, pure=False)
        self._given[future.key] = order, future
        future.add_done_callback(self._ended.put)

    def answers(self, seconds: float) -> list[tuple[Order, Answer]]:
        """The next that comes; a scheduler that has gone is waited for."""
        try:
            future = self._ended.get(timeout=seconds)
        except queue.Empty:
            _ = self.room  # asks whether the scheduler is there
            return []
        if future.key not in self._given:  # of a scheduler that has gone
            return []
        try:
            answer = future.result(timeout=_TIMEOUT)
        except self._distributed.KilledWorker as error:
            answer = Answer("abandoned", message=" ".join(str(error).split()))
        except (OSError, CancelledError):
            self._return()
            return []
        except Exception as error:  # not what a claim raised: that is part of an answer
            said = f"{type(error).__name__}: {error}"
            raise EnvironmentFault(
                f"--scheduler: expected workers and a scheduler that have this library, got {said}; "
                "install the versions of the run there"
            ) from error
        order, _ = self._given.pop(future.key)
        return [(order, answer)]

    def _return(self) -> None:
        """Find the scheduler again, and give it what was under way."""
        under_way = [order for order, _ in self._given.values()]
        self._given.clear()
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(Exception):
                self._client.close(timeout=1)
            try:
                self._client = self._distributed.Client(self.address, timeout=_TIMEOUT, set_as_default=False)
                break
            except (OSError, ValueError) as error:
                if time.monotonic() > end:
                    raise EnvironmentFault(
                        f"--scheduler: expected {self.address!r} to come back within {PATIENCE:g} s, got {error}; "
                        "every finished cell is kept, the same command goes on"
                    ) from None
                time.sleep(1)
        for order in under_way:
            self.give(order)

    def close(self) -> None:
        """Leave; cells that are under way are lost."""
        with contextlib.suppress(Exception):
            self._client.close(timeout=5)
