"""Configurations of the families: each field is understood, known to change nothing, or refused by its name."""

import functools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from icllab.core.errors import expected, require_flag, require_integer, unknown
from icllab.core.files import parse_json
from icllab.models.networks.transformer import Transformer
from icllab.models.pretrained.assembly import unsaid
from icllab.models.pretrained.families import gpt2, gpt_neox, llama

# Of training, generation, the library and heads of other tasks; and precisions of what is computed.
NO_EFFECT = """
_name_or_path architectures model_type torch_dtype dtype transformers_version use_cache bos_token_id eos_token_id
pad_token_id unk_token_id initializer_range attention_dropout hidden_dropout classifier_dropout attn_pdrop embd_pdrop
resid_pdrop summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
task_specific_params reorder_and_upcast_attn n_ctx attn_implementation _attn_implementation
_attn_implementation_autoset output_attentions output_hidden_states return_dict chunk_size_feed_forward id2label
label2id problem_type pretraining_tp is_llama_config transformers.js_config gradient_checkpointing
max_position_embeddings sliding_window max_window_layers name_or_path
""".split()  # noqa: SIM905
"""Fields that do not change the function: rotary positions have no end, and a window that is not used no width."""


class Family(NamedTuple):
    """A family: its builder, fields that are sizes, flags and others with defaults, and fields of one known value."""

    build: Callable[..., Transformer]
    sizes: tuple[str, ...]
    layers: str
    flags: Mapping[str, bool]
    defaults: Mapping[str, Any]
    only: Mapping[str, Any]


_LLAMA = Family(
    build=llama,
    sizes=("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    layers="num_hidden_layers",
    flags={"tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False},
    defaults={"num_key_value_heads": None, "head_dim": None, "hidden_act": "silu", "rms_norm_eps": 1e-6}
    | {"rope_theta": 10_000.0, "rope_scaling": None, "rope_parameters": None, "rotary_pairs": "halves"},
    only={"rope_interleaved": False, "is_decoder": (False, True), "is_encoder_decoder": False},
)
FAMILIES = {
    "gpt2": Family(
        build=gpt2,
        sizes=("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"),
        layers="n_layer",
        flags={"tie_word_embeddings": True},
        defaults={"n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
        only={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
        | {"is_decoder": (False, True), "is_encoder_decoder": False},
    ),
    "gpt_neox": Family(
        build=gpt_neox,
        sizes=("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        layers="num_hidden_layers",
        flags={"tie_word_embeddings": False, "use_parallel_residual": True, "attention_bias": True},
        defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10_000}
        | {"rope_theta": None, "rope_scaling": None, "rope_parameters": None},
        only={"is_decoder": (False, True), "is_encoder_decoder": False},
    ),
    "llama": _LLAMA,
    "qwen2": _LLAMA._replace(
        build=functools.partial(llama, qwen2=True),
        flags={"tie_word_embeddings": False, "mlp_bias": False},
        defaults={**_LLAMA.defaults, "layer_types": None},
        only={**_LLAMA.only, "use_sliding_window": False},
    ),
}


def family_and_fields(raw: Mapping[str, Any], tensors: int) -> tuple[Family, SimpleNamespace]:
    """The family of a configuration, and its fields with the defaults of transformers.

    ``tensors``: number of tensors that there are, of which a layer needs at least one.
    """
    kind = str(raw.get("model_type"))
    if kind not in FAMILIES:
        raise unknown("model_type", kind, FAMILIES)
    family = FAMILIES[kind]
    values = {**family.flags, **family.defaults}
    for name, value in raw.items():
        if name in family.only:
            known = family.only[name]
            if value not in (known if isinstance(known, tuple) else (known,)):
                raise unsaid(name, value, known)
        elif name in family.sizes or name in values:
            values[name] = value
        elif name not in NO_EFFECT:
            raise expected(name, "no field that is not understood", value, f"not known of {kind}")
    for name in family.sizes:
        require_integer(name, values.get(name))
    for name in family.flags:
        require_flag(name, values[name])
    for name in ("num_key_value_heads", "head_dim", "n_inner"):
        if values.get(name) is not None:
            require_integer(name, values[name])
    if (layers := values[family.layers]) > tensors:
        raise expected(family.layers, f"a number of layers for {tensors} tensors", layers)
    if kind == "gpt_neox" and values["rope_theta"] is not None:
        values["rotary_emb_base"] = values["rope_theta"]
    return family, SimpleNamespace(**values)


GLASSLLM = {"vocab_size": "vocab_size", "d_model": "hidden_size", "n_layers": "num_hidden_layers"} | {
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "rope_base": "rope_theta",
    "eps": "rms_norm_eps",
    "max_len": "max_position_embeddings",
    "init_std": "initializer_range",
}


def glassllm(text: str, hidden: int) -> dict[str, Any]:
    """The configuration of a file of glassllm, with its hidden width, which only the tensors say."""
    raw = parse_json(text, "__config__")
    if not isinstance(raw, dict):
        raise expected("__config__", "a JSON object", type(raw).__name__)
    for name in raw:
        if name not in GLASSLLM:
            raise unknown("field", name, GLASSLLM)
    fields = {GLASSLLM[name]: value for name, value in raw.items()}
    form = {"model_type": "llama", "tie_word_embeddings": True, "rotary_pairs": "adjacent"}
    return {**fields, **form, "intermediate_size": hidden}


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
}
GGUF_PAIRS = {"llama": "adjacent", "qwen2": "halves"}
"""How coordinates are paired: llama.cpp's Llama has rows of queries and keys in another order than transformers."""


def from_gguf(metadata: Mapping[str, Any], vocabulary: int, *, tied: bool) -> dict[str, Any]:
    """The configuration that the metadata of a GGUF file state.

    Raises:
        InputError: The architecture is another, or a key of it is not understood.
    """
    kind = str(metadata.get("general.architecture"))
    if kind not in GGUF_PAIRS:
        raise unknown("general.architecture", kind, GGUF_PAIRS)
    fields: dict[str, Any] = {"model_type": kind, "vocab_size": vocabulary, "tie_word_embeddings": tied}
    fields |= {"rotary_pairs": GGUF_PAIRS[kind], "rms_norm_eps": None}
    turned = None
    for key, value in metadata.items():
        if not key.startswith(f"{kind}."):
            if not key.startswith(("general.", "tokenizer.")):
                raise expected(key, "no key that is not understood", value)
            continue
        name = key.removeprefix(f"{kind}.")
        if name in GGUF_FIELDS:
            fields[GGUF_FIELDS[name]] = value
        elif name == "rope.dimension_count":
            turned = value
        elif name == "attention.value_length":
            if value != metadata.get(f"{kind}.attention.key_length"):
                raise unsaid(key, value, "the length of keys")
        elif name == "vocab_size":
            if value != vocabulary:
                raise expected(key, f"the rows of the embedding, {vocabulary}", value)
        elif (name, value) not in (("rope.scaling.type", "none"), ("expert_count", 0), ("expert_used_count", 0)):
            raise expected(key, "no key that is not understood", value)
    width, heads = fields.get("hidden_size"), fields.get("num_attention_heads")
    if turned is not None and isinstance(width, int) and isinstance(heads, int) and heads:
        dim = fields.get("head_dim", width // heads)
        if turned != dim:
            raise unsaid(f"{kind}.rope.dimension_count", turned, f"all {dim} of a head")
    return fields
