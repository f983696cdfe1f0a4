"""Tensors of untrusted files: names, shapes and sizes are checked before memory is allocated; nothing is unpickled."""

import contextlib
import math
import operator
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from icllab.core.errors import EnvironmentFault, InputError, expected, install_command
from icllab.core.files import parse_json

SAFETENSORS_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": jnp.bfloat16}
DEFLATE = 1032  # no deflated byte becomes more bytes than this
DAMAGED = (
    zlib.error,
    ValueError,
    OSError,
    EOFError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    RecursionError,
    TypeError,
)
STAND_INS = {
    b"version https://git-lfs": ("a pointer of Git LFS", "git lfs pull fetches the file itself"),
    b"# xet version": ("a pointer of Git Xet", "git xet checkout fetches the file itself"),
    b"<!doctype html": ("a web page", "download the file itself"),
    b"<html": ("a web page", "download the file itself"),
}
"""First bytes of placeholders for a file that was not fetched."""
BUFFERS = re.compile(r"(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")
"""Causal masks and frequencies, which old checkpoints store beside the weights."""


PART = 2**22  # bytes of a file that are converted at once


class TensorFile(NamedTuple):
    """Shapes of the tensors of files, and a function that reads one tensor in a type of floats."""

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[..., np.ndarray]


class Place(NamedTuple):
    """Place of a tensor in a file: first byte, shape, bytes of a row, and the numbers of bytes [row, byte]."""

    path: Path
    begin: int
    shape: tuple[int, ...]
    row: int
    numbers: Callable[[np.ndarray], np.ndarray]

    def read(self, dtype: Any) -> np.ndarray:
        """The tensor, converted in parts, in memory that JAX can use as it is; the file is not kept in memory."""
        width = self.shape[-1] if self.shape else 1
        count = math.prod(self.shape) // max(width, 1)
        dtype = default_type() if dtype is None else np.dtype(dtype)
        spare = np.empty(count * width * dtype.itemsize + 64, np.uint8)
        first = -spare.ctypes.data % 64
        array = spare[first : first + count * width * dtype.itemsize].view(dtype).reshape(count, width)
        step = max(PART // max(self.row, 1), 1)
        with self.path.open("rb") as stream, np.errstate(all="ignore"):  # numbers of a file are its own business
            stream.seek(self.begin)
            for i in range(0, count, step):
                rows = np.frombuffer(stream.read(self.row * min(step, count - i)), np.uint8).reshape(-1, self.row)
                array[i : i + step] = self.numbers(rows)
        return array.reshape(self.shape)


def missing_extra(error: ImportError) -> EnvironmentFault:
    """The error for a package of the extra that is not installed."""
    message = f"models.pretrained: expected the extra [pretrained], got no package {error.name}"
    return EnvironmentFault(f"{message}; {install_command('pretrained')}")


def damaged(path: Path, reason: object) -> InputError:
    """The error for a damaged file, or for a pointer or a web page in its place."""
    head = b""
    if path.is_file():
        with contextlib.suppress(OSError), path.open("rb") as file:
            head = file.read(64).lstrip().lower()
    for begin, (content, advice) in STAND_INS.items():
        if head.startswith(begin):
            return InputError(f"{path.name}: expected a sound file, got {content}; {advice}")
    return InputError(f"{path.name}: expected a sound file, got one with {' '.join(str(reason).split())[:200]}")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        value = parse_json(path.read_text(encoding="utf-8"), "bad JSON")
    except DAMAGED as error:
        raise damaged(path, error) from error
    if not isinstance(value, dict):
        raise damaged(path, f"{type(value).__name__} instead of a JSON object")
    return value


def default_type() -> np.dtype:
    """JAX's default type of floats."""
    return np.dtype(jnp.zeros(()).dtype)


def require_held(name: str, stored: np.dtype) -> None:
    """Raise if JAX's default type of floats rounds the numbers of a file."""
    default = default_type()
    if stored.itemsize > default.itemsize:
        hint = "jax.config.update('jax_enable_x64', True) keeps 64 bits"
        raise expected(name, f"numbers that {default} holds", stored.name, hint)


def safetensors_files(paths: list[Path], places: Mapping[str, Path] | None = None) -> TensorFile:
    """The tensors of one file, or of all shards of one model.

    ``places``: file of each tensor, from an index; None: the tensors of all files.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise missing_extra(error) from error
    tensors: dict[str, Place | None] = {}
    shapes = {}
    for path in paths:
        try:
            with safe_open(path, "np"), path.open("rb") as stream:  # the package checks each place
                size = int.from_bytes(stream.read(8), "little")
                header = parse_json(stream.read(size), "header")
            header.pop("__metadata__", None)
            entries = {
                name: (entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]) for name, entry in header.items()
            }
        except (SafetensorError, *DAMAGED) as error:
            raise damaged(path, error) from error
        for name, (kind, shape, (begin, _)) in entries.items():
            if places is not None and places.get(name) != path:
                continue
            if kind not in SAFETENSORS_TYPES and not BUFFERS.search(name):
                raise expected(f"dtype of {name}", ", ".join(SAFETENSORS_TYPES), kind)
            if name in tensors:
                raise damaged(path, f"the tensor {name!r} of another shard")
            shapes[name], tensors[name] = shape, None
            if kind in SAFETENSORS_TYPES:
                dtype = np.dtype(SAFETENSORS_TYPES[kind])
                require_held(name, dtype)
                row = (shape[-1] if shape else 1) * dtype.itemsize
                tensors[name] = Place(path, 8 + size + begin, shape, row, operator.methodcaller("view", dtype))
    for name, path in (places or {}).items():
        if name not in tensors:
            raise damaged(path, f"no tensor {name!r}, which the index says it has")

    return _readable(shapes, tensors)


def _readable(shapes: Mapping[str, tuple[int, ...]], places: Mapping[str, Place | None]) -> TensorFile:
    def read(name: str, dtype: Any = None) -> np.ndarray:
        place = places[name]
        assert place is not None  # a mask is not read
        return place.read(dtype)

    return TensorFile(shapes, read)


def npz_file(path: Path) -> tuple[TensorFile, str | None]:
    """The tensors of an ``.npz`` file, and the text of its entry ``__config__``, if it has one."""
    try:
        archive = zipfile.ZipFile(path)
        headers = {}
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name in headers:
                raise ValueError(f"the entry {name!r} twice")
            if entry.file_size > DEFLATE * max(entry.compress_size, 1) or entry.flag_bits & 1:
                raise ValueError(f"an impossible entry {name!r}")
            with archive.open(entry) as stream:
                version = np.lib.format.read_magic(stream)
                reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = reader[version](stream, max_header_size=10_000)
                size = stream.tell() + math.prod(shape) * dtype.itemsize
            if dtype.hasobject or min(shape, default=0) < 0 or size != entry.file_size:
                raise ValueError(f"another size of {name!r} than its header says")
            headers[name] = (entry, shape, dtype)
        text = headers.pop("__config__", None)
        if text is not None and (text[1] != () or text[2].kind != "U"):
            raise ValueError("a __config__ that is not a text")
        configuration = None
        if text is not None:
            with archive.open(text[0]) as stream:
                configuration = str(np.lib.format.read_array(stream, allow_pickle=False))
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, UnicodeDecodeError, *DAMAGED) as error:
        raise damaged(path, error) from error
    for name, (_, _, dtype) in headers.items():
        if dtype.kind != "f" or not dtype.isnative:
            raise expected(f"dtype of {name}", "float16, float32 or float64", str(dtype))
        require_held(name, dtype)

    def read(name: str, dtype: Any = None) -> np.ndarray:
        with zipfile.ZipFile(path) as archive, archive.open(headers[name][0]) as stream:
            try:
                array = np.lib.format.read_array(stream, allow_pickle=False)
                if stream.read(1):  # to the end, where the checksum is compared
                    raise ValueError(f"more numbers in {name!r} than its header says")
            except (zipfile.BadZipFile, struct.error, *DAMAGED) as error:
                raise damaged(path, error) from error
        return array.astype(default_type() if dtype is None else np.dtype(dtype), copy=False)

    return TensorFile({name: shape for name, (_, shape, _) in headers.items()}, read), configuration
