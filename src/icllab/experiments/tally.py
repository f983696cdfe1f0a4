"""How far a sweep is: the cells of this run and of all others in its directory, and the time that is left."""

import time
from collections.abc import Callable, Sequence

from icllab.core.grid import Coordinates, spelled
from icllab.experiments.cells import Answer
from icllab.experiments.heartbeat import Heart, beats
from icllab.experiments.pace import Pace
from icllab.experiments.pools import Pool
from icllab.experiments.store import Store

Progress = Callable[[int, int, str, float | None], None]
"""Told of cells done, cells in all, the cell that has just ended, and the seconds left (None: not known yet)."""

_LOOK = 2.0
"""Seconds after which is looked again at what other runs do."""
_SHARE = 0.05
"""How much of the time may be spent on saying how much is left."""


class Tally:
    """Counts the cells of a sweep as they end.

    Attributes:
        computed: How many this run computed.
        failed: The cells that failed, with how.
    """

    def __init__(
        self,
        total: int,
        todo: Sequence[Coordinates],
        others: Sequence[Coordinates],
        *,
        store: Store,
        pool: Pool,
        heart: Heart,
        progress: Progress,
    ) -> None:
        self.computed = 0
        self.failed: list[tuple[Coordinates, Answer]] = []
        self._total, self._store, self._pool, self._heart, self._progress = total, store, pool, heart, progress
        self._todo = {store.path(cell): cell for cell in todo}
        self._others = list(others)
        self._pace, self._left, self._estimated, self._cost = Pace(), None, 0.0, 0.0
        self._looked = 0.0
        self.tell("kept")

    def ended(self, cell: Coordinates, answer: Answer | None, seconds: float) -> None:
        """A cell has ended: with this answer, or computed by another run."""
        del self._todo[self._store.path(cell)]
        if answer is not None and answer.ending == "measured":
            self.computed += 1
            self._pace.took(cell, seconds)
        elif answer is not None:
            self.failed.append((cell, answer))
        self.tell(spelled(cell))

    def tell(self, what: str) -> None:
        """Say how far the whole sweep is: for other processes first, then for whoever waits."""
        now = time.monotonic()
        if now - self._looked > _LOOK:
            self._looked = now
            self._others = [cell for cell in self._others if not self._store.has(cell)]
            runs = [beat for beat in beats(self._store.root) if beat.alive]
            elsewhere = sum(beat.workers for beat in runs if beat.pid != self._heart.beat.pid)
            self._pace.workers = elsewhere + self._pool.room
        lacking = [*self._todo.values(), *self._others]
        done = self._total - len(lacking) - len(self.failed)
        if not lacking or (now - self._estimated) * _SHARE >= self._cost:
            self._left, self._estimated = self._pace.left(lacking), time.monotonic()
            self._cost = self._estimated - now
        self._heart.tell(done, self._total, what, self._left, self._pool.room)
        self._progress(done, self._total, what, self._left)
