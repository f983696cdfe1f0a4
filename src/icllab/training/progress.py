"""How far a run is, on stderr and only on a terminal: steps, loss, time left."""

import contextlib
import sys
from collections.abc import Callable, Iterator

Progress = Callable[[int, float, int], None]


@contextlib.contextmanager
def shown(steps: int, done: int, members: int, wanted: bool | None) -> Iterator[Progress]:
    """A function ``(steps done, loss, members running)``; silent where ``wanted`` is false or nobody looks."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda done, loss, running: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = [
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps  left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    ]
    with Bar(*columns, console=Console(stderr=True), speed_estimate_period=3600.0) as bar:
        task = bar.add_task("training", total=steps, completed=done, what="compiling")

        def progress(done: int, loss: float, running: int) -> None:
            of = "" if members == 1 else f", {running} of {members} members"
            bar.update(task, completed=done, what=f"loss {loss:.4g}{of}")

        yield progress
