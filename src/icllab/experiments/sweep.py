"""The way of a cell through a run: taken, measured, kept; tried again where it failed, left where another run has it.

The files of cells are the truth. Whether a cell is there is asked when it is taken, and once more before it is kept:
should another run have written it meanwhile, what is then still missing is measured again, and neither's values are
lost.
"""

import contextlib
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from icllab.core.errors import EnvironmentFault
from icllab.core.files import DamagedFile
from icllab.core.grid import Coordinates, Grid, spelled
from icllab.experiments import provenance
from icllab.experiments.cells import Answer, Ending, Order
from icllab.experiments.interrupts import interrupts_noted
from icllab.experiments.leases import Leases
from icllab.experiments.pools import Pool
from icllab.experiments.requests import Request

if TYPE_CHECKING:
    import xarray as xr

TRIES: Mapping[Ending, int] = {"refused": 1, "raised": 3, "died": 4, "abandoned": 1}
"""How often a cell may end so before it has failed."""
POLL = 0.5
"""Seconds after which is asked again what others do."""

Told = Callable[[Coordinates, Answer | None, float], None]
"""Told of a cell that has ended, its answer (None: another run computed it), and what it took in seconds."""


@dataclass(frozen=True)
class _Taken:
    """A cell that is this run's now."""

    stored: "xr.Dataset | None"
    version: bytes | None
    seconds: float


class Sweep:
    """The cells of one run.

    Attributes:
        limit: Seconds that a cell may take; None: any time.
    """

    def __init__(self, request: Request, grid: Grid, pool: Pool, leases: Leases, limit: float | None = None) -> None:
        self.request, self.grid, self.limit = request, grid, limit
        self._pool, self._leases, self._store = pool, leases, leases.store
        self._outputs: Sequence[str] = request.experiment().outputs
        self._versions = provenance.versions()
        self._waiting: deque[Coordinates] = deque()
        self._elsewhere: deque[Coordinates] = deque()
        self._under_way: dict[Path, _Taken] = {}
        self._ended: Counter[tuple[Path, Ending]] = Counter()

    def run(self, cells: Sequence[Coordinates], told: Told) -> None:
        """Compute them all; after Ctrl-C those under way are still kept, and a second one does not wait for them."""
        self._waiting.extend(cells)
        looked = 0.0
        with interrupts_noted() if self._pool.apart else contextlib.nullcontext(list[int]()) as interrupted:
            self._pool.interrupted = lambda: bool(interrupted)
            while self._under_way or (not interrupted and (self._waiting or self._elsewhere)):
                if interrupted and self._pool.deserted:
                    break
                while self._waiting and len(self._under_way) < self._pool.room and not interrupted:
                    self._give(self._waiting.popleft(), told)
                if self._under_way:
                    for order, answer in self._pool.answers(POLL):
                        self._end(order, answer, told)
                elif self._elsewhere:
                    time.sleep(max(0.0, POLL - (time.monotonic() - looked)))
                if not self._waiting and time.monotonic() - looked >= POLL:
                    looked = time.monotonic()
                    self._waiting, self._elsewhere = self._elsewhere, self._waiting
            if interrupted:
                raise KeyboardInterrupt

    def _give(self, cell: Coordinates, told: Told) -> None:
        """Hand out what a cell lacks, unless another run is at it or has done it."""
        from icllab.experiments.results import missing_part

        began = time.perf_counter()
        if not self._leases.take(cell):
            self._elsewhere.append(cell)
            return
        version, stored = self._store.version(cell), None
        try:
            stored = self._store.read(cell)
        except DamagedFile:
            self._store.set_damaged_aside(cell)
            version = None
        block = missing_part(stored, self.grid.inside(cell), self._outputs)
        if block is None:
            self._leases.release(cell)
            told(cell, None, 0.0)
            return
        order = Order(self.request, cell, block, self._versions, self.limit)
        self._under_way[self._store.path(cell)] = _Taken(stored, version, time.perf_counter() - began)
        self._pool.give(order)

    def _end(self, order: Order, answer: Answer, told: Told) -> None:
        """Keep what was measured; what failed is tried again, and then has failed."""
        cell, path, began = order.cell, self._store.path(order.cell), time.perf_counter()
        if answer.ending == "unfit":
            raise EnvironmentFault(answer.message)
        if answer.ending == "measured":
            again = not self._keep(order, answer)
        else:
            self._ended[path, answer.ending] += 1
            again = self._ended[path, answer.ending] < TRIES[answer.ending]
            self._note(order, answer, again)
        taken = self._under_way.pop(path)
        self._leases.release(cell)
        if again:
            self._waiting.append(cell)
        else:
            told(cell, answer, taken.seconds + answer.seconds + time.perf_counter() - began)

    def _note(self, order: Order, answer: Answer, again: bool) -> None:
        """Keep what is known of a cell that has failed; whoever looks for the mistake is shown each try at once."""
        if os.environ.get("ICL_DEBUG"):
            print(answer.details, file=sys.stderr)
        if not again and answer.ending != "refused":
            origin = {"claim": self.request.claim, "cell": spelled(order.cell), "commit": provenance.commit()}
            lines = [f"{name}: {value}" for name, value in {**origin, **self._versions}.items()]
            self._store.note_failure(order.cell, "\n".join([*lines, "", answer.message, "", answer.details]))

    def _keep(self, order: Order, answer: Answer) -> bool:
        """Write a cell; False: another run has changed it meanwhile."""
        from icllab.experiments.results import merged
        from icllab.experiments.store import packed, unpacked

        path, content = self._store.path(order.cell), answer.content
        taken = self._under_way[path]
        if taken.stored is not None:
            content = packed(merged(taken.stored, unpacked(content, path)))
        with self._store.locked():
            if self._store.version(order.cell) != taken.version:
                return False
            self._store.put(order.cell, content)
            return True
