"""Which results are on disk, from names, times and small JSON files: no file is opened that has not changed.

Results of claims are directories with a ``configuration.json``, and a netCDF file that lies anywhere else may be from
anyone. Each has an id, made from where it lies; an address never has a path. Symbolic links are not followed, so that
nothing outside the directory is shown; their number is said.
"""

import hashlib
import itertools
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from icllab.core.errors import IclError
from icllab.lab.claim import SIZES
from icllab.lab.job import results_root
from icllab.lab.results import Store
from icllab.page.cards import VERDICTS

DEPTH = 8
ENTRIES = 50_000
LARGEST_JSON = 16 << 20
_HDF5 = b"\x89HDF\r\n\x1a\n"
_WATCHED = ("configuration.json", "verdict.json", "results.nc", "figure.png", "figure.pdf", "cells", "grids")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Something in the directory of results.

    Attributes:
        id: For addresses; ``label`` is for people: where it lies.
        kind: Results of a claim, or a file from elsewhere.
        path: A directory, or the file.
        claim: With ``size`` and ``control`` as its configuration says; empty of what is no claim's.
        current: Whether it lies where ``icl run`` looks for it; what was set aside does not.
        verdict: That was noted beside it, with ``findings``, ``notes`` and the ``version`` of the measurement.
        cells: Finished, ``of`` those asked for.
        files: Names of what can be had: ``results.nc``, ``figure.png``, ``figure.pdf``.
        updated: When it last changed, in seconds since 1970.
        fault: Why it cannot be used; empty where it can.
    """

    id: str
    label: str
    kind: Literal["claim", "file"]
    path: Path
    claim: str = ""
    size: str = ""
    control: str | None = None
    current: bool = False
    configuration: Mapping[str, Any] = field(default_factory=dict)
    verdict: str | None = None
    findings: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    version: object = 1
    cells: int = 0
    of: int = 0
    files: tuple[str, ...] = ()
    updated: float = 0.0
    fault: str = ""


class Index:
    """What is in a directory of results, looked at again at every :meth:`refresh`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.links = 0
        self._known: dict[Path, tuple[Any, Stored]] = {}
        self._lock = threading.Lock()

    def refresh(self) -> dict[str, Stored]:
        """Id -> what is there now."""
        with self._lock:
            self.links, budget = 0, [ENTRIES]
            known: dict[Path, tuple[Any, Stored]] = {}
            for path, kind in self._places(self.out, DEPTH, budget):
                signature = _signature(path, kind)
                old = self._known.get(path)
                known[path] = old if old and old[0] == signature else (signature, self._read(path, kind))
            self._known = known
            return {stored.id: stored for _, stored in known.values()}

    def present(self) -> dict[str, Stored]:
        """What was there at the last refresh."""
        with self._lock:
            return {stored.id: stored for _, stored in self._known.values()}

    def _places(self, folder: Path, depth: int, budget: list[int]) -> Iterator[tuple[Path, Literal["claim", "file"]]]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        budget[0] -= len(entries)
        names = {entry.name for entry in entries}
        if "configuration.json" in names:
            yield folder, "claim"
            return
        for entry in entries:
            if budget[0] < 0 or entry.name.startswith("."):
                continue
            if entry.is_symlink():
                self.links += 1
            elif entry.is_dir() and depth > 0:
                yield from self._places(Path(entry.path), depth - 1, budget)
            elif entry.is_file() and entry.name.endswith(".nc"):
                yield Path(entry.path), "file"

    def _read(self, path: Path, kind: Literal["claim", "file"]) -> Stored:
        label = path.relative_to(self.out).as_posix() or path.name
        stored: dict[str, Any] = {
            "id": hashlib.sha256(label.encode("utf-8", "surrogateescape")).hexdigest()[:16],
            "label": label.encode("utf-8", "replace").decode(),
            "kind": kind,
            "path": path,
            "updated": _updated(path),
        }
        if kind == "file":
            return Stored(**stored, files=("results.nc",))
        try:
            return Stored(**stored, **self._of_claim(path))
        except (IclError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            said = str(error) if isinstance(error, IclError) else f"{type(error).__name__}: {error}"
            return Stored(**stored, fault=" ".join(said.split())[:500])

    def _of_claim(self, path: Path) -> dict[str, Any]:
        """What the small files of a store say; what they do not say is refused."""
        configuration = _json(path / "configuration.json")
        claim, size, control = (configuration.get(name) for name in ("claim", "size", "control"))
        if not isinstance(claim, str) or size not in SIZES or not isinstance(control, str | None):
            raise ValueError("configuration.json: expected claim, size and control, got others")
        files = tuple(name for name in _WATCHED[2:5] if _plain(path / name))
        found: dict[str, Any] = {
            "claim": claim,
            "size": size,
            "control": control,
            "current": path == results_root(self.out, claim, size, control),
            "configuration": configuration,
            "files": files,
        }
        store = Store(path)
        cells = (store.path(cell).name for grid in store.requests() for cell in grid.cells())
        wanted = set(itertools.islice(cells, ENTRIES + 1))
        if len(wanted) > ENTRIES:
            raise ValueError(f"grids: expected at most {ENTRIES} cells, got more")
        there = {entry.name for entry in os.scandir(path / "cells")} if (path / "cells").is_dir() else set()
        found |= {"cells": len(wanted & there), "of": len(wanted)}
        if "results.nc" in files:
            with (path / "results.nc").open("rb") as file:
                if file.read(len(_HDF5)) != _HDF5:
                    raise ValueError("results.nc: expected netCDF-4, got another format; `icl run` writes it again")
        if (path / "verdict.json").is_file():
            noted = _json(path / "verdict.json")
            verdict = noted.get("verdict")
            found |= {
                "verdict": verdict if verdict in VERDICTS else None,
                "findings": tuple(row for row in _list(noted.get("findings")) if isinstance(row, dict)),
                "notes": tuple(str(note) for note in _list(noted.get("notes"))),
                "version": noted.get("measure", 1),
            }
        return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _plain(path: Path) -> bool:
    """A file, and no link to one."""
    return path.is_file() and not path.is_symlink()


def _json(path: Path) -> dict[str, Any]:
    if not _plain(path) or path.stat().st_size > LARGEST_JSON:
        raise ValueError(f"{path.name}: expected a file of at most {LARGEST_JSON} bytes")
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"{path.name}: expected a JSON object, got {type(value).__name__}")
    return value


def _state(path: Path) -> tuple[int, int] | None:
    try:
        state = path.lstat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size


def _signature(path: Path, kind: str) -> Any:
    """What changes when the content does."""
    if kind == "claim":
        return tuple(_state(path / name) for name in _WATCHED)
    return _state(path)


def _updated(path: Path) -> float:
    """When a result last changed."""
    states = [_state(path), *(_state(path / name) for name in _WATCHED[:4])]
    return max(state[0] for state in states if state is not None) / 1e9 if any(states) else 0.0
