"""Results as data: opened by another process, kept for a while, and written as comma-separated values."""

import csv
import functools
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icllab.lab.foreign import read_foreign

if TYPE_CHECKING:
    import xarray as xr

KEPT = 8
MOST_ROWS = 5_000_000
_opening = threading.Lock()


def dataset(path: Path) -> "xr.Dataset":
    """The Dataset of a netCDF file, whoever wrote it; one that cannot be read is refused with the reason."""
    state = path.stat()
    with _opening:  # one reader at a time: each may take much memory
        return _opened(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(KEPT)
def _opened(path: Path, changed: int, size: int) -> "xr.Dataset":
    return read_foreign(path)


def rows(of: "xr.Dataset") -> int:
    """How many rows the table of a Dataset has."""
    return sum(variable.size for variable in of.data_vars.values())


def as_csv(of: "xr.Dataset") -> Iterator[bytes]:
    """One row a number: the quantity, its coordinates on every axis (empty on those it lacks), the number."""
    axes = [str(name) for name in of.dims]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["quantity", *map(_cell, axes), "value"])
    for name, variable in of.data_vars.items():
        places = [variable.dims.index(axis) if axis in variable.dims else None for axis in axes]
        labels = [[_cell(v) for v in of[axis].values.tolist()] for axis in variable.dims]
        for at in np.ndindex(*variable.shape):
            coordinates = ["" if place is None else labels[place][at[place]] for place in places]
            writer.writerow([_cell(str(name)), *coordinates, _cell(variable.values[at].item())])
            if buffer.tell() > 1 << 16:
                yield _taken(buffer)
    yield _taken(buffer)


def _taken(buffer: io.StringIO) -> bytes:
    content = buffer.getvalue().encode("utf-8", "replace")
    buffer.seek(0)
    buffer.truncate()
    return content


def _cell(value: object) -> object:
    """Text that a spreadsheet would take for a formula is marked as text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
