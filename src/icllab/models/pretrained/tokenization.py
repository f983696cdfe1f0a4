"""The tokenizer of a language model, as an object of the package ``tokenizers``."""

import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from icllab.core.errors import ResultWarning, expected, require_flag
from icllab.core.tokenizers import beginning, plain
from icllab.models.pretrained.files import DAMAGED, damaged, missing_extra, read_json
from icllab.models.pretrained.gguf_files import gguf_file
from icllab.models.pretrained.loading import model_path

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [BYTE_LEVEL],
    "smollm": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
    "qwen2": [
        {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False},
        {**BYTE_LEVEL, "use_regex": False},
    ],
}
"""How text is split before pairs are merged, by the name in a GGUF file."""
KEYS = re.compile(
    "model|pre|tokens|merges|scores|token_type(_count)?|add_(bos_token|eos_token|space_prefix)|.*_token_ids?"
)
"""Keys of a GGUF file that are read, or that do not change the ids of a text."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
SPACE = "▁"


def tokenizer(path: str | os.PathLike[str]) -> Any:
    """The tokenizer of the model in a folder or file, a ``tokenizers.Tokenizer``.

    It is that of the GGUF file's metadata (byte-level BPE of GPT-2, SmolLM and Qwen2), or else of ``tokenizer.json``
    beside the model (of glassllm too). ``tokenizer(path).encode(text).ids`` are ids for :meth:`Transformer.logits`. A
    BOS or EOS token, or a space before the text, is added as the file says. Truncation, padding and dropout of merges,
    with which ``tokenizer.json`` may have been saved, are switched off.

    Raises:
        InputError: There is none, or of another kind, or damaged; or ``tokenizer.json`` has other ids than a GGUF file
            whose tokenizer is of another kind.
        EnvironmentFault: The extra ``[pretrained]`` is not installed.

    Warns:
        ResultWarning: A setting of ``tokenizer.json`` is switched off; it is not used, since its ids are not those of
            the GGUF file; or ``tokenizer_config.json`` says otherwise whether a BOS token is added.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing_extra(error) from error
    place = model_path(path)
    folder = place if place.is_dir() else place.parent
    files = [folder / f"{place.stem}.tokenizer.json", folder / "tokenizer.json"]
    file = next((file for file in files if file.is_file()), place)
    content = read_json(file) if file.suffix == ".json" else None
    if content is not None and set(content) >= {"alphabet", "merges"}:
        content = _glassllm(content)
    if place.suffix.lower() == ".gguf":
        file, content = _of_gguf(place, file, content)
    if content is None:
        raise expected("path", "a tokenizer.json next to the model", folder.name)
    try:
        result = Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the package raises no class of its own
        raise damaged(file, error) from error
    beside = folder / "tokenizer_config.json"
    if file.name == "tokenizer.json" and beside.is_file():
        flag, ids = read_json(beside).get("add_bos_token"), beginning(result)
        if isinstance(flag, bool) and flag != bool(ids):
            message = (
                f"tokenizer_config.json: add_bos_token is {flag}, and tokenizer.json adds {list(ids)}, as is done here"
            )
            warnings.warn(message, ResultWarning, stacklevel=2)
    return plain(result, file.name)


def _of_gguf(place: Path, file: Path, beside: dict[str, Any] | None) -> tuple[Path, dict[str, Any]]:
    """The tokenizer of a GGUF file; the one in the neighbouring ``file`` if the GGUF tokenizer's kind is unknown."""
    metadata, tensors = gguf_file(place)
    tokens, table = metadata.get("tokenizer.ggml.tokens"), tensors.shapes.get("token_embd.weight")
    if isinstance(tokens, list) and table and len(tokens) > table[0]:
        raise damaged(place, f"{len(tokens)} tokens for a model of {table[0]}")
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    other_id = "" if beside is None else _other_id(metadata, beside)
    if kind == "gpt2" and pre in PRE_TOKENIZERS:
        if other_id:
            message = f"{file.name}: not used, because the tokenizer of {place.name} has other ids: {other_id}"
            warnings.warn(message, ResultWarning, stacklevel=3)
        file, beside = place, _from_metadata(metadata, pre)
    elif beside is None:
        requirement = "gpt2 (byte-level BPE) with tokenizer.ggml.pre " + ", ".join(PRE_TOKENIZERS)
        raise expected("tokenizer.ggml.model", requirement, (kind, pre), "put the model's tokenizer.json next to it")
    elif other_id:
        raise expected(file.name, f"the ids of {place.name}", other_id, "put the model's tokenizer.json next to it")
    return file, _with_ends(beside, metadata)


def _other_id(metadata: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """The first token whose id in ``tokenizer.json`` differs from the GGUF file, in words; empty if there is none."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    try:
        vocabulary = content["model"]["vocab"]
        if not isinstance(vocabulary, dict):  # of Unigram, pairs of a token and its score
            vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
        added = {entry["content"] for entry in content["added_tokens"]}  # spelled otherwise in some GGUF files
        for token, index in vocabulary.items():
            match = tokens[index] if isinstance(tokens, list) and index < len(tokens) else None
            if token not in added and token != match:
                return f"id {index} is {token!r} in one and {match!r} in the other"
    except DAMAGED as error:
        raise expected("tokenizer.json", "a vocabulary with ids, and added_tokens", type(error).__name__) from error
    return ""


def _with_ends(content: dict[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Make a tokenizer add BOS and EOS tokens as a GGUF file's metadata says; unchanged if the metadata does not say.

    Raises:
        InputError: The token that is added is not in the file.
    """
    tokens, ends, stated = metadata.get("tokenizer.ggml.tokens"), [], False
    for name in ("bos", "eos"):
        flag, index = _flag(metadata, f"add_{name}_token"), metadata.get(f"tokenizer.ggml.{name}_token_id")
        stated |= flag is not None
        if flag:
            if not isinstance(tokens, list) or not isinstance(index, int) or not 0 <= index < len(tokens):
                raise expected(f"tokenizer.ggml.{name}_token_id", f"a token, for add_{name}_token", index)
            ends.append({"id": tokens[index], "ids": [index], "tokens": [tokens[index]]})
        else:
            ends.append(None)
    if not stated:
        return content
    bos, eos = ([{"SpecialToken": {"id": end["id"], "type_id": 0}}] if end else [] for end in ends)
    first, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    pair = [*bos, first, *eos, *bos, second, *eos]
    template = {"single": [*bos, first, *eos], "pair": pair, "special_tokens": {end["id"]: end for end in ends if end}}
    return {**content, "post_processor": {"type": "TemplateProcessing", **template}}


def _flag(metadata: Mapping[str, Any], name: str) -> bool | None:
    """A flag of the tokenizer of a GGUF file; None if the file does not state it."""
    if (value := metadata.get(f"tokenizer.ggml.{name}")) is not None:
        require_flag(f"tokenizer.ggml.{name}", value)
    return value


def _bpe(vocabulary: Mapping[str, int], merges: list[Any], **parts: Any) -> dict[str, Any]:
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "dropout": None, "unk_token": None}
    model |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **parts.pop("model", {})}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", "added_tokens": [], **empty, **parts, "model": model}


def _added(index: int, content: str, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, "special": special, **flags}


def _from_metadata(metadata: Mapping[str, Any], pre: str) -> dict[str, Any]:
    for key, value in metadata.items():
        name = key.removeprefix("tokenizer.ggml.")
        if name != key and value is not False and not KEYS.fullmatch(name):
            raise expected(key, "only known keys", value)
    tokens, merges = (metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "merges"))
    if not isinstance(tokens, list) or not isinstance(merges, list) or len(set(tokens)) < len(tokens):
        raise expected("tokenizer.ggml", "lists of different tokens, and of merges", "other values")
    kinds = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise expected("tokenizer.ggml.token_type", f"a type of each of {len(tokens)} tokens", np.shape(kinds))
    normalizers = [{"type": "NFC"}] if pre == "qwen2" else []
    if _flag(metadata, "add_space_prefix"):  # unless the text begins with one
        once = {"type": "Replace", "pattern": {"Regex": r"\A  "}, "content": " "}
        normalizers += [{"type": "Prepend", "prepend": " "}, once]
    added = [
        _added(i, token, special=kind == CONTROL)
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    return _bpe(
        {token: i for i, token in enumerate(tokens)},
        merges,
        added_tokens=added,
        normalizer={"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        decoder=BYTE_LEVEL,
    )


def _glassllm(content: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer of glassllm: characters, then merges, with a marker for each space."""
    try:
        merges = [(str(a), str(b)) for a, b in content["merges"]]
        tokens = [*SPECIALS, *content["alphabet"], *(a + b for a, b in merges)]
        vocabulary = {token: i for i, token in enumerate(tokens)}
    except DAMAGED as error:
        raise expected("tokenizer.json", "an alphabet and pairs that are merged", type(error).__name__) from error
    pattern = {"Regex": rf"\n|{SPACE}*[^{SPACE}\n]+|{SPACE}+"}
    return _bpe(
        vocabulary,
        merges,
        model={"unk_token": "<unk>"},
        normalizer={
            "type": "Sequence",
            "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}],
        },
        pre_tokenizer={"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
        decoder={
            "type": "Sequence",
            "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}],
        },
    )
