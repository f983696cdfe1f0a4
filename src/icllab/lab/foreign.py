"""Files from elsewhere: opened by a child process, which hands over plain arrays or dies alone.

HDF5 is C, and a file may be made to crash or mislead it. The child has limits on memory, time and
files, and writes nothing but its answer: one line of JSON, then the arrays as an uncompressed npz.
The parent takes from it only names, numbers and text.
"""

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icllab.core.errors import InputError
from icllab.core.files import disk_faults
from icllab.lab.results import payload

if TYPE_CHECKING:
    import xarray as xr

LARGEST = 1 << 30
"""Bytes of arrays that a foreign file may hold."""
SECONDS = 60
_MEMORY = 6 << 30
_OURS = b"icl-lab results"


def read_foreign(path: Path) -> "xr.Dataset":
    """The Dataset in a netCDF file of unknown origin.

    Raises:
        InputError: It is no netCDF file, too large, or crashes the library that reads it.
        DamagedFile: It is a file of ours with another checksum than its own.
    """
    if not path.is_file():
        raise InputError(f"{path}: expected a directory of results or a .nc file, found none")
    try:
        with path.open("rb") as file:
            ours = file.read(len(_OURS)) == _OURS
    except OSError as error:
        raise InputError(f"{path}: expected a file that can be read, got {error.strerror}") from error
    if ours:
        with disk_faults(f"cannot read {path}"):
            payload(path.read_bytes(), path)
    return _assembled(path, _asked(path))


def _asked(path: Path) -> bytes:
    """What the child said."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "icllab.lab.foreign", str(path.resolve())]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise InputError(f"{path}: expected a netCDF file that opens in {SECONDS} s, this one does not") from None
    if done.returncode == 0:
        return done.stdout
    if done.returncode < 0:
        reason = f"a file that kills its reader (signal {-done.returncode})"
    else:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = said[-1][:200] if said else f"a reader that ended with {done.returncode}"
    raise InputError(f"{path}: expected a netCDF file of results, got {reason}")


def _assembled(path: Path, answer: bytes) -> "xr.Dataset":
    """The Dataset of an answer, nothing of which is trusted."""
    import xarray as xr

    try:
        line, _, arrays = answer.partition(b"\n")
        header = json.loads(line)
        with zipfile.ZipFile(io.BytesIO(arrays)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("compressed arrays")
        with np.load(io.BytesIO(arrays), allow_pickle=False) as loaded:
            values = {name: loaded[f"v{i}"] for i, name in enumerate(header["dims"])}
        dims = {str(name): tuple(map(str, d)) for name, d in header["dims"].items()}
        labels = {str(name): {str(k): _plain(v) for k, v in own.items()} for name, own in header["labels"].items()}
        variables = {name: (dims[name], values[name], labels[name]) for name in dims}
        coords = {name: variables.pop(name) for name in map(str, header["coords"])}
        attributes = {str(name): _plain(value) for name, value in header["attrs"].items()}
        return xr.Dataset(variables, coords, attributes)
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, MemoryError) as error:
        raise InputError(f"{path}: expected arrays with named axes, got {type(error).__name__}: {error}") from error


def _plain(value: Any) -> str | int | float:
    if not isinstance(value, str | int | float):
        raise TypeError(f"an attribute of type {type(value).__name__}")
    return value


def _limit() -> None:
    """What the child may use: it writes to its pipe, and nothing else."""
    import resource

    for what, most in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _answer(path: str) -> bytes:
    import xarray as xr

    with xr.open_dataset(path, engine="h5netcdf", decode_times=False) as dataset:
        names = [str(name) for name in dataset.variables]
        size = sum(v.size * max(v.dtype.itemsize, 8) for v in dataset.variables.values())
        if size > LARGEST:
            raise ValueError(f"{size} bytes of arrays, where {LARGEST} are allowed")
        arrays = {f"v{i}": _array(dataset.variables[name]) for i, name in enumerate(dataset.variables)}
        header = {
            "dims": {name: list(map(str, dataset.variables[name].dims)) for name in names},
            "coords": [str(name) for name in dataset.coords],
            "attrs": _items(dataset.attrs),
            "labels": {str(name): _items(variable.attrs) for name, variable in dataset.variables.items()},
        }
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return json.dumps(header, default=str).encode() + b"\n" + buffer.getvalue()


def _items(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(k): v.item() if isinstance(v, np.generic) else v for k, v in attributes.items()}


def _array(variable: Any) -> np.ndarray:
    values = np.asarray(variable.values)
    return values.astype(str) if values.dtype.kind == "O" else values


def _child() -> None:
    try:
        _limit()
        answer = _answer(sys.argv[1])
    except BaseException as error:  # one line on stderr, whatever a library raises
        said = " ".join(str(error).split())
        print(f"{type(error).__name__}: {said}", file=sys.stderr)
        os._exit(1)
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    os._exit(0)  # HDF5 has nothing more to say


if __name__ == "__main__":
    _child()
