"""Configurations of model families: each field is understood, known to be without effect, or refused by name."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from icllab.core.errors import expected, require_flag, require_integer, unknown
from icllab.core.files import parse_json
from icllab.models.networks.transformer import Transformer
from icllab.models.pretrained.assembly import unsaid
from icllab.models.pretrained.families import Form, gpt2, gpt_neo, gpt_neox, llama

DESCRIBES = frozenset(
    """
    architectures model_type torch_dtype dtype use_bfloat16 transformers_version transformers.js_config name_or_path
    model_name ignore_keys_at_rope_validation
    torchscript tf_legacy_loss return_dict use_return_dict output_attentions output_hidden_states output_past use_cache
    chunk_size_feed_forward attn_implementation experts_implementation is_llama_config is_decoder generation_config
    custom_pipelines auto_map distributed_config keys_to_ignore_at_inference use_flash_attention use_flash_attention_2
    use_flash_attn
    initializer_range initializer_factor gradient_checkpointing use_gradient_checkpointing pretraining_tp
    reorder_and_upcast_attn layerdrop
    id2label label2id num_labels problem_type finetuning_task task_specific_params n_special predict_special_tokens
    n_ctx max_position_embeddings max_sequence_length max_seq_len max_seq_length model_max_length sliding_window
    max_window_layers
    tokenizer_class tokenizer_type processor_class prefix chat_template padding_side truncation_side
    clean_up_tokenization_spaces additional_special_tokens extra_special_tokens
    assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight assistant_lookbehind bad_words_ids
    begin_suppress_tokens cache_config cache_implementation compile_config constraints continuous_batching_config
    disable_compile diversity_penalty do_sample dola_layers early_stopping encoder_no_repeat_ngram_size
    encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty force_words_ids
    forced_decoder_ids guidance_scale is_assistant length_penalty low_memory max_cache_len max_length
    max_matching_ngram_size max_new_tokens max_time min_length min_new_tokens min_p no_repeat_ngram_size
    num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams num_return_sequences output_logits
    output_scores penalty_alpha prefill_chunk_size prompt_lookup_num_tokens remove_invalid_values renormalize_logits
    repetition_penalty return_dict_in_generate sequence_bias speculation_type stop_strings suppress_tokens
    target_lookbehind temperature token_healing top_h top_k top_p typical_p use_mtp watermarking_config
    """.split()  # noqa: SIM905
)
"""Fields of training, generation, tokenizers, other tasks' heads and the library, and precisions.

Rotary positions have no end, and a window that is not used has no width.
"""
DESCRIPTION = re.compile(
    r"_.*|(.*_)?(dropout|pdrop|dropout_prob)|(summary|classifier|unsloth)_.*|.*_token_ids?"
    r"|(add_)?(bos|eos|pad|unk|sep|cls|mask)_token"
)
"""Private fields, dropout, and the fields of a head or a maker, by the form of their names."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_causal": (True,),
    "use_bidirectional_attention": (False, None),
    "attention_chunk_size": (None,),
    "pruned_heads": ({}, None),
    "per_layer_config": ({}, None),
    "fusion_config": (None,),
    "transformers_weights": (None,),
    "quantization_config": (None,),
    "quantization": (None,),
    "compression_config": (None,),
}
"""Values with which fields that compute, in any family, change nothing."""


class Family(NamedTuple):
    """A family of models: its build function and its fields.

    Attributes:
        build: Builder.
        sizes: Names of sizes, which have no default.
        layers: Name of the number of layers.
        flags: Flags and their defaults.
        defaults: Other fields and their defaults.
        only: Fields and their one value, or values, with which they change nothing.
        synonyms: Further names of a field.
    """

    build: Callable[..., Transformer]
    sizes: tuple[str, ...]
    layers: str
    flags: Mapping[str, bool]
    defaults: Mapping[str, Any]
    only: Mapping[str, Any]
    synonyms: Mapping[str, str] = MappingProxyType({})

    @property
    def known(self) -> set[str]:
        """Names of the family's fields that affect the computation."""
        return {*self.sizes, *self.flags, *self.defaults, *self.only, *self.synonyms, *NEUTRAL}

    def unknown(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Fields that are neither known to affect the computation nor known to describe it."""
        unlisted = set(fields) - self.known - DESCRIBES
        return {name: value for name, value in fields.items() if name in unlisted and not DESCRIPTION.fullmatch(name)}


_LLAMA = Family(
    build=llama,
    sizes=("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    layers="num_hidden_layers",
    flags={"tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False},
    defaults={"num_key_value_heads": None, "head_dim": None, "hidden_act": "silu", "rms_norm_eps": 1e-6}
    | {"rope_theta": 10_000.0, "rope_scaling": None, "rope_parameters": None, "layer_types": None}
    | {"partial_rotary_factor": 1.0},
    only={"rope_interleaved": False, "use_sliding_window": False},
)


def _like_llama(form: Form, *, defaults: Any, only: Any, flags: Any = MappingProxyType({}), **fields: Any) -> Family:
    """A family of Llama's form, with other fields and defaults."""
    all_flags = {"tie_word_embeddings": False, "attention_bias": False, **flags}
    neutral = {"mlp_bias": False, **_LLAMA.only}
    return _LLAMA._replace(
        build=functools.partial(llama, form=form),
        flags={name: value for name, value in all_flags.items() if name not in only},
        defaults={name: value for name, value in _LLAMA.defaults.items() if name not in only} | defaults,
        only={name: value for name, value in neutral.items() if name not in all_flags} | only,
        **fields,
    )


_WINDOWS = {"sliding_window": 4096, "max_window_layers": 28}
_GEMMA2 = {"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256}
_GEMMA2 |= {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA3 = {**_GEMMA2, "final_logit_softcapping": None, "rope_theta": 1e6, "rope_local_base_freq": 10_000.0}
_GEMMA3 |= {"sliding_window_pattern": 6}
_GEMMA3.pop("attn_logit_softcapping")


FAMILIES = {
    "gpt2": Family(
        build=gpt2,
        sizes=("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"),
        layers="n_layer",
        flags={"tie_word_embeddings": True, "scale_attn_by_inverse_layer_idx": False},
        defaults={"n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
        only={"scale_attn_weights": True},
        synonyms={"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
        | {"max_position_embeddings": "n_positions"},
    ),
    "gpt_neo": Family(
        build=gpt_neo,
        sizes=("vocab_size", "max_position_embeddings", "hidden_size", "num_layers", "num_heads"),
        layers="num_layers",
        flags={"tie_word_embeddings": True},
        defaults={"intermediate_size": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
        | {"attention_layers": None, "attention_types": None, "window_size": 256},
        only={},
        synonyms={"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
    ),
    "gpt_neox": Family(
        build=gpt_neox,
        sizes=("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        layers="num_hidden_layers",
        flags={"tie_word_embeddings": False, "use_parallel_residual": True, "attention_bias": True},
        defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10_000}
        | {"rope_scaling": None, "rope_parameters": None, "head_dim": None},
        only={},
        synonyms={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    ),
    "llama": _LLAMA,
    "mistral": _like_llama(
        Form("all"), defaults={"sliding_window": 4096}, only={"attention_bias": False, "layer_types": None}
    ),
    "qwen2": _like_llama(
        Form("after", bias="qkv"),
        flags={"use_sliding_window": False},
        defaults=_WINDOWS,
        only={"use_mrope": False, "attention_bias": True},
    ),
    "qwen3": _like_llama(
        Form("after", qk_norm="head"),
        flags={"use_sliding_window": False},
        defaults={**_WINDOWS, "head_dim": 128},
        only={},
    ),
    "gemma2": _like_llama(
        Form("in turn", norm="both", gemma=True),
        flags={"tie_word_embeddings": True},
        defaults=_GEMMA2,
        only={"use_bidirectional_attention": (False, None)},
        synonyms={"hidden_act": "hidden_activation", "sliding_window_size": "sliding_window"},
    ),
    "gemma3_text": _like_llama(
        Form("in turn", norm="both", qk_norm="head", gemma=True),
        flags={"tie_word_embeddings": True},
        defaults=_GEMMA3,
        only={"use_bidirectional_attention": (False, None), "attn_logit_softcapping": None},
        synonyms={"hidden_act": "hidden_activation"},
    ),
    "phi3": _like_llama(
        Form("all", fused=True),
        defaults={"sliding_window": None, "rms_norm_eps": 1e-5, "original_max_position_embeddings": None},
        only={"attention_bias": False, "layer_types": None},
    ),
    "olmo2": _like_llama(Form(norm="output", qk_norm="all"), defaults={"rms_norm_eps": 1e-5}, only={"clip_qkv": None}),
    "smollm3": _like_llama(
        Form("unrotated"),
        flags={"tie_word_embeddings": True, "mlp_bias": False, "use_sliding_window": False},
        defaults={"rope_theta": 2e6, "no_rope_layers": None, "no_rope_layer_interval": 4, "sliding_window": None},
        only={},
    ),
}


class Configuration(NamedTuple):
    """Fields with the names of transformers, the names of ignored fields, and the form of the stored weights.

    ``form`` may have ``rotary_pairs``, how coordinates are paired; ``rope_factors`` of the frequencies; and
    ``norm_offset``, which is added to the scales of norms.
    """

    fields: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    form: Mapping[str, Any] = MappingProxyType({})


def unread(kind: str, fields: Mapping[str, Any], known: Iterable[str], ignore: Iterable[str]) -> tuple[str, ...]:
    """The names of unknown fields; raise unless each is in ``ignore``."""
    for name, value in fields.items():
        if name not in ignore:
            hint = f"{unknown(kind, name, known)}; ignore=[{name!r}] if it changes nothing"
            raise expected(name, f"only known {kind}s", value, hint)
    return tuple(fields)


def from_json(raw: Mapping[str, Any], ignore: Iterable[str]) -> Configuration:
    """The configuration in a ``config.json`` of transformers.

    Raises:
        InputError: The family is not known, or a field neither computes nor describes and is not in ``ignore``.
    """
    family = _family(raw, FAMILIES)
    ignored = unread("field", family.unknown(raw), family.known, ignore)
    return Configuration({name: value for name, value in raw.items() if name not in ignored}, ignored=ignored)


OTHER_MODELS = {
    "a mixture of experts": re.compile(
        r"mixtral|.*moe\b.*|moe_.*|(.*[._])?(num|n|routed)_(.*_)?experts|.*expert_count"
    ),
    "a state-space model": re.compile(r".*mamba.*|(.*\.)?ssm.*|state_size|rwkv.*|d_conv|conv_kernel"),
    "a multimodal model": re.compile(r"(vision|audio|image|text|speech)_config|.*vision.*"),
}
"""Kinds of models that no options of :class:`Transformer` make, by the names of their families and fields."""


def require_known(name: str, kind: str, fields: Iterable[str], families: Iterable[str]) -> None:
    """Raise unless the family is known; a family of another kind of model is named by its kind."""
    if kind not in families:
        for model, names in OTHER_MODELS.items():
            if field := next((field for field in (kind, *fields) if names.fullmatch(field)), None):
                raise expected(name, "a dense transformer of text", f"{kind}, {model} (by {field})")
        raise unknown(name, kind, families)


def _family(fields: Mapping[str, Any], families: Mapping[str, Family]) -> Family:
    kind = str(fields.get("model_type"))
    require_known("model_type", kind, fields, families)
    return families[kind]


def family_and_fields(
    raw: Mapping[str, Any],
    tensors: int,
    families: Mapping[str, Family] = FAMILIES,
    *,
    form: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Family, SimpleNamespace]:
    """The family of a configuration, and its fields with the defaults of transformers.

    ``tensors``: number of tensors in the file; a layer needs at least one. ``families``: the known ones, by their
    ``model_type``. ``form``: further attributes, of a :class:`Configuration`.
    """
    family = _family(raw, families)
    unread("field", family.unknown(raw), family.known, ())
    values = {**family.flags, **family.defaults}
    values |= {name: value for name, value in raw.items() if name in values or name in family.sizes}
    for name, neutral in {**NEUTRAL, **family.only}.items():
        allowed = neutral if isinstance(neutral, tuple) else (neutral,)
        if name in raw and raw[name] not in allowed:
            raise unsaid(name, raw[name], " or ".join(map(str, allowed)))
    _require_one_value(family, raw, values)
    for name in family.sizes:
        require_integer(name, values.get(name))
    for name in family.flags:
        require_flag(name, values[name])
    for name in ("num_key_value_heads", "head_dim", "n_inner", "max_window_layers", "sliding_window_pattern"):
        if values.get(name) is not None:
            require_integer(name, values[name], least=0 if name == "max_window_layers" else 1)
    if (layers := values[family.layers]) > tensors:
        raise expected(family.layers, f"a number of layers for {tensors} tensors", layers)
    return family, SimpleNamespace(**values, **form)


ROTARY = {"rotary_emb_base": ("rope_theta",), "rope_theta": ("rope_theta", "full_attention.rope_theta")}
ROTARY |= {"rope_local_base_freq": ("sliding_attention.rope_theta",)}
ROTARY |= dict.fromkeys(("rotary_pct", "partial_rotary_factor"), ("partial_rotary_factor",))
"""Fields that may stand in the dictionaries of the rotary code too, and their names there."""


def _require_one_value(family: Family, stated: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Set fields that may have several names or places; raise if these have different values.

    Programs differ in which of them they take.
    """
    tables = {name: stated[name] for name in ("rope_scaling", "rope_parameters") if isinstance(stated.get(name), dict)}
    _first_of_equals({name: table for name, table in tables.items() if table})
    inner = {
        f"{name}.{field}{'.' if part else ''}{part}": value
        for name, table in tables.items()
        for field, of_field in table.items()
        for part, value in (of_field if isinstance(of_field, dict) else {"": of_field}).items()
    }
    for name in (*family.sizes, *family.defaults):
        names = [f"{place}.{field}" for place in tables for field in ROTARY.get(name, ())]
        places = {place: inner[place] for place in names if place in inner}
        if stated.get(name) is not None or (name in values and not places):
            places[name] = values[name]
        synonyms = [other for other, field in family.synonyms.items() if field == name]
        places |= {other: stated[other] for other in synonyms if stated.get(other) is not None}
        values[name] = _first_of_equals(places)


def _first_of_equals(values: Mapping[str, Any]) -> Any:
    """The value of the first name, or None; raise if another name has another value."""
    first, *repeats = values.values() or [None]
    if any(value != first for value in repeats):
        raise expected(" and ".join(values), "one value", [first, *repeats])
    return first


def from_shapes(heads: int | None, shapes: Mapping[str, tuple[int, ...]], name: str) -> Configuration:
    """The configuration of a state of GPT-2: sizes by the shapes, all else as GPT-2 has it.

    Other families have numbers without a shape: bases of rotations, heads that share keys, epsilons.

    Raises:
        InputError: The number of heads or a tensor is missing.
    """
    if heads is None:
        raise expected("heads", "the number of heads, which no shape tells", heads, "such as 12")
    parts = ("wte", "wpe", "h.0.mlp.c_fc")
    table, places, inner = (shapes.get(f"transformer.{part}.weight", ()) for part in parts)
    if not len(table) == len(places) == len(inner) == 2:
        raise expected(name, "matrices wte.weight, wpe.weight and h.0.mlp.c_fc.weight of GPT-2", sorted(shapes)[:5])
    layers = {name.split(".")[2] for name in shapes if name.startswith("transformer.h.")}
    sizes = {"vocab_size": table[0], "n_embd": table[1], "n_positions": places[0], "n_inner": inner[1]}
    form = {"model_type": "gpt2", "tie_word_embeddings": "lm_head.weight" not in shapes}
    return Configuration({**sizes, **form, "n_head": heads, "n_layer": len(layers)})


GLASSLLM = {"vocab_size": "vocab_size", "d_model": "hidden_size", "n_layers": "num_hidden_layers"} | {
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "rope_base": "rope_theta",
    "eps": "rms_norm_eps",
    "max_len": "max_position_embeddings",
    "init_std": "initializer_range",
}


def glassllm(text: str, hidden: int, ignore: Iterable[str]) -> Configuration:
    """The configuration of a file of glassllm; ``hidden`` is the hidden width, which only the tensors show."""
    raw = parse_json(text, "__config__")
    if not isinstance(raw, dict):
        raise expected("__config__", "a JSON object", type(raw).__name__)
    unlisted = {name: value for name, value in raw.items() if name not in GLASSLLM}
    ignored = unread("field", unlisted, GLASSLLM, ignore)
    fields = {GLASSLLM[name]: value for name, value in raw.items() if name in GLASSLLM}
    form = {"model_type": "llama", "tie_word_embeddings": True, "intermediate_size": hidden}
    return Configuration(fields | form, ignored, {"rotary_pairs": "adjacent"})
