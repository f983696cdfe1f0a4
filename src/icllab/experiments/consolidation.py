"""The cells of a store in one file beside them, so that ten thousand of them open at once.

The files of cells stay, and stay the truth. A consolidated file names the checksum of each cell that it was made of: a
cell is taken from it where the checksum in the cell's own file is still that one, and read from its own file where it
is not. So a store that grew, or of which cells were computed again, is read right. The file begins with the SHA-256 of
the rest, an uncompressed npz; one that does not fit is passed over.
"""

import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from icllab.core.errors import EnvironmentFault
from icllab.core.files import DamagedFile, disk_faults, write_atomically
from icllab.core.grid import BLOCK, Coordinates, Grid
from icllab.experiments.stacks import Stack, joined, stacked
from icllab.experiments.store import Store

FILE = "cells.consolidated"
LEAST = 20
"""Cells below which a store is read cell by cell."""
LARGEST = 1 << 30
"""Bytes of arrays above which opening files takes no time beside reading them."""
_SCHEMA = 1
_HEAD = 512  # of a cell's file, which ends in its checksum


@dataclass(frozen=True)
class Held:
    """What a store has of some grids.

    Attributes:
        stacks: Complete cells, by the names of their files.
        missing: Cells that are not there, or lack values.
        wanted: Number of cells of all grids together.
    """

    stacks: Sequence[Stack]
    missing: Sequence[Coordinates]
    wanted: int


def held(store: Store, grids: Sequence[Grid], *, keep: bool) -> Held:
    """The cells of ``grids``; with ``keep``, the consolidated file is brought up to date.

    Raises:
        DamagedFile: A cell that is not in the consolidated file is not as it was written; or a file is another cell's.
    """
    old, versions = _read(store.root / FILE)
    asked = {store.path(cell).name: cell for grid in grids for cell in grid.cells()}
    found = {name: _version(store.root / "cells" / name) for name in asked}
    present = {name: version for name, version in found.items() if version is not None}
    fresh = {name: version for name, version in present.items() if versions.get(name) != version}
    read = {name: store.read(asked[name]) for name in fresh}
    new = stacked({name: cell for name, cell in read.items() if cell is not None})
    used = [_chosen(stack, lambda name: name in present and name not in fresh) for stack in old]
    for stack in used:
        for name, attributes in zip(stack.names, stack.attributes, strict=True):
            store.require_own(asked[name], attributes)
    stacks = joined([*(stack for stack in used if stack.names), *new])
    if keep and new:
        others = [_chosen(stack, lambda name: name not in asked) for stack in old]
        _write(store.root, joined([*stacks, *(stack for stack in others if stack.names)]), versions | fresh)
    missing = _missing(store, grids, stacks)
    return Held(stacks, missing, len(asked))


def unfinished(store: Store, grid: Grid, cells: Sequence[Coordinates]) -> tuple[list[Coordinates], list[Path]]:
    """Those of ``cells`` that lack something, and files that are no such cells (set aside under another name).

    The bytes of every file are compared with its checksum. What it holds is then taken from the consolidated file
    where that was made of the same bytes, and its axes alone from HDF5 where not.
    """
    stacks, versions = _read(store.root / FILE)
    there = {name: (stack, row) for stack in stacks for row, name in enumerate(stack.names)}
    todo, damaged = [], []
    for cell in cells:
        path = store.path(cell)
        wanted = grid.inside(cell)
        try:
            if path.name in there and _version(path) == versions[path.name]:
                store.require_sound(cell)
                stack, row = there[path.name]
                store.require_own(cell, stack.attributes[row])
                complete = _has(stack, row, wanted)
            else:
                complete = _covered(store, cell, wanted)
        except DamagedFile:
            damaged.append(store.set_damaged_aside(cell))
            complete = False
        if not complete:
            todo.append(cell)
    return todo, damaged


def _covered(store: Store, cell: Coordinates, wanted: Mapping[str, tuple[Any, ...]]) -> bool:
    """Whether a cell's file has all these values."""
    axes = store.axes(cell)
    if axes is None:
        return False
    if not set(wanted) <= set(axes):
        opened = store.read(cell)
        return opened is not None and all(
            set(values) <= set(opened[name].values.tolist()) for name, values in wanted.items()
        )
    return all(set(values) <= set(axes[name]) for name, values in wanted.items())


def _chosen(stack: Stack, wanted: Any) -> Stack:
    return stack.take([row for row, name in enumerate(stack.names) if wanted(name)])


def _missing(store: Store, grids: Sequence[Grid], stacks: Sequence[Stack]) -> list[Coordinates]:
    """Cells of which something that was asked for is not there, each once, in the order of the grids."""
    there = {name: (i, row) for i, stack in enumerate(stacks) for row, name in enumerate(stack.names)}
    uniform = [all((values == values[:1]).all() for values in stack.axes.values()) for stack in stacks]
    complete: dict[tuple[Any, ...], bool] = {}
    missing: dict[str, Coordinates] = {}
    for number, grid in enumerate(grids):
        for cell in grid.cells():
            name = store.path(cell).name
            if (place := there.get(name)) is not None:
                i, row = place
                alike = (number, cell.get(BLOCK), i, 0 if uniform[i] else row)
                if alike not in complete:
                    complete[alike] = _has(stacks[i], row, grid.inside(cell))
                if complete[alike]:
                    continue
            missing[name] = cell
    return list(missing.values())


def _has(stack: Stack, row: int, inside: Mapping[str, tuple[Any, ...]]) -> bool:
    return all(set(values) <= set(stack.axes[axis][row].tolist()) for axis, values in inside.items())


def _version(path: Path) -> str | None:
    """The checksum that a cell's file names; None where there is none."""
    with disk_faults(f"cannot read {path}"), contextlib.suppress(FileNotFoundError), path.open("rb", 0) as file:
        return file.read(_HEAD).strip()[-64:].decode("ascii", "replace")
    return None


def _write(root: Path, stacks: Sequence[Stack], versions: Mapping[str, str]) -> None:
    """Replace the file, and remove what did not arrive as it was; a run needs none, whatever the disk says."""
    path = root / FILE
    if sum(len(stack.names) for stack in stacks) < LEAST or sum(stack.size for stack in stacks) > LARGEST:
        return
    content = _packed(stacks, versions)
    with contextlib.suppress(EnvironmentFault):
        write_atomically(path, content)
        if path.read_bytes() != content:
            path.unlink(missing_ok=True)


def _packed(stacks: Sequence[Stack], versions: Mapping[str, str]) -> bytes:
    arrays, header = {}, []
    for i, stack in enumerate(stacks):
        names = list(dict.fromkeys(name for attributes in stack.attributes for name in attributes))
        values = {name: [attributes.get(name) for attributes in stack.attributes] for name in names}
        distinct = {name: list(dict.fromkeys(some)) for name, some in values.items()}
        header.append(
            {
                "cells": [[name, versions[name]] for name in stack.names],
                "axes": list(stack.axes),
                "variables": {name: axes for name, (axes, _) in stack.variables.items()},
                "attributes": distinct,
            }
        )
        for j, axis in enumerate(stack.axes.values()):
            arrays[f"{i}.axis.{j}"] = axis
        for j, (_, array) in enumerate(stack.variables.values()):
            arrays[f"{i}.variable.{j}"] = array
        for j, name in enumerate(names):
            numbers = {value: number for number, value in enumerate(distinct[name])}
            arrays[f"{i}.attribute.{j}"] = np.array([numbers[value] for value in values[name]], np.int32)
    text = json.dumps({"schema": _SCHEMA, "stacks": header}).encode()
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, header=np.frombuffer(text, np.uint8), **arrays)
    payload = buffer.getvalue()
    return hashlib.sha256(payload).digest() + payload


def _read(path: Path) -> tuple[list[Stack], dict[str, str]]:
    """The cells of a consolidated file and the checksums of theirs; none, where it is not there or not sound."""
    try:
        content = memoryview(path.read_bytes())
    except OSError:
        return [], {}
    if hashlib.sha256(content[32:]).digest() != bytes(content[:32]):
        return [], {}
    try:
        with np.load(io.BytesIO(content[32:]), allow_pickle=False) as arrays:
            header = json.loads(arrays["header"].tobytes())
            if header["schema"] != _SCHEMA:
                return [], {}
            stacks = [_unpacked(arrays, i, entry) for i, entry in enumerate(header["stacks"])]
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return [], {}
    return stacks, {name: version for entry in header["stacks"] for name, version in entry["cells"]}


def _unpacked(arrays: Mapping[str, np.ndarray], i: int, entry: Mapping[str, Any]) -> Stack:
    attributes: list[dict[str, Any]] = [{} for _ in entry["cells"]]
    for j, (name, distinct) in enumerate(entry["attributes"].items()):
        for own, number in zip(attributes, arrays[f"{i}.attribute.{j}"].tolist(), strict=True):
            if distinct[number] is not None:
                own[name] = distinct[number]
    return Stack(
        tuple(name for name, _ in entry["cells"]),
        {axis: arrays[f"{i}.axis.{j}"] for j, axis in enumerate(entry["axes"])},
        {n: (tuple(axes), arrays[f"{i}.variable.{j}"]) for j, (n, axes) in enumerate(entry["variables"].items())},
        tuple(attributes),
    )
