"""A run tells others how far it is: a small file in its store, for as long as it runs.

Whoever reads results may show a run that another process makes. A process that was killed leaves its file behind; that
it no longer runs is seen from its number and the time it was started, on the machine where it ran.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = "running"
SECONDS = 0.5
"""A run writes no sooner than so long after it last did, but for its first and last cell."""
SILENT = 900.0
"""Seconds after which a run on another machine that says nothing is taken to have ended."""


@dataclass(frozen=True)
class Beat:
    """How far a run is.

    Attributes:
        pid: Number of its process on ``host``; ``born`` says when that started, where the system tells.
        started: Seconds since 1970; ``updated`` is when it last said something.
        done: Cells that are finished, of ``total``; ``what`` is the last one.
        left: Seconds that the others will take; None: not known yet.
        workers: Number of processes.
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

    @property
    def alive(self) -> bool:
        """Whether the run goes on, as far as can be known from here."""
        if self.host != socket.gethostname():
            return time.time() - self.updated < SILENT
        born = _born(self.pid)
        return born is not None and born == self.born


class Heart:
    """The file of one run; a disk that refuses it does not stop the run."""

    def __init__(self, root: Path, workers: int) -> None:
        host, now = socket.gethostname(), time.time()
        pid = os.getpid()
        name = "".join(c if c.isalnum() or c in "-." else "_" for c in host)
        self.path = root / FOLDER / f"{name}-{pid}.json"
        self.beat = Beat(pid, host, _born(pid) or "", now, now, workers=workers)
        self._said = 0.0

    def tell(self, done: int, total: int, what: str, left: float | None) -> None:
        """How far the run is."""
        now = time.monotonic()
        if 0 < done < total and now - self._said < SECONDS:
            return
        self._said = now
        self.beat = Beat(
            **asdict(self.beat) | {"updated": time.time(), "done": done, "total": total, "what": what, "left": left}
        )
        temporary = self.path.with_suffix(".partial")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(asdict(self.beat)), "utf-8")
            temporary.replace(self.path)

    def stop(self) -> None:
        """The run has ended."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self.path.parent.rmdir()


@contextlib.contextmanager
def beating(root: Path, workers: int) -> Iterator[Heart]:
    """A heart for as long as what is inside runs; files of runs that were killed on this machine go."""
    for path, beat in _files(root):
        if beat.host == socket.gethostname() and not beat.alive:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    heart = Heart(root, workers)
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
    left = said["left"]
    return Beat(
        int(said["pid"]),
        str(said["host"]),
        str(said["born"]),
        float(said["started"]),
        float(said["updated"]),
        int(said["done"]),
        int(said["total"]),
        str(said["what"]),
        None if left is None else float(left),
        int(said["workers"]),
    )


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
