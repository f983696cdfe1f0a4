"""Results on disk, from names, times and small JSON files; a file of data is only sent, never opened.

Results of a claim lie in ``OUT/<subject>/<finding>/<size>``, those of a negative control in ``<size>@<control>``.
Only these directories are read. A symbolic link to a file, or to a directory outside of ``OUT``, is not followed.
"""

import itertools
import os
import shlex
import stat
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from icllab.core.errors import IclError
from icllab.core.files import parse_json
from icllab.lab.claim import SIZES
from icllab.lab.job import OUT, results_root, sizes_present
from icllab.lab.results import Store
from icllab.lab.verdict_files import kept_verdict
from icllab.page import cards
from icllab.page.cards import Evidence, Picture
from icllab.page.catalogue import Entry

MOST_CELLS = 50_000
LARGEST_JSON = 16 << 20
FILES = {"figure.png": "Figure (PNG)", "figure.pdf": "Figure (PDF)", "results.nc": "Data (NetCDF)"}
_HDF5 = b"\x89HDF\r\n\x1a\n"
_STATE_FILES = ("configuration.json", "verdict.json", *FILES, "cells", "grids")


@dataclass(frozen=True, kw_only=True)
class Result:
    """Results of a claim at one size, for the claim itself or for one of its negative controls.

    Attributes:
        path: Their directory.
        verdict: The verdict beside them, with ``findings``, ``notes`` and the ``version`` of the measurement.
        cells: Number of finished cells, of ``total``.
        files: Names of ``FILES`` that exist.
        updated: Time of the last change, in seconds since 1970.
        fault: Why they cannot be used; empty if they can.
    """

    claim: str
    size: str
    control: str | None
    path: Path
    verdict: str | None = None
    findings: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    version: object = 1
    cells: int = 0
    total: int = 0
    files: Sequence[str] = ()
    updated: float = 0.0
    fault: str = ""

    def address(self, file: str) -> str:
        """The address of one of ``files``, relative to the page's; it changes whenever the results do."""
        return f"api/results/{self.claim}/{self.path.name}/{file}?{int(self.updated * 1000)}"


class Results:
    """The results of claims in one directory; a result is read again when its files have changed."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._cache: dict[Path, tuple[Any, Result]] = {}
        self._lock = threading.Lock()

    def of(self, entry: Entry) -> list[Result]:
        """Results of a claim, from the smallest size on, then those of its negative controls."""
        card = entry.card
        keys = [
            (size, control)
            for control in (None, *card.controls)
            for size in sizes_present(self.out, card.claim, control)
        ]
        return [self._result(card.claim, size, control) for size, control in keys]

    def _result(self, claim: str, size: str, control: str | None) -> Result:
        path = results_root(self.out, claim, size, control)
        states = [_state(path / name) for name in _STATE_FILES]
        signature = (path.resolve(), *states)
        with self._lock:
            item = self._cache.get(path)
            if item is None or item[0] != signature:
                fields: dict[str, Any] = {"updated": max(time for time, _ in states) / 1e9}
                try:
                    if not path.resolve().is_relative_to(self.out.resolve()):
                        raise ValueError(f"{path.name}: expected a directory within {self.out}, got a link elsewhere")
                    fields |= _content(path)
                except (IclError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                    message = str(error) if isinstance(error, IclError) else f"{type(error).__name__}: {error}"
                    fields["fault"] = " ".join(message.split())[:500]
                item = (signature, Result(claim=claim, size=size, control=control, path=path, **fields))
                self._cache[path] = item
            return item[1]


def evidence(result: Result, entry: Entry, command: str) -> Evidence:
    """A result of a claim, as a part of its card."""
    notes = list(result.notes)
    if result.cells < result.total:
        notes.insert(0, f"{result.cells} of {result.total} cells are finished; the same command continues.")
    time = datetime.fromtimestamp(result.updated, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Evidence(
        size=result.size,
        control=result.control,
        verdict=result.verdict,
        findings=result.findings,
        stale=bool(result.verdict and result.version != entry.version),
        local=True,
        notes=notes,
        links=[(label, result.address(name)) for name, label in FILES.items() if name in result.files],
        command=command,
        origin=[f"last changed {time}"],
        fault=result.fault,
    )


def command(claim: str, size: str, control: str | None, out: Path, claims: Path | None) -> str:
    """The command that measures a claim again, quoted for a shell."""
    words = ["icl", "run", claim, "--size", size]
    words += ["--control", control] if control else []
    words += ["--out", str(out)] if str(out) != OUT else []
    words += ["--claims", str(claims)] if claims is not None else []
    return shlex.join(words)


def picture(entry: Entry, results: Sequence[Result]) -> Picture | None:
    """The figure of a claim: of the largest judged results on this machine, else the book's."""
    claim, words = entry.card.claim, cards.alternative_text(entry.card)
    candidates = [r for r in results if r.control is None and r.verdict and "figure.png" in r.files]
    if candidates:
        result = max(candidates, key=lambda result: SIZES.index(result.size))
        caption = f"{cards.recorded_caption(claim)} Results of this machine at size {result.size}."
        return Picture(result.address("figure.png"), words, caption.strip())
    if cards.recorded_figure(claim) is None:
        return None
    small = f"api/claims/{claim}/card.png" if cards.recorded_figure(claim, small=True) else None
    caption = cards.recorded_caption(claim) or "Results of a run whose data the book does not keep."
    return Picture(f"api/claims/{claim}/figure.png", words, caption, small)


def is_regular(path: Path) -> bool:
    """True for a file that is not a symbolic link."""
    return path.is_file() and not path.is_symlink()


def read_regular(path: Path, limit: int | None = None) -> bytes:
    """At most ``limit`` bytes of a file, whatever takes its place meanwhile: one opening decides and is read.

    Raises:
        OSError: It is a link, or no file.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path.name}: expected a file")
        return file.read() if limit is None else file.read(limit)


def _content(path: Path) -> dict[str, Any]:
    """The fields of a result, from the small files of its store; raise if they are malformed."""
    _read_json(path / "configuration.json")
    store = Store(path)
    cells = (store.path(cell).name for grid in store.requests() for cell in grid.cells())
    cell_files = set(itertools.islice(cells, MOST_CELLS + 1))
    if len(cell_files) > MOST_CELLS:
        raise ValueError(f"grids: expected at most {MOST_CELLS} cells, got more")
    file_names = {entry.name for entry in os.scandir(path / "cells")} if (path / "cells").is_dir() else set()
    files = tuple(name for name in FILES if is_regular(path / name))
    fields: dict[str, Any] = {"cells": len(cell_files & file_names), "total": len(cell_files), "files": files}
    if "results.nc" in files:
        with (path / "results.nc").open("rb") as file:
            if file.read(len(_HDF5)) != _HDF5:
                raise ValueError("results.nc: expected netCDF-4, got another format; `icl run` writes it again")
    if (path / "verdict.json").is_file():
        judgement = _read_json(path / "verdict.json")
        findings, notes = judgement.get("findings", []), judgement.get("notes", [])
        if not isinstance(findings, list) or not isinstance(notes, list):
            raise ValueError("verdict.json: expected lists of findings and notes")
        verdict = kept_verdict(judgement)
        fields |= {
            "verdict": verdict,
            "findings": tuple(findings) if verdict else (),
            "notes": tuple(map(str, notes)),
            "version": judgement.get("measure", 1),
        }
    return fields


def _read_json(path: Path) -> dict[str, Any]:
    content = read_regular(path, LARGEST_JSON + 1)
    if len(content) > LARGEST_JSON:
        raise ValueError(f"{path.name}: expected a file of at most {LARGEST_JSON} bytes")
    value = parse_json(content, path.name)
    if not isinstance(value, dict):
        raise ValueError(f"{path.name}: expected a JSON object, got {type(value).__name__}")
    return value


def _state(path: Path) -> tuple[int, int]:
    try:
        state = path.lstat()
    except OSError:
        return 0, 0
    return state.st_mtime_ns, state.st_size
