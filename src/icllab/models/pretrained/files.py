"""Tensors of untrusted files: names, shapes and sizes are checked before memory is allocated; nothing is unpickled."""

import contextlib
import math
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

SAFETENSORS_TYPES = ("F64", "F32", "F16", "BF16")
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


class TensorFile(NamedTuple):
    """Shapes of the tensors of files, and a function that reads one tensor."""

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]


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


def as_default(name: str, array: np.ndarray) -> np.ndarray:
    """Convert numbers to JAX's default float type; raise if that would round them."""
    default = np.dtype(jnp.zeros(()).dtype)
    if array.dtype.itemsize > default.itemsize:
        hint = "jax.config.update('jax_enable_x64', True) keeps 64 bits"
        raise expected(name, f"numbers that {default} holds", array.dtype.name, hint)
    return array.astype(default, copy=False)


def safetensors_files(paths: list[Path], places: Mapping[str, Path] | None = None) -> TensorFile:
    """The tensors of one file, or of all shards of one model.

    ``places``: file of each tensor, from an index; None: the tensors of all files.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise missing_extra(error) from error
    files, shapes = {}, {}
    for path in paths:
        try:
            file = safe_open(path, "np")
            with path.open("rb") as stream:
                parse_json(stream.read(int.from_bytes(stream.read(8), "little")), "header")
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            of_file = {name: tuple(part.get_shape()) for name, part in slices.items()}
            types = {name: str(part.get_dtype()) for name, part in slices.items()}
        except (SafetensorError, *DAMAGED) as error:
            raise damaged(path, error) from error
        for name, kind in types.items():
            if places is not None and places.get(name) != path:
                continue
            if kind not in SAFETENSORS_TYPES and not BUFFERS.search(name):
                raise expected(f"dtype of {name}", ", ".join(SAFETENSORS_TYPES), kind)
            if name in files:
                raise damaged(path, f"the tensor {name!r} of another shard")
            files[name], shapes[name] = file, of_file[name]
    for name, path in (places or {}).items():
        if name not in files:
            raise damaged(path, f"no tensor {name!r}, which the index says it has")

    def read(name: str) -> np.ndarray:
        return as_default(name, files[name].get_tensor(name))

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

    def read(name: str) -> np.ndarray:
        with zipfile.ZipFile(path) as archive, archive.open(headers[name][0]) as stream:
            try:
                array = np.lib.format.read_array(stream, allow_pickle=False)
                if stream.read(1):  # to the end, where the checksum is compared
                    raise ValueError(f"more numbers in {name!r} than its header says")
            except (zipfile.BadZipFile, struct.error, *DAMAGED) as error:
                raise damaged(path, error) from error
        return as_default(name, array)

    return TensorFile({name: shape for name, (_, shape, _) in headers.items()}, read), configuration
