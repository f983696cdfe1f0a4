"""Progress of a run on stderr: a live bar on a terminal, and otherwise a line every ten seconds."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator

from icllab.core.progress import shown, spelled
from icllab.core.spelling import printable
from icllab.lab.run import Progress, show_cells

_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def bar(title: str) -> Iterator[Progress]:
    """A function ``(count, total, cell, seconds left)`` that shows how far a run is."""
    if sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        with shown(title, True):
            yield show_cells
    else:
        yield _Lines(title)


class _Lines:
    """The first and the last line always, others at most every few seconds."""

    def __init__(self, title: str) -> None:
        self.title, self.last, self.pace = title, -math.inf, _Pace()

    def __call__(self, count: int, total: int, cell: str, left: float | None) -> None:
        now = time.monotonic()
        pace = self.pace.text(now, count, total, left)
        if count < total and now - self.last < _SECONDS_BETWEEN_LINES:
            return
        counts = ", ".join(filter(None, [f"{count} of {total} cells", pace]))
        print(printable(f"{self.title}: {counts} ({cell or 'the only cell'})"), file=sys.stderr, flush=True)
        self.last = now


class _Pace:
    """Cells a minute since the first call."""

    def __init__(self) -> None:
        self._start: tuple[float, int] | None = None

    def text(self, now: float, count: int, total: int, left: float | None) -> str:
        """The rate and the time left, once there is one and as long as there is something left."""
        self._start = start, before = self._start or (now, count)
        if left is None or count in (before, total):
            return ""
        return f"{60 * (count - before) / max(now - start, 1e-3):.3g} a minute, {spelled(left)} left"
