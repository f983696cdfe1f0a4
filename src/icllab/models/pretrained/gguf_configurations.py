"""Configurations of GGUF files: each key of the architecture is understood, known to be without effect, or refused."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from icllab.core.errors import expected
from icllab.models.pretrained.assembly import unsaid
from icllab.models.pretrained.configurations import Configuration, require_known, unread

GGUF_FIELDS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "context_length": "max_position_embeddings",
    "attention.sliding_window": "sliding_window",
}
GGUF_GEMMA = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base_swa": "rope_local_base_freq",
}
GGUF_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3_text"}
GGUF_UNSCALED = {("gemma2", 46), ("gemma3", 62)}
"""Numbers of layers of Gemma's 27B, whose scores are scaled by the width over the number of heads, which no key says.

llama.cpp tells the models by these numbers.
"""
GGUF_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "rope.scaling.type": ("none", "linear"),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scale_linear": (1.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "tensor_data_layout": ("Meta AI original pth",),
}
"""Values with which keys of the architecture that compute change nothing."""
GGUF_DESCRIBES = {"rope.scaling.finetuned", "rope.scaling.original_context_length", "pooling_type"}
GGUF_WHOLE = {"general.type": ("model",), "split.count": (0, 1)}
"""Values of a file that is a whole model."""


def from_gguf(
    metadata: Mapping[str, Any], vocabulary: int, ignore: Iterable[str], *, tied: bool, factors: Any = None
) -> Configuration:
    """The configuration stated by a GGUF file's metadata; ``factors`` of the frequencies are a tensor of the file.

    Keys that begin with the architecture compute. Others describe: how the file was made, or by whom.

    Raises:
        InputError: The architecture is another, the file is not a whole model, a key of the architecture has a value
            that is not understood, or one is not known and not in ``ignore``.
    """
    kind = str(metadata.get("general.architecture"))
    require_known("general.architecture", kind, metadata, GGUF_FAMILIES)
    required = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count")
    for key in (f"{kind}.{name}" for name in (*required, "attention.layer_norm_rms_epsilon")):
        if key not in metadata:
            raise expected(key, "a number", None)
    for key, whole in GGUF_WHOLE.items():
        if metadata.get(key, whole[-1]) not in whole:
            hint = "llama-gguf-split --merge joins parts" if key == "split.count" else ""
            raise expected(key, f"{whole[-1]}, a whole model", metadata[key], hint)
    computing = {key.removeprefix(f"{kind}."): value for key, value in metadata.items() if key.startswith(f"{kind}.")}
    names = GGUF_FIELDS | (GGUF_GEMMA if kind.startswith("gemma") else {})
    fields = {names[name]: value for name, value in computing.items() if name in names}
    fields |= {"vocab_size": vocabulary, "tie_word_embeddings": tied}
    checked = ("rope.dimension_count", "attention.value_length", "vocab_size", "rope.scaling.factor")
    unlisted = {key: value for key, value in metadata.items() if "." not in key}
    for name, value in computing.items():
        if name in GGUF_NEUTRAL and value not in GGUF_NEUTRAL[name]:
            hint = f"{' or '.join(map(str, GGUF_NEUTRAL[name]))} is"
            raise expected(f"{kind}.{name}", "only known keys", value, hint)
        if name not in {*names, *checked, *GGUF_NEUTRAL, *GGUF_DESCRIBES}:
            unlisted[f"{kind}.{name}"] = value
    known = {f"{kind}.{name}" for name in {*names, *checked, *GGUF_NEUTRAL, *GGUF_DESCRIBES}}
    ignored = unread("key", unlisted, known, ignore)
    if computing.get("vocab_size", vocabulary) != vocabulary:
        raise expected(f"{kind}.vocab_size", f"the rows of the embedding, {vocabulary}", computing["vocab_size"])
    _require_head(kind, computing, fields)
    return Configuration(_of_family(kind, computing, fields), ignored, _gguf_form(kind, factors))


def _require_head(kind: str, computing: Mapping[str, Any], fields: dict[str, Any]) -> None:
    """State the dimension of a head, and raise if a key has another one."""
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    if isinstance(width, int) and isinstance(heads, int) and heads:
        dim = fields.setdefault("head_dim", width // heads)
        for name in ("rope.dimension_count", "attention.value_length"):
            if name in computing and computing[name] != dim:
                raise unsaid(f"{kind}.{name}", computing[name], f"all {dim} of a head")


def _of_family(kind: str, computing: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a GGUF file as its family states them."""
    factor, family = computing.get("rope.scaling.factor", 0), GGUF_FAMILIES[kind]
    if factor not in (0, 1) and computing.get("rope.scaling.type") != "none":
        fields["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    if not fields.get("sliding_window") and not kind.startswith("gemma"):
        fields.pop("sliding_window", None)
    elif kind == "llama":
        family = "mistral"
    elif kind.startswith("qwen"):
        raise unsaid(f"{kind}.attention.sliding_window", fields["sliding_window"], 0)
    if kind.startswith("gemma"):
        width, heads, layers = (fields[name] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
        fields["query_pre_attn_scalar"] = width // heads if (kind, layers) in GGUF_UNSCALED else fields["head_dim"]
    return {**fields, "model_type": family}


def _gguf_form(kind: str, factors: Any) -> dict[str, Any]:
    """Form of the weights: Llama's queries and keys have rows in another order, Gemma's norms their offset added."""
    form = {"rotary_pairs": "adjacent" if kind == "llama" else "halves"}
    form |= {"norm_offset": 0.0} if kind.startswith("gemma") else {}
    return form | ({} if factors is None else {"rope_factors": tuple(np.asarray(factors, float).tolist())})
