"""The tokenizer that came with a language model, as one of the package ``tokenizers``."""

import json
import os
from collections.abc import Mapping
from typing import Any

from icllab.core.errors import expected
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
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
SPACE = "▁"


def tokenizer(path: str | os.PathLike[str]) -> Any:
    """The tokenizer of the model in a folder or a file, a ``tokenizers.Tokenizer``.

    It is that of ``tokenizer.json`` beside the model (of glassllm too), or else of the GGUF file's metadata (byte-level
    BPE of GPT-2, SmolLM and Qwen2). ``tokenizer(path).encode(text).ids`` are ids for :meth:`Transformer.logits`.

    Raises:
        InputError: There is none, or of another kind, or damaged.
        EnvironmentFault: The extra ``[pretrained]`` is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing_extra(error) from error
    place = model_path(path)
    folder = place if place.is_dir() else place.parent
    files = [folder / f"{place.stem}.tokenizer.json", folder / "tokenizer.json"]
    file = next((file for file in files if file.is_file()), place)
    if file.suffix == ".json":
        content = read_json(file)
        content = _glassllm(content) if set(content) >= {"alphabet", "merges"} else content
    elif place.suffix == ".gguf":
        content = _from_metadata(gguf_file(place).metadata)
    else:
        raise expected("path", "a tokenizer.json beside the model", folder.name)
    try:
        return Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the package raises no class of its own
        raise damaged(file, error) from error


def _bpe(vocabulary: Mapping[str, int], merges: list[Any], **parts: Any) -> dict[str, Any]:
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "dropout": None, "unk_token": None}
    model |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **parts.pop("model", {})}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", "added_tokens": [], **empty, **parts, "model": model}


def _added(index: int, content: str, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, "special": special, **flags}


def _from_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        known = "gpt2 (byte-level BPE) with tokenizer.ggml.pre " + ", ".join(PRE_TOKENIZERS)
        raise expected("tokenizer.ggml.model", known, (kind, pre), "put the model's tokenizer.json beside it")
    tokens, merges = (metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "merges"))
    if not isinstance(tokens, list) or not isinstance(merges, list) or len(set(tokens)) < len(tokens):
        raise expected("tokenizer.ggml", "lists of different tokens, and of merges", "others")
    kinds = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    added = [
        _added(i, token, special=kind == CONTROL)
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    return _bpe(
        {token: i for i, token in enumerate(tokens)},
        merges,
        added_tokens=added,
        normalizer={"type": "NFC"} if pre == "qwen2" else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        decoder=BYTE_LEVEL,
    )


def _glassllm(content: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer of glassllm: characters, then merges, with a mark for each space."""
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
