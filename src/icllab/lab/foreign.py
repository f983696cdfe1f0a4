"""Files from elsewhere: opened by a child process, which hands over plain arrays or dies alone.

HDF5 is C, and a file may be made to crash or mislead it. The child has limits on memory, time and files, and writes
nothing but its answer: an uncompressed npz of the arrays and of a JSON description. The parent takes from it only
names, numbers and text.
"""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icllab.core.errors import InputError
from icllab.core.files import disk_faults, parse_json
from icllab.lab.results import payload

if TYPE_CHECKING:
    import xarray as xr

LARGEST = 1 << 30
"""Bytes of arrays that a foreign file may hold."""
SECONDS = 60
_MEMORY = 6 << 30
_OURS = b"icl-lab results"


def read_foreign(path: Path, group: str | None = None) -> "xr.Dataset":
    """The Dataset in a netCDF file of unknown origin, or in a group of it.

    Raises:
        InputError: It is not a netCDF file, it is too large, or it crashes the library that reads it.
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
    return _dataset(path, _child_output(path, group))


def _child_output(path: Path, group: str | None) -> bytes:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment["HDF5_USE_FILE_LOCKING"] = "FALSE"  # a reader needs none, and some disks refuse it
    command = [sys.executable, "-P", "-m", "icllab.lab.foreign", str(path.resolve()), *([group] if group else [])]
    try:
        child = subprocess.run(command, capture_output=True, env=environment, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise InputError(f"{path}: expected a netCDF file that opens in {SECONDS} s, this one does not") from None
    if child.returncode == 0:
        return child.stdout
    reason = f"a file that kills its reader (signal {-child.returncode})"
    if child.returncode > 0:
        message = child.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = message[-1][:200] if message else f"a reader that ended with {child.returncode}"
    raise InputError(f"{path}: expected a netCDF file of results, got {reason}")


def _dataset(path: Path, answer: bytes) -> "xr.Dataset":
    """Read the Dataset in the child's answer, trusting none of it."""
    import xarray as xr

    try:
        with zipfile.ZipFile(io.BytesIO(answer)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("compressed arrays")
            if len(set(names := archive.namelist())) < len(names):
                raise ValueError("two arrays of one name")
        with np.load(io.BytesIO(answer), allow_pickle=False) as arrays:
            content = parse_json(str(arrays["content"]), "content")
            parts = {**content["data_vars"], **content["coords"]}
            for attributes in (content["attrs"], *(part["attrs"] for part in parts.values())):
                if not all(isinstance(value, str | int | float) for value in attributes.values()):
                    raise TypeError("an attribute that is neither a number nor text")
            variables = {n: (tuple(part["dims"]), arrays[f"v.{n}"], part["attrs"]) for n, part in parts.items()}
        coordinates = {name: variables.pop(name) for name in content["coords"]}
        return xr.Dataset(variables, coordinates, content["attrs"])
    except (ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile, MemoryError) as error:
        raise InputError(f"{path}: expected arrays with named axes, got {type(error).__name__}: {error}") from error


def _limit() -> None:
    """Limit what the child may use: it writes to its pipe, and nothing else."""
    import resource

    for kind, amount in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        hard = resource.getrlimit(kind)[1]
        amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(kind, (amount, amount))


def _answer(path: str, group: str | None = None) -> bytes:
    import xarray as xr

    def plain(value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else str(value)

    with xr.open_dataset(path, group=group, engine="h5netcdf", decode_times=False) as dataset:
        size = sum(v.size * max(v.dtype.itemsize, 8) for v in dataset.variables.values())
        if size > LARGEST:
            raise ValueError(f"{size} bytes of arrays, where {LARGEST} are allowed")
        content = dataset.to_dict(data=False)
        values = {str(name): np.asarray(variable) for name, variable in dataset.variables.items()}
    arrays = {f"v.{name}": v.astype(str) if v.dtype.kind == "O" else v for name, v in values.items()}
    arrays["content"] = np.asarray(json.dumps(content, default=plain))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


if __name__ == "__main__":
    try:
        _limit()
        output = _answer(*sys.argv[1:])
    except BaseException as error:  # one line on stderr, whatever a library raises
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        os._exit(1)
    sys.stdout.buffer.write(output)
    sys.stdout.buffer.flush()
    os._exit(0)  # HDF5 has nothing more to say
