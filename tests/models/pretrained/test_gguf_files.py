"""Tensors of a GGUF file whose blocks are longer than the rows of a small model."""

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from icllab.core.errors import InputError  # noqa: E402
from icllab.models.pretrained.gguf_files import gguf_file  # noqa: E402


def written(path, kind):
    """Two rows of 256 numbers in blocks of random bytes, whose scales are 1 where they are known."""
    of = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[of]
    data = np.random.default_rng(0).integers(0, 256, (2, 256 // block * size), np.uint8)
    for begin in {"Q4_K": (0, 2), "Q6_K": (208,), "Q5_0": range(0, 8 * 22, 22)}.get(kind, ()):
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


def test_q5_0_is_its_formula(tmp_path):
    """A fifth bit of every number; the low bits of the first 16 before those of the last."""
    data = written(tmp_path / "a.gguf", "Q5_0")
    values = gguf_file(tmp_path / "a.gguf").tensors.read("a")
    for row, blocks in zip(values, data.reshape(2, 8, 22), strict=True):
        for numbers, block in zip(row.reshape(8, 32), blocks, strict=True):
            fifth = np.unpackbits(block[2:6], bitorder="little").astype(int)
            low = np.concatenate([block[6:] & 15, block[6:] >> 4]).astype(int)
            np.testing.assert_array_equal(numbers, low + 16 * fifth - 16)


def dequantised(kind):
    try:
        gguf.quants.dequantize(np.zeros(gguf.GGML_QUANT_SIZES[kind][1], np.uint8), kind)
    except NotImplementedError:
        return False
    return True


KINDS = [kind.name for kind in gguf.GGMLQuantizationType if dequantised(kind)]


def test_types_of_published_files_are_among_those_of_the_package():
    assert {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K"} < set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_each_type_are_those_of_the_package(kind, tmp_path):
    data = written(tmp_path / "a.gguf", kind)
    file = gguf_file(tmp_path / "a.gguf").tensors
    assert file.shapes == {"a": (2, 256)}
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
        np.testing.assert_array_equal(file.read("a"), theirs)


def test_texts_that_are_not_utf_8(tmp_path):
    """A description does not concern the reader, and tokens of different bytes stay different."""
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_string("general.description", b"caf\xe9")
    writer.add_token_list([b"\xff", b"\xfe", b"a"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = gguf_file(tmp_path / "a.gguf").metadata
    assert metadata["general.description"].encode("utf-8", "surrogateescape") == b"caf\xe9"
    assert len(set(metadata["tokenizer.ggml.tokens"])) == 3


def test_other_types_are_refused(tmp_path):
    written(tmp_path / "a.gguf", "Q8_K")
    with pytest.raises(InputError, match="type of a: expected a type that the package gguf dequantises, got 'Q8_K'"):
        gguf_file(tmp_path / "a.gguf")
