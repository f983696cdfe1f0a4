"""The tokenizer of a file splits and joins text as its rules say."""

import json
import warnings

import numpy as np
import pytest

pytest.importorskip("tokenizers")

import language_models as files

from icllab.core.errors import InputError, ResultWarning
from icllab.core.tokenizers import beginning
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
    with pytest.raises(InputError, match=r"path: expected a tokenizer.json next to the model"):
        pretrained.tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer.json: expected a sound file"):
        pretrained.tokenizer(folder)


SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}


def of_gguf(folder, *, kind="gpt2", **keys):
    metadata = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    return files.write_gguf(folder / "model.gguf", files.drawn(files.TIED), metadata=metadata, tokenizer=kind)


def beside(folder, vocabulary, **fields):
    """A tokenizer.json beside a GGUF file, with a token a character."""
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(vocabulary)}, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], **fields, "model": model}))


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        ({}, ["ab", "Ġab"]),
        ({"add_bos_token": False, "add_eos_token": False, "bos_token_id": 2}, ["ab", "Ġab"]),
        ({"add_bos_token": True, "bos_token_id": 2}, ["c", "ab", "Ġab"]),
        ({"add_eos_token": True, "eos_token_id": 0, "bos_token_id": 2}, ["ab", "Ġab", "a"]),
        ({"add_bos_token": True, "add_eos_token": True, "bos_token_id": 2, "eos_token_id": 0}, ["c", "ab", "Ġab", "a"]),
        ({"add_space_prefix": True}, ["Ġab", "Ġab"]),
        ({"add_space_prefix": False, "add_sep_token": False, "fim_pre_token_id": 3}, ["ab", "Ġab"]),
    ],
)
def test_flags_of_a_gguf_file_act_in_encode(keys, tokens, tmp_path):
    tokenizer = pretrained.tokenizer(of_gguf(tmp_path, **keys))
    assert tokenizer.encode("ab ab").tokens == tokens
    added = 2 if keys.get("add_bos_token") else None
    assert beginning(tokenizer) == (() if added is None else (added,))
    if keys.get("add_space_prefix"):
        assert tokenizer.encode(" ab ab").tokens == tokens  # one space, not two
        assert tokenizer.encode("").tokens == []
    ends = len([name for name in ("add_bos_token", "add_eos_token") if keys.get(name)])
    assert len(tokenizer.encode("ab", "ab").ids) == 2 + 2 * ends


@pytest.mark.parametrize("flag", ["add_bos_token", "add_eos_token"])
@pytest.mark.parametrize("index", [None, 6, 2**31])
def test_a_token_that_is_added_and_not_there_is_refused(flag, index, tmp_path):
    name = flag.removeprefix("add_") + "_id"
    keys = {flag: True} | ({} if index is None else {name: index})
    with pytest.raises(InputError, match=rf"tokenizer.ggml.{name}: expected a token, for {flag}, got {index}"):
        pretrained.tokenizer(of_gguf(tmp_path, **keys))


def test_a_key_of_the_tokenizer_that_nobody_knows_is_refused(tmp_path):
    name = "".join(np.random.default_rng().choice(list("abcdefghij"), 8))
    with pytest.raises(InputError, match=f"tokenizer.ggml.{name}: expected only known keys, got 3"):
        pretrained.tokenizer(of_gguf(tmp_path, **{name: 3}))
    with pytest.raises(InputError, match=r"tokenizer.ggml.add_bos_token: expected True or False, got 1"):
        pretrained.tokenizer(of_gguf(tmp_path, add_bos_token=1))
    with pytest.raises(InputError, match=r"tokenizer.ggml.token_type: expected a type of each of 6 tokens"):
        pretrained.tokenizer(of_gguf(tmp_path, token_type=[1, 1]))


def test_a_gguf_file_comes_before_a_tokenizer_of_other_ids(tmp_path):
    file = of_gguf(tmp_path)
    beside(tmp_path, ["b", "a", *map(str, range(30))])
    with pytest.warns(ResultWarning, match=r"tokenizer.json: not used, .* id 0 is 'b' in one and 'a' in the other"):
        assert pretrained.tokenizer(file).encode("ab ab").ids == [3, 5]
    beside(tmp_path, files.BPE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pretrained.tokenizer(file).encode("ab ab").ids == [3, 5]


def test_a_kind_that_is_not_known_takes_the_tokenizer_beside_it_if_its_ids_are_the_files(tmp_path):
    file = of_gguf(tmp_path, kind="llama", add_bos_token=True, bos_token_id=2)
    with pytest.raises(InputError, match=r"put the model's tokenizer.json next to it"):
        pretrained.tokenizer(file)
    # A special token may be spelled otherwise, and the rest of the file stays: of three tokens here, one is added.
    added = {"id": 5, "content": "<x>", "special": True, "single_word": False, "lstrip": False, "rstrip": False}
    beside(tmp_path, [*files.BPE[:5], "<x>"], added_tokens=[{**added, "normalized": False}])
    assert pretrained.tokenizer(tmp_path).encode("a<x>").ids == [2, 0, 5]
    # A flag that says no counts as well as one that says yes.
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "c", "type_id": 0}}, SEQUENCE]}
    template |= {"pair": template["single"], "special_tokens": {"c": {"id": "c", "ids": [2], "tokens": ["c"]}}}
    for flags, ids in (({}, [2, 0]), ({"add_bos_token": False}, [0])):
        of_gguf(tmp_path, kind="llama", **flags)
        beside(tmp_path, files.BPE, post_processor=template)
        assert pretrained.tokenizer(tmp_path).encode("a").ids == ids
    beside(tmp_path, [*files.BPE, "d"])
    with pytest.raises(InputError, match=r"tokenizer.json: expected the ids of model.gguf, got \"id 6 is 'd' in one"):
        pretrained.tokenizer(tmp_path)


def test_more_tokens_than_the_model_has_are_refused(tmp_path, monkeypatch):
    tokens = [*files.BPE, *map(str, range(files.VOCABULARY - 5))]
    monkeypatch.setattr(files, "BPE", tokens[:-1])
    assert pretrained.tokenizer(of_gguf(tmp_path)).get_vocab_size() == files.VOCABULARY
    monkeypatch.setattr(files, "BPE", tokens)
    with pytest.raises(InputError, match=rf"model.gguf: .* {len(tokens)} tokens for a model of {files.VOCABULARY}"):
        pretrained.tokenizer(of_gguf(tmp_path))


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("truncation", {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}, "truncation"),
        (
            "padding",
            {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1}
            | {"pad_type_id": 0, "pad_token": "b"},
            "padding",
        ),
        ("dropout", 0.9, "dropout of merges"),
    ],
)
def test_settings_with_which_a_file_was_saved_are_off(field, value, name, tmp_path):
    folder = files.write_folder(tmp_path / "model", files.TIED)
    content = json.loads(pretrained.tokenizer(of_gguf(tmp_path)).to_str())
    (content["model"] if field == "dropout" else content)[field] = value
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.warns(ResultWarning, match=f"tokenizer.json: switched off {name}"):
        tokenizer = pretrained.tokenizer(folder)
    for _ in range(5):
        assert tokenizer.encode("ab ab ab").tokens == ["ab", "Ġab", "Ġab"]


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("flag", [False, True, None])
def test_a_bos_flag_beside_a_tokenizer_that_does_otherwise_is_told(adds, flag, tmp_path):
    (tmp_path / "gguf").mkdir()
    keys = {"add_bos_token": True, "bos_token_id": 2} if adds else {}
    folder = files.write_folder(tmp_path / "model", files.TIED)
    (folder / "tokenizer.json").write_text(pretrained.tokenizer(of_gguf(tmp_path / "gguf", **keys)).to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": flag, "model_max_length": 4}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ids = pretrained.tokenizer(folder).encode("ab ab").ids
    assert ids == ([2, 3, 5] if adds else [3, 5])
    assert [f"add_bos_token is {flag}" in str(warning.message) for warning in caught] == (
        [True] if flag is (not adds) else []
    )
