"""What a configuration says is read, is known to compute nothing, or is refused by its name."""

import re

import numpy as np
import pytest

pytest.importorskip("safetensors")
pytest.importorskip("gguf")

import language_models as files
from language_models import EXTRA, GPT2, LLAMA, NEOX, QWEN2, SIZES, TIED, drawn

from icllab.core.errors import InputError
from icllab.models import pretrained
from icllab.models.pretrained.configurations import family_and_fields, from_json
from icllab.models.pretrained.gguf_configurations import from_gguf

IDS = np.array([3, 1, 4, 1, 5, 12, 0])
CONFIGS = {"gpt2": GPT2, "gpt_neox": NEOX, "llama": LLAMA, "qwen2": QWEN2}
WINDOWS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None}
DEFAULTS = {
    "gpt2": {"n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "use_cache": True}
    | {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False}
    | {"tie_word_embeddings": True, "add_cross_attention": False, "resid_pdrop": 0.1, "summary_type": "cls_index"},
    "gpt_neox": {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10_000}
    | {"use_parallel_residual": True, "attention_bias": True, "tie_word_embeddings": False, "rope_scaling": None}
    | {"hidden_dropout": 0.0, "max_position_embeddings": 2048, "is_decoder": False},
    "llama": {"num_key_value_heads": 4, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-6, "mlp_bias": False}
    | {"rope_theta": 10_000.0, "rope_scaling": None, "attention_bias": False, "tie_word_embeddings": False}
    | {"pretraining_tp": 1, "max_position_embeddings": 2048},
    "qwen2": {"num_key_value_heads": 4, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0}
    | {"rope_scaling": None, "tie_word_embeddings": False, **WINDOWS},
}
"""Defaults as transformers documents them."""
ALONE = {"gpt2": {name: GPT2[name] for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")}}


def read(config, ignore=()):
    """The family and the fields that its builder gets."""
    configuration = from_json(config, ignore)
    return vars(family_and_fields(configuration.fields, 100)[1]), configuration.ignored


@pytest.mark.parametrize("kind", CONFIGS)
def test_defaults_are_those_of_transformers(kind, tmp_path):
    """From sizes alone, a model is that of every default written out, and the defaults count."""
    sizes = {"model_type": kind, **ALONE.get(kind, SIZES)}
    weights = drawn(sizes)
    alone = pretrained.load(files.write_folder(tmp_path / "alone", sizes, weights)).logits(IDS)
    full = pretrained.load(files.write_folder(tmp_path / "full", {**sizes, **DEFAULTS[kind]}, weights)).logits(IDS)
    np.testing.assert_array_equal(alone, full)


@pytest.mark.parametrize("kind", CONFIGS)
def test_each_tensor_is_needed(kind, tmp_path):
    weights = drawn(CONFIGS[kind])
    for name in (name for name in weights if ".0." not in name):
        part = {other: value for other, value in weights.items() if other != name}
        with pytest.raises(InputError, match=rf"^{re.escape(name)}: expected a tensor of shape"):
            pretrained.load(files.write_folder(tmp_path, CONFIGS[kind], part))


DESCRIPTIONS = [
    {
        "n_special": 0,
        "predict_special_tokens": True,
        "output_past": True,
        "_num_labels": 1,
        "gradient_checkpointing": 0,
    },
    {"do_sample": True, "max_length": 50, "temperature": 0.3, "repetition_penalty": 1.2, "bad_words_ids": [[1]]},
    {"tokenizer_class": "X", "model_max_length": 8, "add_bos_token": True, "mask_token_id": 3, "bos_token": "<s>"},
    {"unsloth_version": "2026.1", "_attn_implementation_autoset": True, "transformers.js_config": {"dtype": "q4"}},
    {"dtype": "bfloat16", "torch_dtype": "float16", "pretraining_tp": 2, "attention_probs_dropout_prob": 0.1},
    {"id2label": {"0": "a"}, "num_labels": 1, "problem_type": None, "classifier_dropout": 0.1, "summary_type": "mean"},
    {"auto_map": {"AutoConfig": "configuration_x.X"}, "architectures": ["Y"], "custom_pipelines": {}},
    {"is_encoder_decoder": False, "pruned_heads": {}, "quantization_config": None, "is_causal": True},
]


@pytest.mark.parametrize("fields", DESCRIPTIONS, ids=lambda fields: next(iter(fields)))
@pytest.mark.parametrize("kind", CONFIGS)
def test_fields_that_describe_change_nothing(kind, fields):
    assert read(CONFIGS[kind] | fields) == read(CONFIGS[kind])


LINEAR = {"type": "linear", "factor": 1.0}
LLAMA3 = {"rope_type": "llama3", "factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PLACED = {"rope_type": "default", "rope_theta": 100.0}
NEUTRAL = [
    (QWEN2, {"use_mrope": False, "sliding_window": 4, "max_window_layers": 1, "use_sliding_window": False}),
    (QWEN2, {"sliding_window": None, "layer_types": ["full_attention"] * 2, "attention_bias": True}),
    (LLAMA, {"rope_scaling": LINEAR, "rope_interleaved": False, "sliding_window": 4, "partial_rotary_factor": 1.0}),
    (LLAMA, {"rope_scaling": LLAMA3, "layer_types": ["full_attention"] * 2}),
    (LLAMA, {"rope_parameters": PLACED, "use_sliding_window": False}),
    (NEOX, {"rope_scaling": LINEAR, "partial_rotary_factor": 0.5, "rope_theta": 100, "head_dim": 8}),
    (NEOX, {"rope_parameters": {**PLACED, "partial_rotary_factor": 0.5}}),
    (GPT2, {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 9}),
]


@pytest.mark.parametrize(("config", "fields"), NEUTRAL, ids=lambda fields: next(reversed(fields)))
def test_neutral_values_of_fields_that_compute(config, fields, tmp_path):
    weights = drawn(config)
    plain = pretrained.load(files.write_folder(tmp_path / "plain", config, weights)).logits(IDS)
    other = pretrained.load(files.write_folder(tmp_path / "other", config | fields, weights)).logits(IDS)
    np.testing.assert_array_equal(other, plain)


@pytest.mark.parametrize(
    "code", [{**LINEAR, "factor": 4.0}, {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 16}]
)
def test_a_stretched_code_counts_in_either_place(code, tmp_path):
    weights = drawn(LLAMA)
    plain, old, new = (
        pretrained.load(files.write_folder(tmp_path / name, LLAMA | fields, weights)).logits(IDS)
        for name, fields in (("a", {}), ("b", {"rope_scaling": code}), ("c", {"rope_parameters": code}))
    )
    np.testing.assert_array_equal(old, new)
    assert np.abs(old - plain).max() > 1e-3


def test_a_field_may_have_its_other_name_or_place_alone():
    renamed = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 9}
    config = {name: value for name, value in GPT2.items() if name not in ("n_embd", "n_head", "n_layer", "n_positions")}
    assert read(config | renamed) == read(GPT2)
    config = {name: value for name, value in NEOX.items() if name not in ("rotary_pct", "rotary_emb_base")}
    nested = read(config | {"rope_parameters": {**PLACED, "partial_rotary_factor": 0.5}})[0]
    assert (nested["rotary_pct"], nested["rotary_emb_base"]) == (0.5, 100.0)


REFUSED = [
    (
        NEOX,
        {"partial_rotary_factor": 0.25},
        "rotary_pct and partial_rotary_factor: expected one value, got [0.5, 0.25]",
    ),
    (NEOX, {"rope_theta": 500.0}, "rotary_emb_base and rope_theta: expected one value"),
    (NEOX, {"rope_scaling": {"rope_theta": 7}}, "rope_scaling.rope_theta and rotary_emb_base: expected one value"),
    (NEOX, {"head_dim": 4}, "head_dim: expected 8, got 4"),
    (LLAMA, {"rope_parameters": {"rope_theta": 7.0}}, "rope_parameters.rope_theta and rope_theta: expected one value"),
    (
        LLAMA,
        {"rope_scaling": LINEAR, "rope_parameters": PLACED},
        "rope_scaling and rope_parameters: expected one value",
    ),
    (LLAMA, {"rope_scaling": {"factor": 4.0}}, "rope_scaling.factor: expected no such field with the code default"),
    (LLAMA, {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: expected a number, for the code linear"),
    (LLAMA, {"rope_scaling": {**LLAMA3, "factor": 8.0}}, "original_max_position_embeddings: expected a number"),
    (LLAMA, {"rope_parameters": {"full_attention": PLACED}}, "rope_parameters.full_attention: expected no such field"),
    (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1.0 in this family, got 0.5"),
    (LLAMA, {"quantization_config": {"bits": 4}}, "quantization_config: expected None, got {'bits': 4}"),
    (LLAMA, {"is_causal": False}, "is_causal: expected True, got False"),
    (LLAMA, {"pruned_heads": {"0": [1]}}, "pruned_heads: expected {} or None"),
    (QWEN2, {"use_mrope": True}, "use_mrope: expected False, got True"),
    (QWEN2, {"mlp_bias": True}, "mlp_bias: expected False, got True"),
    (GPT2, {"max_position_embeddings": 8}, "n_positions and max_position_embeddings: expected one value, got [9, 8]"),
    (GPT2, {"scale_attn_weights": False}, "scale_attn_weights: expected True, got False"),
]


@pytest.mark.parametrize(
    ("config", "fields", "message"), REFUSED, ids=lambda value: value[:20] if isinstance(value, str) else ""
)
def test_other_values_are_refused_whatever_is_ignored(config, fields, message, tmp_path):
    folder = files.write_folder(tmp_path, config | fields, drawn(config))
    for ignore in ((), list(fields)):
        with pytest.raises(InputError, match=rf"^{re.escape(message)}"):
            pretrained.load(folder, ignore=ignore)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("value", [2.0, False, None, [1]], ids=str)
def test_a_field_that_nobody_knows_is_refused_by_name(kind, value):
    name = "field_" + "".join(np.random.default_rng().choice(list("abcdefgh"), 8))
    with pytest.raises(InputError, match=rf"^{name}: expected only known fields.*ignore=\['{name}'\]"):
        read(CONFIGS[kind] | {name: value})
    fields, ignored = read(CONFIGS[kind] | {name: value}, [name, "another"])
    assert ignored == (name,)
    assert fields == read(CONFIGS[kind])[0]


def test_the_nearest_known_field_is_named():
    with pytest.raises(InputError, match=r"unknown field 'rotary_percent'; did you mean 'rotary_pct'\?"):
        read(NEOX | {"rotary_percent": 0.5})


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_pairing_of_coordinates_is_not_a_field(kind):
    config = CONFIGS[kind] | {"rotary_pairs": "adjacent"}
    with pytest.raises(InputError, match=r"^rotary_pairs: expected only known fields"):
        read(config)
    assert "rotary_pairs" not in read(config, ["rotary_pairs"])[0]


def test_ignore_is_a_list_of_names(tmp_path):
    with pytest.raises(InputError, match="ignore: expected a list of names of fields, got 'logit_scale'"):
        pretrained.load(tmp_path, ignore="logit_scale")


METADATA = {"general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 32}
METADATA |= {"llama.feed_forward_length": 64, "llama.attention.head_count": 4}
METADATA |= {"llama.attention.layer_norm_rms_epsilon": 1e-5}


def read_keys(keys=None, ignore=(), **removed):
    return from_gguf({**METADATA, **(keys or {})}, 13, ignore, tied=True)


def test_keys_of_a_gguf_file_that_compute_nothing():
    plain = read_keys()
    for keys in (
        {"quantize.imatrix.file": "a.dat", "quantize.imatrix.entries_count": 224},
        {"split.count": 1, "split.no": 0, "split.tensors.count": 19},
        {"split.count": 0, "general.type": "model", "general.description": "\udcff"},
        {"llama.attention.causal": True, "llama.expert_count": 0, "llama.pooling_type": 3},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0, "llama.context_length": 8},
        {"llama.rope.scaling.finetuned": False, "llama.rope.dimension_count": 8, "llama.attention.value_length": 8},
        {"".join(np.random.default_rng().choice(list("abcdefgh"), 8)) + ".key": 3},
    ):
        configuration = read_keys(keys)
        assert family_and_fields(configuration.fields, 100) == family_and_fields(plain.fields, 100)
        assert (configuration.form, configuration.ignored) == ({"rotary_pairs": "adjacent"}, ())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"llama.attention.causal": False},
            "llama.attention.causal: expected only known keys, got False",
        ),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type: expected only known keys"),
        ({"llama.expert_count": 8}, "llama.expert_count: expected only known keys"),
        ({"llama.attention.value_length": 4}, "llama.attention.value_length: expected all 8 of a head, got 4"),
        ({"split.count": 3}, "split.count: expected 1, a whole model, got 3; llama-gguf-split --merge"),
        ({"general.type": "adapter"}, "general.type: expected model, a whole model, got 'adapter'"),
    ],
)
def test_other_values_of_keys_are_refused_whatever_is_ignored(keys, message):
    for ignore in ((), list(keys)):
        with pytest.raises(InputError, match=rf"^{re.escape(message)}"):
            read_keys(keys, ignore)


def test_a_key_of_the_architecture_that_nobody_knows_is_refused_by_name():
    letters = "".join(np.random.default_rng().choice(list("abcdefgh"), 8))
    for key in (f"llama.{letters}", f"llama.attention.{letters}", letters):
        with pytest.raises(InputError, match=rf"^{key}: expected only known keys.*ignore=\['{key}'\]"):
            read_keys({key: 3})
        assert read_keys({key: 3}, [key]).ignored == (key,)


@pytest.mark.parametrize("key", [key for key in METADATA if key.startswith("llama.")])
def test_a_gguf_file_without_a_key_it_needs(key):
    with pytest.raises(InputError, match=rf"^{re.escape(key)}: expected a number, got None"):
        from_gguf({name: value for name, value in METADATA.items() if name != key}, 13, (), tied=True)


def test_the_model_and_each_format_name_what_was_ignored(tmp_path):
    weights = drawn(TIED)
    folder = files.write_folder(tmp_path / "folder", TIED | {"logit_scale": 2.0}, weights)
    stored = files.in_adjacent_pairs(weights)
    gguf = files.write_gguf(tmp_path / "a.gguf", stored, metadata={**EXTRA, "llama.logit_scale": 2.0})
    npz = files.write_glassllm(tmp_path / "a.npz", stored, logit_scale=2.0)
    plain = pretrained.load(files.write_folder(tmp_path / "plain", TIED, weights))
    for path, name in ((folder, "logit_scale"), (gguf, "llama.logit_scale"), (npz, "logit_scale")):
        with pytest.raises(InputError, match=rf"unknown (field|key) '{name}'"):
            pretrained.load(path)
        model = pretrained.load(path, ignore=[name])
        assert f"ignored=('{name}',)" in repr(model)
        np.testing.assert_allclose(model.logits(IDS), plain.logits(IDS), rtol=0, atol=2e-5)
    assert "ignored" not in repr(plain)
