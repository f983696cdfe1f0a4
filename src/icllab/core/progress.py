"""Progress of what lasts, for whoever looks: a line that rewrites itself on a terminal's stderr or in a notebook.

A function that may last opens a display (:func:`shown`) and the loops inside of it report to that: a stage
(:func:`stage`), and how far it is (:func:`advance`, :func:`move_to`). Without a display a report costs nothing. There
is one display: a function that is called inside of another that shows its progress, or hides it, opens none.
"""

import contextlib
import functools
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from icllab.core.errors import expected
from icllab.core.spelling import printable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

DELAY = 1.0  # seconds of silence at the beginning, unless the progress is asked for
INTERVAL, INTERVAL_OF_LINES = 0.2, 10.0  # seconds from one look to the next; of lines that do not rewrite themselves
WIDTH = 20  # characters of the bar
REPORTS = 50  # of a compiled loop: they take some 20 ms in all


class _State(threading.local):
    """What a thread shows."""

    display: "Display | None" = None
    hidden = False


_state = _State()
_reported: "Display | None" = None  # that of the compiled loop which runs: its reports come from threads of XLA


class Display:
    """One line: a bar, how much of it is done, the time left, and the number that is being computed."""

    def __init__(self, title: str, write: Callable[[str, bool], None], *, delay: float, interval: float) -> None:
        self.title, self.label, self._write, self._interval = title, title, write, interval
        self._opened = time.monotonic()
        self._next, self._written = self._opened + delay, False
        self.begin("", None, "", 0)

    def begin(self, label: str, total: int | None, unit: str, done: int) -> None:
        """Begin a stage of ``total`` units, of which some may be done; None: nobody knows how many."""
        self.label = f"{self.title}, {label}" if label else self.title
        self.total, self.unit, self.done, self.text, self.left = total, unit, done, "", None
        self._start, self._first = time.monotonic(), done
        self._look()

    def move_to(self, done: int, text: str, left: float | None = None) -> None:
        """Look again, after ``done`` units in all."""
        if done == self._first:
            self._start = time.monotonic()  # what comes before the first unit, such as compilation, is no pace
        self.done, self.text, self.left = done, text or self.text, left
        self._look()

    def end(self, complete: bool) -> None:
        """The last look, which stays, if there was one before."""
        if self._written:
            self.done, self._start = self.total if complete and self.total else self.done, self._opened
            self._write(self.line(), True)

    def line(self) -> str:
        """What is seen."""
        seconds = time.monotonic() - self._start
        counts = [f"{self.done} {self.unit}".strip()] if self.done else []
        bar, left = "", ""
        if self.total:
            share = min(self.done / self.total, 1.0)
            bar = f"[{'#' * round(WIDTH * share):-<{WIDTH}}]"
            counts = [f"{self.done} of {self.total} {self.unit}"]
            if self._first < self.done < self.total:
                pace = seconds / (self.done - self._first)
                left = f"{spelled(pace * (self.total - self.done) if self.left is None else self.left)} left"
        parts = [*counts, left or spelled(seconds), self.text]
        return printable(f"{self.label} {bar} ".lstrip() + ", ".join(filter(None, parts)))

    def _look(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next, self._written = now + self._interval, True
            self._write(self.line(), False)


@contextlib.contextmanager
def shown(title: str, visible: bool | None = None) -> Iterator[None]:
    """Open a display while a function runs; None: if stderr is a terminal or a notebook.

    Where one is open, what runs inside reports to that. False hides all progress inside.

    Raises:
        InputError: ``visible`` is none of the three.
    """
    if visible is not None and not isinstance(visible, bool):
        raise expected("progress", "True, False or None", visible)
    if visible is not False and (_state.display is not None or _state.hidden):
        yield
        return
    notebook, terminal = _in_notebook(), _on_terminal()
    before = _state.display, _state.hidden
    if visible or (visible is None and (notebook or terminal)):
        interval = INTERVAL if notebook or terminal else INTERVAL_OF_LINES
        write = _notebook_line() if notebook else _terminal_line if terminal else _plain_line
        _state.display = Display(title, write, delay=0.0 if visible else DELAY, interval=interval)
    else:
        _state.display, _state.hidden = None, visible is False
    display = _state.display
    complete = False
    try:
        yield
        complete = True
    finally:
        _state.display, _state.hidden = before
        if display is not None:
            display.end(complete)


def shows(title: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a function with an argument ``progress`` with the display that this asks for."""

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            visible: Any = kwargs.get("progress")
            with shown(title, visible):
                return function(*args, **kwargs)

        return wrapped

    return decorate


def watched() -> bool:
    """Whether somebody looks, so that a compiled loop should :func:`report`."""
    global _reported
    _reported = _state.display
    return _reported is not None


def stage(label: str, total: int | None = None, unit: str = "", *, done: int = 0) -> None:
    """Begin a stage of what is shown, if it is."""
    if _state.display is not None:
        _state.display.begin(label, total, unit, done)


def move_to(done: int, text: str = "", *, left: float | None = None) -> None:
    """So many units of the stage are done; ``left``: seconds, if the caller knows better than the pace so far."""
    if _state.display is not None:
        _state.display.move_to(done, text, left)


def advance(count: int = 1, text: str = "") -> None:
    """So many more units of the stage are done."""
    if _state.display is not None:
        _state.display.move_to(_state.display.done + count, text)


def report(done: int, text: str = "", *, more: bool = False) -> None:
    """A report of a compiled loop: so many units are done, or so many ``more``."""
    if _reported is not None:
        _reported.move_to(_reported.done + done if more else done, text)


def spelled(seconds: float) -> str:
    """Seconds as a person says them."""
    if not math.isfinite(seconds):
        return ""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def _in_notebook() -> bool:
    """Whether IPython runs in a kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _on_terminal() -> bool:
    """Whether there is a stderr, and it is a terminal."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def _terminal_line(line: str, last: bool) -> None:
    width = max(shutil.get_terminal_size().columns, 20) - 1
    sys.stderr.write(f"\r{line[:width]}\x1b[K" + ("\n" if last else ""))
    sys.stderr.flush()


def _plain_line(line: str, last: bool) -> None:
    print(line, file=sys.stderr, flush=True)


def _notebook_line() -> Callable[[str, bool], None]:
    """A line of a notebook that is written again in its place: nothing but IPython is needed."""
    from IPython.display import display  # of the kernel that runs this

    handle = None

    def write(line: str, last: bool) -> None:
        nonlocal handle
        if handle is None:
            handle = display({"text/plain": line}, raw=True, display_id=True)
        else:
            handle.update({"text/plain": line}, raw=True)

    return write
