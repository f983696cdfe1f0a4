"""Progress of long computations, as one line that rewrites itself on a terminal's stderr or in a notebook.

A function that may last opens a display (:func:`shown`) and the loops inside of it report to that: a stage
(:func:`stage`), and how far it is (:func:`advance`, :func:`move_to`). Without a display a report costs nothing. There
is one display: a function that is called inside of another that shows its progress, or hides it, opens none. Where
nobody looks, one line announces each kind of stage that takes more than twenty seconds.

A compiled loop runs in stretches (:func:`in_stretches`), so that Ctrl-C ends it within a second.
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
Carry = TypeVar("Carry")

DELAY = 1.0  # seconds of silence at the beginning, unless the progress is asked for
INTERVAL, INTERVAL_OF_LINES = 0.2, 10.0  # seconds from one look to the next; of lines that do not rewrite themselves
WIDTH = 20  # characters of the bar
STRETCH = 0.25  # seconds of a compiled loop between two looks at the keyboard
GROWTH = 4  # of a stretch over the one before, at most
ANNOUNCED = 20.0  # seconds of a stage that is announced where nobody looks


class _State(threading.local):
    """Display of a thread, and the finished parts of the thread's result."""

    display: "Display | None" = None
    hidden = False
    parts: tuple[tuple[str, int, int], ...] = ()  # labels, numbers and counts of the parts around a stage
    depth = 0
    finished: tuple[Any, ...] = ()


_state = _State()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a diagnostic; its one-line message says how far the computation was.

    Attributes:
        finished: Parts of the result that were complete, such as the estimates of some steps.
    """

    def __init__(self, message: str, finished: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.finished = finished

    def _render_traceback_(self) -> list[str]:
        """Lines of the traceback in a notebook."""
        return [str(self)]


class Display:
    """One line with a bar, the finished fraction, the time left, and the number being computed."""

    def __init__(self, title: str, write: Callable[[str, bool], None], *, delay: float, interval: float) -> None:
        self.title, self.label, self._write, self._interval = title, title, write, interval
        self._opened = time.monotonic()
        self._next, self._written = self._opened + delay, False
        self.begin("", None, "", 0)

    def begin(self, label: str, total: int | None, unit: str, done: int) -> None:
        """Start a stage of ``total`` units, ``done`` of them finished; None: the total is unknown."""
        parts = [f"{name} {i + 1} of {count}" if count > 1 else name for name, i, count in _state.parts]
        self.label = ", ".join(filter(None, [self.title, *parts, label]))
        self.total, self.unit, self.done, self.text, self.left = total, unit, done, "", None
        self._start, self._first = time.monotonic(), done
        self._look()

    def move_to(self, done: int, text: str, left: float | None = None) -> None:
        """Update the line after ``done`` units in all."""
        if done == self._first:
            self._start = time.monotonic()  # what comes before the first unit, such as compilation, is no pace
        self.done, self.text, self.left = done, text or self.text, left
        self._look()

    def end(self, complete: bool) -> None:
        """Write the final line, if a line was written before."""
        if self._written:
            self.done, self._start = self.total if complete and self.total else self.done, self._opened
            self._write(self.line(), True)

    def position(self) -> str:
        """Label of the stage, and the number of finished units."""
        return f"{self.label}, {self.done} of {self.total} {self.unit}" if self.total else self.label

    def line(self) -> str:
        """Text of the line."""
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


class Announcement(Display):
    """One line for each kind of stage that takes more than twenty seconds, and nothing else."""

    def __init__(self, title: str) -> None:
        self.announced: set[str] = set()
        self.kind, self.repeats = title, 1
        super().__init__(title, _plain_line, delay=0.0, interval=0.0)

    def begin(self, label: str, total: int | None, unit: str, done: int) -> None:
        """Start a stage; the stages of all parts count as one kind."""
        self.kind = ", ".join([*(name for name, _, _ in _state.parts), label])
        self.repeats = math.prod(count for _, _, count in _state.parts)
        super().begin(label, total, unit, done)

    def end(self, complete: bool) -> None:
        """Do nothing, because an announcement is written before the end."""

    def _look(self) -> None:
        if self.kind in self.announced or not self.total or self.done <= self._first:
            return
        seconds = time.monotonic() - self._start
        left = seconds / (self.done - self._first) * (self.total - self.done) if self.left is None else self.left
        stage = seconds + left
        if stage * self.repeats > ANNOUNCED and seconds >= DELAY:
            self.announced.add(self.kind)
            count, whole = f"{self.total} {self.unit}".rstrip(), ""
            if self.repeats > 1:
                whole = f", {spelled(stage * self.repeats)} for all {self.repeats}"
            self._write(f"{self.label} ({count}): about {spelled(stage)}{whole}", False)


@contextlib.contextmanager
def shown(title: str, visible: bool | None = None) -> Iterator[None]:
    """Open a display while a function runs; None: only if stderr is a terminal or a notebook.

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
    elif visible is None and sys.stderr is not None and not sys.stderr.closed:
        _state.display = Announcement(title)
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
    """Decorate a function that has an argument ``progress`` with the display that the argument requests."""

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            visible: Any = kwargs.get("progress")
            with shown(title, visible), _interruptible(title):
                return function(*args, **kwargs)

        return wrapped

    return decorate


@contextlib.contextmanager
def _interruptible(title: str) -> Iterator[None]:
    """Turn Ctrl-C in the outermost diagnostic into an :class:`Interrupted` with the finished parts."""
    _state.depth += 1
    if _state.depth == 1:
        _state.finished = ()
    try:
        yield
    except KeyboardInterrupt as error:
        if _state.depth > 1 or isinstance(error, Interrupted):
            raise
        count, display = len(_state.finished), _state.display
        place = title if display is None else display.position()
        kept = f"{count} finished part{'s' * (count > 1)}: sys.last_value.finished" if count else "nothing is finished"
        raise Interrupted(f"{place}: interrupted; {kept}", _state.finished) from None
    finally:
        _state.depth -= 1


def keep(part: Any) -> None:
    """Keep a finished part of the outermost diagnostic's result, in case the user interrupts it."""
    if _state.depth:
        _state.finished = (*_state.finished, part)


def in_stretches(
    advance: Callable[[Carry, int, int], Carry],
    carry: Carry,
    last: int,
    *,
    before: int = 0,
    shown: bool = True,
    text: Callable[[Carry], str] | None = None,
    check: Callable[[Carry], None] | None = None,
) -> Carry:
    """Run the iterations 0 to ``last`` of a compiled loop, in stretches of about a quarter of a second.

    Args:
        advance: ``(carry, first, end) -> carry`` after the turns from ``first`` to ``end``, one program for all
            stretches. The first call makes no turn, and compiles. A clock decides how many turns a stretch has, and
            does not change their values.
        carry: Carry before the first turn.
        last: Number of turns.
        before: Units of the stage that were done before.
        shown: Whether turns are units of the stage.
        text: What the display says of a carry.
        check: Raise if the loop is to end.
    """
    import jax

    done, count = 0, 1
    carry = jax.block_until_ready(advance(carry, 0, 0))
    if shown:
        move_to(before)
    while done < last:
        end, clock = min(done + count, last), time.perf_counter()
        carry = jax.block_until_ready(advance(carry, done, end))
        pace = max(time.perf_counter() - clock, 1e-9) / (end - done)
        done, count = end, max(1, min(int(STRETCH / pace), GROWTH * count))
        if check is not None:
            check(carry)
        if shown:
            move_to(before + done, "" if text is None or _state.display is None else text(carry))
    return carry


def stage(label: str, total: int | None = None, unit: str = "", *, done: int = 0) -> None:
    """Start a stage of the progress display, if there is one."""
    if _state.display is not None:
        _state.display.begin(label, total, unit, done)


@contextlib.contextmanager
def part(label: str, number: int = 0, count: int = 1) -> Iterator[None]:
    """Name part ``number`` of ``count`` of a computation; stages inside the block belong to it."""
    before = _state.parts
    _state.parts = (*before, (label, number, count))
    try:
        yield
    finally:
        _state.parts = before


def move_to(done: int, text: str = "", *, left: float | None = None) -> None:
    """Set the finished units of the stage; ``left``: seconds, if the caller has a better estimate than the pace."""
    if _state.display is not None:
        _state.display.move_to(done, text, left)


def advance(count: int = 1, text: str = "") -> None:
    """Add ``count`` finished units to the stage."""
    if _state.display is not None:
        _state.display.move_to(_state.display.done + count, text)


def spelled(seconds: float) -> str:
    """A duration as text, such as ``2 min 05 s``."""
    if not math.isfinite(seconds):
        return ""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def _in_notebook() -> bool:
    """True if IPython runs in a kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _on_terminal() -> bool:
    """True if stderr exists and is a terminal."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def _terminal_line(line: str, last: bool) -> None:
    width = max(shutil.get_terminal_size().columns, 20) - 1
    sys.stderr.write(f"\r{line[:width]}\x1b[K" + ("\n" if last else ""))
    sys.stderr.flush()


def _plain_line(line: str, last: bool) -> None:
    print(line, file=sys.stderr, flush=True)


def _notebook_line() -> Callable[[str, bool], None]:
    """A writer that replaces its line in the notebook's output; it needs only IPython."""
    from IPython.display import display  # of the kernel that runs this

    handle = None

    def write(line: str, last: bool) -> None:
        nonlocal handle
        if handle is None:
            handle = display({"text/plain": line}, raw=True, display_id=True)
        else:
            handle.update({"text/plain": line}, raw=True)

    return write
