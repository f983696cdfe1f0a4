"""The tokenizer of a file splits and joins text as its rules say."""

import json

import pytest

pytest.importorskip("tokenizers")

import language_models as files

from icllab.core.errors import InputError
from icllab.models import pretrained


def test_of_a_gguf_file(tmp_path):
    file = files.write_gguf(tmp_path / "model.gguf", files.drawn(files.TIED))
    tokenizer = pretrained.tokenizer(file)
    assert tokenizer.encode("ab abc").tokens == ["ab", "Ġab", "c"]
    assert tokenizer.decode(tokenizer.encode("ab abc").ids) == "ab abc"


def test_of_glassllm(tmp_path):
    files.write_glassllm(tmp_path / "model.npz", files.drawn(files.TIED))
    content = {"version": 1, "alphabet": ["\n", "a", "b", "▁"], "merges": [["a", "b"], ["▁", "ab"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = pretrained.tokenizer(tmp_path)
    assert tokenizer.encode("ab ab\nz a").ids == [8, 9, 4, 1, 7, 5]
    assert tokenizer.decode([8, 9, 4, 7, 5]) == "ab ab\n a"
    (tmp_path / "tokenizer.json").write_text(json.dumps({"alphabet": 1, "merges": 2}))
    with pytest.raises(InputError, match=r"tokenizer.json: expected an alphabet and pairs"):
        pretrained.tokenizer(tmp_path)


def test_what_is_none(tmp_path):
    folder = files.write_folder(tmp_path / "model", files.TIED)
    with pytest.raises(InputError, match=r"path: expected a tokenizer.json beside the model"):
        pretrained.tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer.json: expected a sound file"):
        pretrained.tokenizer(folder)
