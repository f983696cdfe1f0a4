"""A progress bar on stderr: steps, loss, time left."""

import contextlib
import sys
from collections.abc import Callable, Iterator

Progress = Callable[[int, float, int], None]


@contextlib.contextmanager
def shown(steps: int, step: int, members: int, visible: bool | None) -> Iterator[Progress]:
    """Yield ``show(step, loss, members running)``; it shows nothing unless ``visible``, or stderr is a terminal."""
    if not (sys.stderr.isatty() if visible is None else visible):
        yield lambda step, loss, running: None
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
        TextColumn("{task.fields[text]}", markup=False),
    ]
    with Bar(*columns, console=Console(stderr=True), speed_estimate_period=3600.0) as bar:
        task = bar.add_task("training", total=steps, completed=step, text="compiling")

        def progress(step: int, loss: float, running: int) -> None:
            count = "" if members == 1 else f", {running} of {members} members"
            bar.update(task, completed=step, text=f"loss {loss:.4g}{count}")

        yield progress
