"""Bytes of a Dataset as netCDF-4, refusals of values that netCDF cannot store, and the checksum of a cell's file."""

import contextlib
import hashlib
import io
from collections.abc import Iterator

import xarray as xr

from icllab.core.errors import InputError
from icllab.core.files import DamagedFile
from icllab.lab.claim import SCHEMA

_BLOCK = 512
_LONGEST = 255
_STORED = "expected numbers, times or texts that netCDF stores"


def netcdf_bytes(dataset: xr.Dataset) -> bytes:
    """A Dataset as plain netCDF-4; raise InputError for values that netCDF cannot store."""
    with netcdf_refusals(dataset):
        return _netcdf_bytes(dataset)


def _netcdf_bytes(dataset: xr.Dataset) -> bytes:
    from xarray.backends import H5NetCDFStore

    # As Dataset.to_netcdf, but for its lock: on a dask worker that one is the scheduler's, named by a file we have not.
    target = io.BytesIO()
    backend = H5NetCDFStore.open(target, mode="w", lock=False)
    dataset.dump_to_store(backend)
    backend.close()
    return target.getvalue()


@contextlib.contextmanager
def netcdf_refusals(dataset: xr.Dataset) -> Iterator[None]:
    """Name the variable or attribute of a Dataset that netCDF cannot store, in one line."""
    for text, part in _parts(dataset):
        if reason := _silent_loss(part):
            raise InputError(f"{text}: {_STORED}, got {reason}")
    try:
        yield
    except Exception as error:  # whatever xarray, h5netcdf and h5py raise
        for text, part in _parts(dataset):
            try:
                _netcdf_bytes(part)
            except Exception as reason:
                raise InputError(f"{text}: {_STORED}, got {_content(part)} ({_line(reason)})") from error
        raise InputError(f"results: {_STORED}, got a Dataset that it cannot ({_line(error)})") from error


def _parts(dataset: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield each attribute and variable of a Dataset alone, with its name in words."""
    for key, value in dataset.attrs.items():
        yield f"attribute {key!r}", xr.Dataset(attrs={key: value})
    for name, variable in dataset.variables.items():
        yield f"variable {name!r}", xr.Dataset({name: (variable.dims, variable.values)})
        for key, value in variable.attrs.items():
            yield f"variable {name!r}, attribute {key!r}", xr.Dataset(attrs={key: value})
        yield (
            f"variable {name!r} with its attributes",
            xr.Dataset({name: (variable.dims, variable.values, variable.attrs)}),
        )


def _silent_loss(part: xr.Dataset) -> str:
    """Describe a value that netCDF would lose or change without an error; empty if it stores all."""
    for name in (*part.attrs, *part.variables, *part.dims):
        if not isinstance(name, str) or not name or "/" in name or len(name.encode()) > _LONGEST:
            return f"a name that is no text of 1 to {_LONGEST} bytes without '/'"
    for variable in part.variables.values():
        if variable.dtype.kind == "O":
            texts = [isinstance(value, str) for value in variable.values.ravel().tolist()]
            if any(texts) and not all(texts):
                return "texts beside values that are none"
    return ""


def _content(part: xr.Dataset) -> str:
    """Type of the one attribute or variable of a part."""
    kinds = [type(value).__name__ for value in part.attrs.values()]
    return (kinds or [f"values of type {variable.dtype}" for variable in part.variables.values()])[0]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def to_bytes(dataset: xr.Dataset) -> bytes:
    """A Dataset as the bytes of a checksummed file."""
    payload = netcdf_bytes(dataset)
    return _header(payload) + payload


def from_bytes(content: bytes, name: object) -> xr.Dataset:
    """The Dataset in the bytes of a checksummed file; ``name`` is for the message."""
    return xr.load_dataset(io.BytesIO(payload(content, name)), engine="h5netcdf")


def payload(content: bytes, name: object) -> bytes:
    """The HDF5 bytes of a checksummed file; bytes other than those written raise DamagedFile."""
    body = content[_BLOCK:]
    if content[:_BLOCK] != _header(body):
        raise DamagedFile(
            f"{name}: expected a file with the checksum in its first {_BLOCK} bytes, got {len(content)} bytes that "
            "do not match it; `icl run` computes this cell again"
        )
    return body


def _header(body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest()
    return f"icl-lab results, schema {SCHEMA}\nsha256 of what follows byte {_BLOCK}: {digest}\n".encode().ljust(_BLOCK)
