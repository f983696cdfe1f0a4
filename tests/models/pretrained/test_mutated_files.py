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
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen3": "Qwen3", "gemma2": "Gemma2", "gemma3_text": "Gemma3"}
CLASSES |= {"phi3": "Phi3", "olmo2": "Olmo2", "smollm3": "SmolLM3", "gpt_neo": "GPTNeo", "gpt2": "GPT2LMHead"}
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


def shapes(kind, config):
    """Names and shapes of tensors as transformers has them."""
    if kind == "gpt2":
        width, inner = config["n_embd"], 4 * config["n_embd"]
        parts = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width), "mlp.c_fc": (width, inner)}
        parts |= {"mlp.c_proj": (inner, width), "ln_1": (width,), "ln_2": (width,)}
        names = {f"transformer.h.{i}.{p}.weight": shape for i in range(3) for p, shape in parts.items()}
        names |= {f"transformer.h.{i}.{p}.bias": shape[-1:] for i in range(3) for p, shape in parts.items()}
        names |= {"transformer.wte.weight": (13, width), "transformer.wpe.weight": (17, width)}
        return names | {f"transformer.ln_f.{part}": (width,) for part in ("weight", "bias")}
    width = config["hidden_size"]
    if kind == "gpt_neo":
        inner, linear = 4 * width, (width, width)
        parts = {f"attn.attention.{p}_proj.weight": linear for p in ("q", "k", "v", "out")}
        parts |= {"mlp.c_fc.weight": (inner, width), "mlp.c_proj.weight": (width, inner), "mlp.c_fc.bias": (inner,)}
        parts |= {f"{p}.{end}": (width,) for p in ("ln_1", "ln_2") for end in ("weight", "bias")}
        parts |= {"mlp.c_proj.bias": (width,), "attn.attention.out_proj.bias": (width,)}
        names = {f"transformer.h.{i}.{part}": shape for i in range(3) for part, shape in parts.items()}
        names |= {"transformer.wte.weight": (13, width), "transformer.wpe.weight": (17, width)}
        return names | {f"transformer.ln_f.{part}": (width,) for part in ("weight", "bias")}
    inner, dim, heads, shared = (
        config[n] for n in ("intermediate_size", "head_dim", "num_attention_heads", "num_key_value_heads")
    )
    parts = {"self_attn.o_proj": (width, heads * dim), "mlp.down_proj": (width, inner)}
    if kind == "phi3":
        parts |= {"self_attn.qkv_proj": ((heads + 2 * shared) * dim, width), "mlp.gate_up_proj": (2 * inner, width)}
    else:
        parts |= {
            "self_attn.q_proj": (heads * dim, width),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
        }
        parts |= {f"self_attn.{p}_proj": (shared * dim, width) for p in "kv"}
    gemma = kind.startswith("gemma")
    norms = ["post_attention_layernorm"] + (["input_layernorm"] if kind != "olmo2" else [])
    norms += ["post_feedforward_layernorm"] if gemma or kind == "olmo2" else []
    norms += ["pre_feedforward_layernorm"] if gemma else []
    parts |= dict.fromkeys(norms, (width,))
    if kind in ("qwen3", "gemma3_text"):
        parts |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
    if kind == "olmo2":
        parts |= {"self_attn.q_norm": (heads * dim,), "self_attn.k_norm": (shared * dim,)}
    names = {f"model.layers.{i}.{part}.weight": shape for i in range(3) for part, shape in parts.items()}
    names |= {"model.embed_tokens.weight": (13, width), "model.norm.weight": (width,)}
    return names if gemma or kind == "smollm3" else names | {"lm_head.weight": (13, width)}


def mutated(kind, choose):
    """A configuration and weights with one to three mistakes, and whether the header has one of them."""
    config = {"model_type": kind, **CONFIGS[kind]}
    rng = np.random.default_rng(0)
    weights = {name: (0.4 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes(kind, config).items()}
    header = False
    for _ in range(choose.choice([1, 1, 1, 2, 3])):
        if choose.random() < 0.75:
            name = choose.choice([*CONFIGS[kind], *FIELDS])
            if choose.random() < 0.15:
                config.pop(name, None)
            else:
                config[name] = choose.choice(VALUES)
            continue
        header, name = True, choose.choice(sorted(weights))
        mistake = choose.choice(["drop", "rename", "turn", "longer", "integers", "double", "more", "scalar"])
        value = weights.pop(name)
        if mistake == "rename":
            weights[choose.choice([name + "x", name.replace("weight", "bias"), "a." + name, ""]) or "x"] = value
        elif mistake != "drop":
            changes = {"turn": value.T, "longer": np.concatenate([value, value]), "integers": value.astype(np.int64)}
            changes |= {"double": value.astype(np.float64), "more": value[None], "scalar": value.ravel()[0]}
            weights[name] = np.array(changes[mistake])
    return config, weights, header


def opened(kind, seed, folder, monkeypatch):
    """The mutated folder's model, or None if it is refused; the refusal is one line and comes before any weight."""
    config, weights, header = mutated(kind, random.Random(f"{kind} {seed}"))
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
    return model, folder, header


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_family_itself_opens(kind, tmp_path):
    config = {"model_type": kind, **CONFIGS[kind]}
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes(kind, config).items()}
    assert np.isfinite(pretrained.load(files.write_folder(tmp_path / "model", config, weights)).logits(IDS)).all()


@pytest.mark.parametrize("kind", CONFIGS)
def test_mistakes_are_refused_in_one_line(kind, tmp_path, monkeypatch):
    """Eight of the 500 of the slow test."""
    for seed in range(8):
        opened(kind, seed, tmp_path, monkeypatch)


def theirs(kind, folder):
    """Logits of transformers; None if it does not open the folder, lacks a tensor, or finds one of another shape."""
    import torch
    import transformers

    name = CLASSES[kind] + ("Model" if kind == "gpt2" else "ForCausalLM")
    try:
        model, report = getattr(transformers, name).from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
        if report["missing_keys"] or report["mismatched_keys"] or report["unexpected_keys"]:
            return None
        with torch.no_grad():
            return model.eval()(torch.tensor(IDS)[None]).logits[0].numpy()
    except Exception:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_five_hundred_mistakes_are_opened_right_or_refused(kind, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5")
    counts = {"refused": 0, "as transformers": 0, "alone": 0}
    for seed in range(500):
        model, folder, _ = opened(kind, seed, tmp_path, monkeypatch)
        if model is None:
            counts["refused"] += 1
            continue
        logits = theirs(kind, folder)
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
