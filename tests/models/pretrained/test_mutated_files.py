"""Configurations and headers with random mistakes are opened right or refused in one line, before a weight is read."""

import json
import random

import numpy as np
import pytest

pytest.importorskip("safetensors")

import language_models as files

from icllab.core.errors import InputError
from icllab.models import pretrained
from icllab.models.pretrained.files import Place

IDS = np.array([3, 1, 4, 1, 5, 12, 0, 7, 9, 2, 2, 6])
SIZES = {"vocab_size": 13, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "rope_theta": 100.0, "pad_token_id": 0}
GEMMA = {**SIZES, "sliding_window": 4, "query_pre_attn_scalar": 4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
NEO = {"vocab_size": 13, "max_position_embeddings": 17, "hidden_size": 16, "num_layers": 3, "num_heads": 4}
GPT2 = {"vocab_size": 13, "n_positions": 17, "n_embd": 16, "n_layer": 3, "n_head": 4}
CONFIGS = {
    "llama": {**SIZES, "rope_scaling": LLAMA3, "tie_word_embeddings": False},
    "mistral": {**SIZES, "sliding_window": 5},
    "qwen3": {**SIZES, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {**GEMMA, "sliding_window_pattern": 2, "rope_local_base_freq": 50.0},
    "phi3": {**SIZES, "partial_rotary_factor": 0.5, "sliding_window": 6},
    "olmo2": {**SIZES, "rms_norm_eps": 1e-5},
    "smollm3": {**SIZES, "no_rope_layers": [1, 0, 1]},
    "gpt_neo": {**NEO, "attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 4},
    "gpt2": {**GPT2, "scale_attn_by_inverse_layer_idx": True},
}
FIELDS = """
num_key_value_heads head_dim hidden_act hidden_activation rms_norm_eps rope_theta rope_scaling rope_parameters
layer_types
attention_bias mlp_bias tie_word_embeddings sliding_window use_sliding_window max_window_layers partial_rotary_factor
query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping rope_local_base_freq sliding_window_pattern
no_rope_layers no_rope_layer_interval attention_layers attention_types window_size n_inner activation_function
layer_norm_epsilon is_causal num_experts vision_config quantization_config max_position_embeddings
""".split()  # noqa: SIM905
LOCAL, FULL = "sliding_attention", "full_attention"
VALUES = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    3,
    4,
    2**40,
    0.5,
    1.0,
    4.0,
    8.5,
    -2.0,
    1e-5,
    "4",
    "silu",
    "gelu_pytorch_tanh",
    "",
]
VALUES += [[], [1], [1, 0, 1], [0, 0, 0], [FULL] * 3, [LOCAL, FULL, LOCAL], [LOCAL], ["other"] * 3, ["global"] * 3, {}]
VALUES += [{"rope_type": "linear", "factor": 2.0}, {"type": "yarn", "factor": 2.0}, LLAMA3, {"rope_theta": 50.0}]
VALUES += [
    {"rope_type": "longrope", "factor": 2.0},
    {"factor": 2.0},
    {"rope_type": "linear"},
    {**LLAMA3, "factor": "8"},
]
VALUES += [{LOCAL: {"rope_theta": 50.0}, FULL: {"rope_theta": 70.0}}, {FULL: {"rope_type": "linear", "factor": 2.0}}]
VALUES += [{"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 100.0}, float("nan"), [[["global"], 3]]]


def mutated(kind, choose):
    """A configuration and weights with one to three mistakes."""
    config = {"model_type": kind, **CONFIGS[kind]}
    rng = np.random.default_rng(0)
    weights = {
        name: (0.4 * rng.normal(size=shape)).astype(np.float32) for name, shape in files.tensor_shapes(config).items()
    }
    for _ in range(choose.choice([1, 1, 1, 2, 3])):
        if choose.random() < 0.75:
            name = choose.choice([*CONFIGS[kind], *FIELDS])
            if choose.random() < 0.15:
                config.pop(name, None)
            else:
                config[name] = choose.choice(VALUES)
            continue
        name = choose.choice(sorted(weights))
        mistake = choose.choice(["drop", "rename", "turn", "longer", "integers", "double", "more", "scalar"])
        value = weights.pop(name)
        if mistake == "rename":
            weights[choose.choice([name + "x", name.replace("weight", "bias"), "a." + name, ""]) or "x"] = value
        elif mistake != "drop":
            changes = {
                "turn": value.T,
                "longer": np.concatenate([np.atleast_1d(value)] * 2),
                "integers": value.astype(np.int64),
            }
            changes |= {"double": value.astype(np.float64), "more": value[None], "scalar": value.ravel()[0]}
            weights[name] = np.array(changes[mistake])
    return config, weights


def opened(kind, seed, folder, monkeypatch):
    """The mutated folder's model, or None if it is refused; the refusal is one line and comes before any weight."""
    config, weights = mutated(kind, random.Random(f"{kind} {seed}"))
    folder = files.write_folder(folder / str(seed), config, weights)
    (folder / "model-0.safetensors").rename(folder / "model.safetensors")
    reads, read = [], Place.read
    monkeypatch.setattr(Place, "read", lambda self, *args: (reads.append(args), read(self, *args))[1])
    message = ""
    try:
        model = pretrained.load(folder)
    except InputError as error:
        model, message = None, str(error)
    finally:
        monkeypatch.undo()
    assert "\n" not in message
    assert len(message) < 700
    assert not (message and reads), (seed, message)
    return model, folder


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_family_itself_opens(kind, tmp_path):
    config = {"model_type": kind, **CONFIGS[kind]}
    weights = {name: np.ones(shape, np.float32) for name, shape in files.tensor_shapes(config).items()}
    assert np.isfinite(pretrained.load(files.write_folder(tmp_path / "model", config, weights)).logits(IDS)).all()


@pytest.mark.parametrize("kind", CONFIGS)
def test_mistakes_are_refused_in_one_line(kind, tmp_path, monkeypatch):
    """Eight of the 500 of the slow test."""
    for seed in range(8):
        opened(kind, seed, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_five_hundred_mistakes_are_opened_right_or_refused(kind, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5")
    counts = {"refused": 0, "as transformers": 0, "alone": 0}
    for seed in range(500):
        model, folder = opened(kind, seed, tmp_path, monkeypatch)
        if model is None:
            counts["refused"] += 1
            continue
        logits = files.logits_of_transformers(folder, IDS)
        if logits is None:
            counts["alone"] += 1
            continue
        counts["as transformers"] += 1
        np.testing.assert_allclose(
            model.logits(IDS),
            logits,
            rtol=0,
            atol=2e-4 * np.abs(logits).max(),
            err_msg=(folder / "config.json").read_text(),
        )
    print(json.dumps({kind: counts}))
    assert counts["refused"] > 100
    assert counts["as transformers"] > 20
