"""Ctrl-C that waits for its turn.

An exception that may come between any two instructions can fall between the reading of an answer and its keeping, or
between the handing out of an order and the note of it. Where answers come from elsewhere, an interruption is therefore
noted, and minded where nothing can be lost.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_noted() -> Iterator[list[int]]:
    """The first interruption within is noted in the list, a second one is raised.

    Those are meant that raise: Ctrl-C, and SIGTERM where someone has made it raise. Python hands signals to the main
    thread alone, so in any other nothing comes.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    raising = {number: handler for number, handler in handlers.items() if callable(handler)}

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            raising[signal.Signals(number)](number, frame)
        noted.append(number)

    try:
        for number in raising:
            signal.signal(number, note)
        yield noted
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)
