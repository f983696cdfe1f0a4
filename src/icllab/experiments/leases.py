"""Which run computes which cell: a lease is a small file in the store, that one run makes and no other can.

Any number of runs may work on one directory, on one machine or on several with a shared file system; a cell that one of
them has taken is left to it. A run that was killed leaves its leases behind. On its machine it is seen at once that its
process is gone. Elsewhere its heartbeat is watched: one that does not change for :data:`SILENT` seconds of the
watcher's own clock has stopped. No two clocks are ever compared.

A lease saves work and guards nothing: a cell that two runs computed all the same is written once
(:mod:`icllab.experiments.sweep`).
"""

import contextlib
import json
import os
import time
from pathlib import Path

from icllab.core.errors import EnvironmentFault
from icllab.core.files import disk_faults
from icllab.core.grid import Coordinates
from icllab.experiments.heartbeat import FOLDER as RUNNING
from icllab.experiments.heartbeat import Heart, beats, gone, runs
from icllab.experiments.store import Store

FOLDER = "leases"
SILENT = 120.0
"""Seconds without a heartbeat after which the leases of a run are taken over."""


class Leases:
    """The cells that one run has taken; used as a context, after which it has none."""

    def __init__(self, store: Store, heart: Heart) -> None:
        self.store = store
        self._heart = heart
        self._mine = json.dumps({"run": heart.path.name, "pid": heart.beat.pid, "born": heart.beat.born}).encode()
        self._held: set[Path] = set()
        self._seen: dict[Path, tuple[bytes, bytes, float]] = {}

    def __enter__(self) -> "Leases":
        with disk_faults(f"cannot use {self.store.root} for results"):
            self._folder.mkdir(exist_ok=True)
        self._tidy()
        return self

    def __exit__(self, *error: object) -> None:
        for path in list(self._held):
            self._remove(path)
        self._tidy()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    @property
    def _folder(self) -> Path:
        return self.store.root / FOLDER

    def take(self, cell: Coordinates) -> bool:
        """Whether the cell is this run's now; False: another run has it."""
        path = self._path(cell)
        with self.store.locked(), disk_faults(f"cannot take a cell in {self.store.root}"):
            if path.exists():
                if not self._stale(path):
                    return False
                path.unlink(missing_ok=True)
            try:
                self._folder.mkdir(exist_ok=True)  # the last of other runs may just have removed it
                with path.open("xb") as file:
                    self._held.add(path)
                    file.write(self._mine)
            except FileExistsError:  # where the file system has no locks
                return False
        self._seen.pop(path, None)
        return True

    def release(self, cell: Coordinates) -> None:
        """The cell is there, or left to others."""
        self._remove(self._path(cell))

    def _path(self, cell: Coordinates) -> Path:
        return self._folder / f"{self.store.path(cell).stem}.json"

    def _remove(self, path: Path) -> None:
        """Remove a lease, unless another run has taken it over meanwhile."""
        self._held.discard(path)
        with contextlib.suppress(OSError):
            if path.read_bytes() in (self._mine, b""):
                path.unlink()

    def _stale(self, path: Path) -> bool:
        """Whether the run that made a lease has ended, as far as it can be known from here."""
        said = _content(path)
        run, pid, born = _owner(said)
        if gone(pid, born):
            return True
        beat, now = _content(self.store.root / RUNNING / run), time.monotonic()
        before = self._seen.get(path)
        if before is None or before[:2] != (said, beat):
            self._seen[path] = (said, beat, now)
            return False
        return now - before[2] > SILENT

    def _tidy(self) -> None:
        """Remove what killed runs of this machine have left: leases, and files they were about to write."""
        with contextlib.suppress(OSError, EnvironmentFault), self.store.locked():
            for path in self._folder.glob("*.json"):
                _, pid, born = _owner(_content(path))
                if gone(pid, born):
                    path.unlink(missing_ok=True)
            # First those that are there, then who is there: a run says that it runs before it writes.
            partial = [path for pattern in (".*.partial", "*/.*.partial") for path in self.store.root.glob(pattern)]
            others = [beat for beat in beats(self.store.root) if beat.alive and beat != self._heart.beat]
            for path in [] if others else partial:
                if _left_behind(path):
                    path.unlink(missing_ok=True)


def _left_behind(path: Path) -> bool:
    """Whether no process of this machine is writing a temporary file, which names its writer's number."""
    number = path.name.split(".")[-3]
    return not number.isdigit() or int(number) == os.getpid() or not runs(int(number))


def _content(path: Path) -> bytes:
    """What a small file holds; nothing where there is none."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def _owner(said: bytes) -> tuple[str, int, str]:
    """The run that made a lease: its heartbeat's name, its process and when that was born; unknown of a torn file."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        owner = json.loads(said)
        return os.path.basename(str(owner["run"])), int(owner["pid"]), str(owner["born"])
    return "", 0, ""
