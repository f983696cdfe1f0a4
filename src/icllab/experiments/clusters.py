"""The workers of a dask scheduler, on however many machines; the scheduler may go away for a while and come back.

Scheduler and workers need this library in the versions of the run, and the claim; they share no file system with it.
"""

import contextlib
import logging
import queue
import time
import warnings
from concurrent.futures import CancelledError
from typing import Any

from icllab.core.errors import EnvironmentFault, expected
from icllab.experiments.cells import Answer, Order, measured
from icllab.experiments.pools import Pool

PATIENCE = 600.0
"""Seconds that a scheduler may be away."""
ALONE = 10.0
"""Seconds without workers after which it is said that there are none."""
_TIMEOUT, _AGAIN = 20, 5
_FRESH = 1.0
_TRANSPORTS = ("tcp", "tls", "ws", "wss", "ucx", "inproc")


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
        self._alone: float | None = time.monotonic()
        transport, apart, _ = address.partition("://")
        if not address or (apart and transport not in _TRANSPORTS):
            raise expected("--scheduler", "an address like tcp://127.0.0.1:8786", address)
        try:
            self._client: Any = distributed.Client(address, timeout=_TIMEOUT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise EnvironmentFault(f"--scheduler: expected a dask scheduler at {address!r}, got {error}") from None
        self._logger = logging.getLogger("distributed.client")
        self._level = self._logger.level
        self._logger.setLevel(logging.CRITICAL)  # what goes wrong from here on is said here, in one line

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
            if self._threads:
                self._alone = now
            elif self._alone is not None and now - self._alone > ALONE:
                self._alone = None  # said once
                warnings.warn(f"the scheduler at {self.address} has no workers; they are waited for", stacklevel=2)
        return max(1, self._threads)

    @property
    def deserted(self) -> bool:
        """Whether there is nobody who could end what was handed out."""
        return self._threads == 0

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
        end, told = time.monotonic() + PATIENCE, False
        while True:
            with contextlib.suppress(Exception):
                self._client.close(timeout=1)
            try:
                self._client = self._distributed.Client(self.address, timeout=_AGAIN, set_as_default=False)
                break
            except (OSError, ValueError) as error:
                if self.interrupted():
                    raise KeyboardInterrupt from None
                if time.monotonic() > end:
                    raise EnvironmentFault(
                        f"--scheduler: expected {self.address!r} to come back within {PATIENCE:g} s, got {error}; "
                        "every finished cell is kept, the same command goes on"
                    ) from None
                if not told:
                    told = True
                    warnings.warn(
                        f"the scheduler at {self.address} is away; it is waited for {PATIENCE:g} s", stacklevel=2
                    )
                time.sleep(1)
        for order in under_way:
            self.give(order)

    def close(self) -> None:
        """Leave; cells that are under way are lost."""
        with contextlib.suppress(Exception):
            self._client.close(timeout=5)
        self._logger.setLevel(self._level)
