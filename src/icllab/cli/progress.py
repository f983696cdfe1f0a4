"""How far a run is, on stderr: a live bar on a terminal, a line now and then elsewhere."""

import contextlib
import sys
import time
from collections.abc import Iterator

from icllab.experiments.runner import Progress

_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def shown(title: str) -> Iterator[Progress]:
    """A function ``(done, total, what)`` that shows what it is told; the time left counts new cells only."""
    if sys.stderr.isatty():
        with _bar(title) as progress:
            yield progress
    else:
        yield _Lines(title)


class _Lines:
    """The first and the last line always, others at most every few seconds."""

    def __init__(self, title: str) -> None:
        self.title, self.start, self.last = title, time.monotonic(), -_SECONDS_BETWEEN_LINES
        self.kept: int | None = None

    def __call__(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        self.kept = done if self.kept is None else self.kept
        if done < total and now - self.last < _SECONDS_BETWEEN_LINES:
            return
        left = ""
        if self.kept < done < total:
            left = f", {_spelled((now - self.start) / (done - self.kept) * (total - done))} left"
        print(f"{self.title}: {done} of {total} cells{left} ({what or 'the only cell'})", file=sys.stderr, flush=True)
        self.last = now


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("cells"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}", style="dim", markup=False),
    ]
    # Cells may take minutes: the estimate looks at all of them, not at the last seconds.
    with Bar(*columns, console=Console(stderr=True), speed_estimate_period=7 * 86400.0) as bar:
        tasks = []

        def progress(done: int, total: int, what: str) -> None:
            if not tasks:
                tasks.append(bar.add_task(title, total=total, completed=done, what=what))
                bar.advance(tasks[0], 0)  # the estimate's first sample: what is kept took no time
            else:
                bar.update(tasks[0], completed=done, what=what)

        yield progress


def _spelled(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
