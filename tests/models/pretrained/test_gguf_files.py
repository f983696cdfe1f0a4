"""Tensors of a GGUF file whose blocks are longer than the rows of a small model."""

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from icllab.core.errors import InputError  # noqa: E402
from icllab.models.pretrained.gguf_files import gguf_file  # noqa: E402


def written(path, kind):
    """Two rows of 256 numbers in blocks of random bytes, whose scales are 1."""
    of = gguf.GGMLQuantizationType[kind]
    data = np.random.default_rng(0).integers(0, 256, (2, gguf.GGML_QUANT_SIZES[of][1]), np.uint8)
    at = {"Q4_K": (0, 2), "Q6_K": (208,), "Q8_K": ()}[kind]
    for begin in at:
        data[:, begin : begin + 2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("a", data, raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return data


def test_q6_k_is_its_formula(tmp_path):
    """Four low bits, two high bits and a scale of every 16 numbers, from the first number of a block to the last."""
    data = written(tmp_path / "a.gguf", "Q6_K")
    values = gguf_file(tmp_path / "a.gguf").tensors.read("a")
    for row, block in enumerate(data):
        low, high, scales = block[:128], block[128:192], block[192:208].view(np.int8)
        for i in range(256):
            half, quarter, j = i // 128, i % 128 // 32, i % 32
            nibble = low[64 * half + 32 * (quarter % 2) + j] >> (4 * (quarter // 2)) & 15
            bits = high[32 * half + j] >> (2 * quarter) & 3
            assert values[row, i] == float(scales[i // 16]) * (int(nibble | bits << 4) - 32)


def test_q4_k_is_what_the_package_says(tmp_path):
    data = written(tmp_path / "a.gguf", "Q4_K")
    file = gguf_file(tmp_path / "a.gguf").tensors
    assert file.shapes == {"a": (2, 256)}
    theirs = gguf.quants.dequantize(data, gguf.GGMLQuantizationType.Q4_K)
    np.testing.assert_array_equal(file.read("a"), theirs)


def test_other_types_are_refused(tmp_path):
    written(tmp_path / "a.gguf", "Q8_K")
    with pytest.raises(InputError, match="type of a: expected a type that the package gguf dequantises, got 'Q8_K'"):
        gguf_file(tmp_path / "a.gguf")
