"""How far a run is, on stderr: a live bar on a terminal, a line now and then elsewhere."""

import contextlib
import math
import sys
import time
from collections.abc import Iterator

from icllab.experiments.runner import Progress

_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def shown(title: str) -> Iterator[Progress]:
    """A function ``(done, total, what, seconds left)`` that shows what it is told."""
    if sys.stderr.isatty():
        with _bar(title) as progress:
            yield progress
    else:
        yield _Lines(title)


class _Lines:
    """The first and the last line always, others at most every few seconds."""

    def __init__(self, title: str) -> None:
        self.title, self.last = title, -math.inf

    def __call__(self, done: int, total: int, what: str, left: float | None) -> None:
        now = time.monotonic()
        if done < total and now - self.last < _SECONDS_BETWEEN_LINES:
            return
        said = "" if left is None or done == total else f", {_spelled(left)} left"
        print(f"{self.title}: {done} of {total} cells{said} ({what or 'the only cell'})", file=sys.stderr, flush=True)
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
        TextColumn("{task.fields[what]}", style="dim", markup=False),
    ]
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, what="", left="")

        def progress(done: int, total: int, what: str, left: float | None) -> None:
            said = "" if left is None or done == total else f"{_spelled(left)} left"
            bar.update(task, total=total, completed=done, what=what, left=said)

        yield progress


def _spelled(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
