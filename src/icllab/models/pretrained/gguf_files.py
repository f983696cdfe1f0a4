"""GGUF files: metadata and tensors, dequantised by the package ``gguf``.

The header is read here and not by that package, which trusts its counts: one that lies makes it loop for ever.
"""

import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from icllab.core.errors import expected
from icllab.models.pretrained.files import DAMAGED, Place, TensorFile, damaged, missing_extra

NUMBERS = dict(enumerate(("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))) | {10: "<u8", 11: "<i8", 12: "<f8"}
STRING, ARRAY = 8, 9


class GGUF(NamedTuple):
    """Metadata by key, and the tensors."""

    metadata: dict[str, Any]
    tensors: TensorFile


class _Cursor:
    """A position in a file; reads beyond the end raise."""

    def __init__(self, data: np.ndarray):
        self.data, self.at = data, 0

    def take(self, kind: str, count: int = 1) -> np.ndarray:
        dtype = np.dtype(kind)
        end = self.at + count * dtype.itemsize
        if end > len(self.data):
            raise ValueError(
                f"{count} values of {dtype.itemsize} bytes where {len(self.data) - self.at} bytes are left"
            )
        values = self.data[self.at : end].view(dtype)
        self.at = end
        return values

    def integer(self, kind: str) -> int:
        return int(self.take(kind)[0])

    def string(self, errors: str = "strict") -> str:
        return self.take("u1", self.integer("<u8")).tobytes().decode("utf-8", errors)

    def value(self, kind: int) -> Any:
        """Read a value; bytes of a text that are not UTF-8 are kept as surrogates, as in file names."""
        if kind == STRING:
            return self.string("surrogateescape")
        if kind == ARRAY:
            of, count = self.integer("<u4"), self.integer("<u8")
            if of == STRING:
                return [self.string("surrogateescape") for _ in range(self.bounded(count, 8))]
            return self.take(NUMBERS[of], count).tolist()
        return self.take(NUMBERS[kind])[0].item()

    def bounded(self, count: int, least: int) -> int:
        """Check a count; raise if the file is too short for that many items of ``least`` bytes."""
        if count * least > len(self.data) - self.at:
            raise ValueError(f"a count of {count} where {len(self.data) - self.at} bytes are left")
        return count


def gguf_file(path: Path) -> GGUF:
    """The metadata and the tensors of a GGUF file of version 2 or 3."""
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise missing_extra(error) from error
    try:
        cursor = _Cursor(np.memmap(path, np.uint8, "r").view(np.ndarray))
        if cursor.take("u1", 4).tobytes() != b"GGUF" or cursor.integer("<u4") not in (2, 3):
            raise ValueError("another beginning than GGUF of version 2 or 3")
        tensors, entries = cursor.integer("<u8"), cursor.integer("<u8")
        metadata = {}
        for _ in range(cursor.bounded(entries, 12)):
            key = cursor.string()
            if key in metadata:
                raise ValueError(f"the key {key[:80]!r} twice")
            metadata[key] = cursor.value(cursor.integer("<u4"))
        headers = []
        for _ in range(cursor.bounded(tensors, 24)):
            name, dims = cursor.string(), cursor.integer("<u4")
            shape = tuple(int(n) for n in cursor.take("<u8", dims)[::-1])
            headers.append((name, shape, GGMLQuantizationType(cursor.integer("<u4")), cursor.integer("<u8")))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"an alignment of {alignment}")
        begin = -(-cursor.at // alignment) * alignment
        places = {}
        for name, shape, kind, offset in headers:
            block, size = GGML_QUANT_SIZES[kind]
            last = shape[-1] if shape else 1
            rows = (*shape[:-1], last // block * size)
            if last % block or name in places or begin + offset + math.prod(rows) > len(cursor.data):
                raise ValueError(f"an impossible place or shape of {name!r}")
            places[name] = (begin + offset, rows, kind)
    except DAMAGED as error:
        raise damaged(path, error) from error
    for name, (_, _, kind) in places.items():
        try:
            dequantize(np.zeros(GGML_QUANT_SIZES[kind][1], np.uint8), kind)
        except NotImplementedError:
            raise expected(f"type of {name}", "a type that the package gguf dequantises", kind.name) from None

    shapes = {name: shape for name, shape, _, _ in headers}
    tensors = {
        name: Place(
            path,
            begin,
            shapes[name],
            rows[-1] if rows else 0,
            functools.partial(dequantize, qtype=kind),
        )
        for name, (begin, rows, kind) in places.items()
    }
    return GGUF(metadata, TensorFile(shapes, lambda name, dtype=None: tensors[name].read(dtype)))
