"""How far a run is, on stderr: a live bar on a terminal that can draw one, a line now and then elsewhere."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator

from icllab.lab.run import Progress

_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def bar(title: str) -> Iterator[Progress]:
    """A function ``(count, total, cell, seconds left)`` that shows how far a run is."""
    if sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        with _bar(title) as progress:
            yield progress
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
        print(f"{self.title}: {counts} ({cell or 'the only cell'})", file=sys.stderr, flush=True)
        self.last = now


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("cells"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn("{task.fields[cell]}", style="dim", markup=False),
    ]
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task, pace = bar.add_task(title, total=None, cell="", left=""), _Pace()

        def progress(count: int, total: int, cell: str, left: float | None) -> None:
            text = pace.text(time.monotonic(), count, total, left)
            bar.update(task, total=total, completed=count, cell=cell, left=text)

        yield progress


class _Pace:
    """Cells a minute since the first call."""

    def __init__(self) -> None:
        self._start: tuple[float, int] | None = None

    def text(self, now: float, count: int, total: int, left: float | None) -> str:
        """The rate and the time left, once there is one and as long as there is something left."""
        self._start = start, before = self._start or (now, count)
        if left is None or count in (before, total):
            return ""
        return f"{60 * (count - before) / max(now - start, 1e-3):.3g} a minute, {_spelled(left)} left"


def _spelled(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
