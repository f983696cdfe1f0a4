"""A run tells others how far it is: a small file in its store, for as long as it runs.

Whoever reads results may show a run that another process makes. The file is written anew every few seconds, also while
a cell takes hours. A process that was killed leaves it behind; that it no longer runs is seen from its number and the
time it was started, on the machine where it ran.
"""

import contextlib
import functools
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

FOLDER = "running"
SECONDS = 0.5
"""A run writes no sooner than so long after it last did, but for its first and last cell."""
PERIOD = 10.0
"""Seconds after which it writes at the latest."""
SILENT = 900.0
"""Seconds after which a run on another machine that says nothing is taken to have ended."""


@dataclass(frozen=True)
class Beat:
    """How far a run is.

    Attributes:
        pid: Number of its process on ``host``; ``born`` says on which start of which machine that is, and when it
            started, where the system tells.
        started: Seconds since 1970; ``updated`` is when it last said something.
        done: Cells that are finished, of ``total``; ``what`` is the last one.
        left: Seconds that the others will take; None: not known yet.
        workers: Number of cells that it computes at a time.
        count: How often it has said something; it grows even if the clock is set back.
    """

    pid: int
    host: str
    born: str
    started: float
    updated: float
    done: int = 0
    total: int = 0
    what: str = ""
    left: float | None = None
    workers: int = 1
    count: int = 0

    @property
    def alive(self) -> bool:
        """Whether the run goes on, as far as can be known from here."""
        if self.born.startswith(_machine()):
            return not gone(self.pid, self.born)
        return time.time() - self.updated < SILENT


class Heart:
    """The file of one run; a disk that refuses it does not stop the run."""

    def __init__(self, root: Path) -> None:
        host, now = socket.gethostname(), time.time()
        pid = os.getpid()
        name = "".join(c if c.isalnum() or c in "-." else "_" for c in host)
        self.path = root / FOLDER / f"{name}-{pid}.json"
        self.beat = Beat(pid, host, f"{_machine()} {_born(pid) or ''}", now, now)
        self._said = 0.0
        self._writing = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)

    def start(self) -> None:
        """The run begins."""
        self._write()
        self._thread.start()

    def tell(self, done: int, total: int, what: str, left: float | None, workers: int = 1) -> None:
        """How far the run is."""
        now = time.monotonic()
        if 0 < done < total and now - self._said < SECONDS:
            return
        self._said = now
        self._write(done=done, total=total, what=what, left=left, workers=workers)

    def _write(self, **changed: Any) -> None:
        with self._writing, contextlib.suppress(OSError):
            self.beat = replace(self.beat, updated=time.time(), count=self.beat.count + 1, **changed)
            temporary = self.path.with_suffix(".partial")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(asdict(self.beat)), "utf-8")
            temporary.replace(self.path)

    def _go_on(self) -> None:
        while not self._stopped.wait(PERIOD):
            self._write()

    def stop(self) -> None:
        """The run has ended."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(OSError):
            self.path.with_suffix(".partial").unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            self.path.parent.rmdir()


@contextlib.contextmanager
def beating(root: Path) -> Iterator[Heart]:
    """A heart for as long as what is inside runs; files of runs that were killed on this machine go."""
    for path, beat in _files(root):
        if gone(beat.pid, beat.born):
            with contextlib.suppress(OSError):
                path.with_suffix(".partial").unlink(missing_ok=True)
                path.unlink(missing_ok=True)
    heart = Heart(root)
    heart.start()
    try:
        yield heart
    finally:
        heart.stop()


def beats(root: Path) -> list[Beat]:
    """The runs that are computing the cells of a store, or were when they were killed."""
    return [beat for _, beat in _files(root)]


def _files(root: Path) -> list[tuple[Path, Beat]]:
    """The files that say so; what is none of ours is passed over."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted((root / FOLDER).glob("*.json")):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, OverflowError):
                found.append((path, _parsed(json.loads(path.read_bytes()[:100_000]))))
    return found


def _parsed(said: Any) -> Beat:
    kinds = {"pid": int, "host": str, "born": str, "started": float, "updated": float, "done": int, "total": int}
    known = {name: kind(said[name]) for name, kind in {**kinds, "what": str, "workers": int, "count": int}.items()}
    return Beat(**known, left=None if said["left"] is None else float(said["left"]))


def gone(pid: int, born: str) -> bool:
    """Whether a process is known to have ended: one of this machine, of which its number and its birth tell."""
    machine, _, when = born.rpartition(" ")
    return machine == _machine() and _born(pid) != when


def runs(pid: int) -> bool:
    """Whether this machine has a process of that number."""
    return _born(pid) is not None


@functools.cache
def _machine() -> str:
    """What tells machines, their starts and their containers apart; elsewhere than on Linux, the machine's name."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{start}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _born(pid: int) -> str | None:
    """When a process started, as Linux tells it; elsewhere empty for one that runs, None for one that does not."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        if Path("/proc/self/stat").exists():
            rest = stat.read_text().rpartition(")")[2].split()
            return None if rest[0] in "ZX" else rest[19]
        os.kill(pid, 0)
    except PermissionError:
        return ""
    except (OSError, IndexError):
        return None
    return ""
