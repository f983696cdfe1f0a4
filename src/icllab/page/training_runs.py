"""The losses of a training run that has a store, read from its newest checkpoint: live, and without JAX.

Of a checkpoint only what was recorded is read; parameters are passed over. A file is nothing but numbers after a line
of JSON, and every length in it is compared with what is there.
"""

import hashlib
import json
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from icllab.core.errors import InputError
from icllab.core.files import disk_faults

_FIRST = re.compile(rb"icl-lab checkpoint, sha256 ([0-9a-f]{64})\n")
_DTYPE = re.compile(r"[<>|=]?[fiub][1248]")
_LONGEST = 64 << 20
MEMBERS = 8
"""Curves that are shown of a run of more members: the first ones; the mean is over all."""


@dataclass(frozen=True)
class Losses:
    """What a training run has written down so far.

    Attributes:
        finished: Whether the run has ended; else it stands at ``step`` and was last heard of ``age`` seconds ago.
        step: Number of updates.
        age: Seconds since the file was written.
        steps: Steps at which losses were recorded, ascending.
        mean: Loss at those steps, over positions and members; ``members`` is that of the first few.
        held_out: ``(step, loss)`` on held-out prompts, over positions and members.
    """

    finished: bool
    step: int
    age: float
    steps: list[int]
    mean: list[float]
    members: list[list[float]]
    held_out: tuple[list[int], list[float]]


def losses(root: Path) -> Losses:
    """The losses of the run in ``root``: of the finished run, else of its newest checkpoint that is sound."""
    numbered = [path for path in root.glob("checkpoint-*.icl") if path.stem.rpartition("-")[2].isdigit()]
    newest_first = sorted(numbered, key=lambda path: int(path.stem.rpartition("-")[2]), reverse=True)
    whole = root / "finished.icl"
    refused: Exception | None = None
    for path in [*([whole] if whole.is_file() else []), *newest_first]:
        try:
            return _losses(path, finished=path == whole)
        except (InputError, FileNotFoundError) as error:  # one that is being replaced is not there any more
            refused = refused or error
    raise InputError(str(refused) if refused else f"{root.name}: expected a checkpoint, found none")


def _losses(path: Path, *, finished: bool) -> Losses:
    header, arrays = _read(path, ("dataset.", "records."))
    held: tuple[Any, Any] = [], None
    try:
        if finished:
            steps, own = arrays["dataset.step"], arrays["dataset.training_loss"]  # member, step, position
            table = np.moveaxis(own, 0, 1)
            if "dataset.held_out_loss" in arrays:
                held = steps, np.moveaxis(arrays["dataset.held_out_loss"], 0, 1)
        else:
            steps, table = arrays["records.losses.step"], arrays["records.losses.value"]  # step, member, position
            held = arrays["records.held_out.step"], arrays["records.held_out.value"]
        steps = [int(step) for step in steps]
        if table.ndim != 3 or table.shape[0] != len(steps):
            raise ValueError(f"{table.shape} losses at {len(steps)} steps")
        members = _mean(table, 2) if len(steps) else np.zeros((0, table.shape[1]))
        held_steps, held_values = held
        held_out = [] if held_values is None or not len(held_steps) else _mean(held_values, (1, 2)).tolist()
        return Losses(
            finished,
            int(header.get("step", steps[-1] if steps else 0)),
            max(0.0, time.time() - path.stat().st_mtime),
            steps,
            _mean(members, 1).tolist(),
            members.T[:MEMBERS].tolist(),
            ([int(step) for step in held_steps], held_out),
        )
    except (KeyError, ValueError, TypeError, OverflowError, IndexError) as error:
        raise InputError(f"{path.name}: expected recorded losses, got {type(error).__name__}: {error}") from error


def _mean(values: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """The mean of what is there; NaN where nothing is."""
    there = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(there, values, 0.0).sum(axis) / there.sum(axis)


def _read(path: Path, wanted: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header of a file, and its arrays whose names begin with one of ``wanted``; an unsound file is refused."""
    if not path.exists():
        raise FileNotFoundError(path.name)
    with disk_faults(f"cannot read {path.name}"), path.open("rb") as file:
        first = _FIRST.fullmatch(file.readline(200))
        if first is None:
            raise InputError(f"{path.name}: expected a checkpoint of icl-lab, got another file")
        digest, described = hashlib.sha256(), file.readline(_LONGEST)
        digest.update(described)
        start = file.tell()
        while block := file.read(1 << 20):
            digest.update(block)
        size = file.tell() - start
        if digest.hexdigest().encode() != first[1]:
            raise InputError(f"{path.name}: expected the bytes of its checksum, got {size} others")
        try:
            header = json.loads(described)
            arrays: dict[str, np.ndarray] = {}
            offset = 0
            for entry in header.pop("arrays"):
                name, shape = str(entry["name"]), [int(length) for length in entry["shape"]]
                if not _DTYPE.fullmatch(entry["dtype"]) or min(shape, default=0) < 0:
                    raise ValueError(f"an array of type {entry['dtype']!r} and shape {shape}")
                dtype = np.dtype(entry["dtype"])
                length = math.prod(shape) * dtype.itemsize
                if offset + length > size:
                    raise ValueError(f"{size} bytes of arrays, {offset + length} described")
                if name.startswith(wanted):
                    file.seek(start + offset)
                    arrays[name] = np.frombuffer(file.read(length), dtype).reshape(shape)
                offset += length
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{path.name}: expected described arrays, got {type(error).__name__}: {error}") from error
    return header, arrays
