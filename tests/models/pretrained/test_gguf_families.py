"""GGUF files of families, written from the weights of tiny models: the same function as from safetensors."""

import random

import jax
import numpy as np
import pytest

pytest.importorskip("safetensors")
gguf = pytest.importorskip("gguf")

import language_models as files  # noqa: E402

from icllab.core.errors import InputError  # noqa: E402
from icllab.core.prompt import TokenPrompt  # noqa: E402
from icllab.models import pretrained  # noqa: E402
from icllab.models.pretrained.files import Place  # noqa: E402

IDS = np.array([3, 1, 4, 1, 5, 12, 0, 7, 9])
WIDTH, HEADS, SHARED, DIM, INNER, LAYERS, VOCABULARY = 24, 3, 1, 8, 40, 3, 23
SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
SIZES |= {"num_attention_heads": HEADS, "num_key_value_heads": SHARED, "head_dim": DIM, "rms_norm_eps": 1e-5}
SIZES |= {"rope_theta": 100.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
GEMMA = {"attention.sliding_window": 4, "attention.key_length": DIM, "attention.value_length": DIM}
CASES = {
    "llama": ("llama", {"model_type": "llama"}, {}),
    "llama 3": ("llama", {"model_type": "llama", "rope_scaling": LLAMA3}, {}),
    "llama, linear": (
        "llama",
        {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "mistral": ("llama", {"model_type": "mistral", "sliding_window": 5}, {"attention.sliding_window": 5}),
    "qwen3": ("qwen3", {"model_type": "qwen3", "tie_word_embeddings": True}, {"attention.key_length": DIM}),
    "gemma2": (
        "gemma2",
        {"model_type": "gemma2", "sliding_window": 4, "query_pre_attn_scalar": DIM}
        | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "gemma3",
        {"model_type": "gemma3_text", "sliding_window": 4, "query_pre_attn_scalar": DIM, "num_hidden_layers": 7}
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {**GEMMA, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
}
NAMES = {**files.GGUF_NAMES, "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
NAMES_OF_GEMMA = {**NAMES, "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"}
NAMES_OF_GEMMA |= {"post_feedforward_layernorm": "post_ffw_norm"}


def drawn(config):
    """Random tensors by the names of transformers."""
    gemma, rng = "gemma" in config["model_type"], np.random.default_rng(0)
    parts = {"self_attn.q_proj": (HEADS * DIM, WIDTH), "self_attn.o_proj": (WIDTH, HEADS * DIM)}
    parts |= {f"self_attn.{name}_proj": (SHARED * DIM, WIDTH) for name in "kv"}
    parts |= {"mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER)}
    parts |= {"input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,)}
    if gemma:
        parts |= {"pre_feedforward_layernorm": (WIDTH,), "post_feedforward_layernorm": (WIDTH,)}
    if config["model_type"] in ("qwen3", "gemma3_text"):
        parts |= {"self_attn.q_norm": (DIM,), "self_attn.k_norm": (DIM,)}
    shapes = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "model.norm.weight": (WIDTH,)}
    if not (gemma or config.get("tie_word_embeddings")):
        shapes["lm_head.weight"] = (VOCABULARY, WIDTH)
    for i in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{i}.{part}.weight": shape for part, shape in parts.items()}
    return {name: (0.4 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def interleaved(weight, heads):
    """Rows of queries and keys in the order of llama.cpp's Llama."""
    return weight.reshape(heads, 2, DIM // 2, WIDTH).swapaxes(1, 2).reshape(weight.shape)


def llama3_factors(config):
    """What llama.cpp divides frequencies by, from the three cases of the code."""
    code, factors = config["rope_scaling"], []
    for c in range(DIM // 2):
        wave = 2 * np.pi * config["rope_theta"] ** (2 * c / DIM)
        length, low, high = (
            code[n] for n in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        share = (length / wave - low) / (high - low)
        between = 1 / ((1 - share) / code["factor"] + share)
        factors.append(1.0 if wave < length / high else code["factor"] if wave > length / low else between)
    return np.array(factors, np.float32)


def write(path, name, config, weights, keys, factors=llama3_factors, mistake=lambda tensors: tensors):
    """The file of a case; ``mistake`` changes its tensors, by their names in the file."""
    architecture, gemma = CASES[name][0], "gemma" in name
    writer = gguf.GGUFWriter(path, architecture)
    counts = {"context_length": 64, "embedding_length": WIDTH, "block_count": config["num_hidden_layers"]}
    counts |= {"feed_forward_length": INNER, "attention.head_count": HEADS, "attention.head_count_kv": SHARED}
    reals = {"attention.layer_norm_rms_epsilon": config["rms_norm_eps"], "rope.freq_base": config["rope_theta"]}
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in {**counts, **reals, **keys}.items():
        add[type(value)](f"{architecture}.{key}", value)
    tensors = {}
    for tensor, value in weights.items():
        parts, kind = tensor.removeprefix("model.").split("."), "weight"
        if "norm" in tensor and gemma:
            value = value + 1
        if architecture == "llama" and parts[-2] in ("q_proj", "k_proj"):
            value = interleaved(value, HEADS if parts[-2] == "q_proj" else SHARED)
        if parts[0] == "layers":
            new = f"blk.{parts[1]}.{(NAMES_OF_GEMMA if gemma else NAMES)['.'.join(parts[2:-1])]}.{kind}"
        else:
            new = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[parts[0]] + ".weight"
        tensors[new] = value
    if name == "llama 3":
        tensors["rope_freqs.weight"] = factors(config)
    for new, value in mistake(tensors).items():
        writer.add_tensor(new, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", CASES)
def test_a_gguf_file_is_the_function_of_the_folder(name, tmp_path):
    _, fields, keys = CASES[name]
    config = {**SIZES, **fields}
    weights = drawn(config)
    folder = pretrained.load(files.write_folder(tmp_path / "model", config, weights))
    file = pretrained.load(write(tmp_path / "model.gguf", name, config, weights, keys))
    theirs = folder.logits(IDS)
    np.testing.assert_allclose(file.logits(IDS), theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    if fields.get("rope_scaling"):  # which counts
        plain = files.write_folder(tmp_path / "plain", {**config, "rope_scaling": None}, weights)
        assert np.abs(pretrained.load(plain).logits(IDS) - theirs).max() > 1e-3 * np.abs(theirs).max()


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("qwen3", {"attention.sliding_window": 4}, "qwen3.attention.sliding_window: expected 0, got 4"),
        ("gemma3", {**GEMMA, "attention.value_length": 4}, "gemma3.attention.value_length: expected all 8 of a head"),
        ("gemma2", {**GEMMA, "attn_logit_softcapping": -2.0}, "attn_logit_softcapping: expected a finite number > 0"),
        ("gemma2", {**GEMMA, "rope.scaling.type": "yarn"}, "gemma2.rope.scaling.type: expected only known keys"),
        ("gemma3", {**GEMMA, "expert_count": 4}, "gemma3.expert_count: expected only known keys, got 4"),
    ],
)
def test_keys_that_are_not_understood(name, keys, message, tmp_path):
    config = {**SIZES, **CASES[name][1]}
    with pytest.raises(InputError) as caught:
        pretrained.load(write(tmp_path / "model.gguf", name, config, drawn(config), keys))
    assert str(caught.value).startswith(message), str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("qwen3moe", "a mixture of experts"), ("mamba", "a state-space model"), ("qwen2vl", None), ("mistral", None)],
)
def test_other_architectures_are_refused_by_their_kind(architecture, kind, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
    writer.add_tensor("token_embd.weight", np.zeros((3, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    message = rf"{architecture}, {kind} " if kind else f"unknown general.architecture '{architecture}'"
    with pytest.raises(InputError, match=message):
        pretrained.load(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    "factors", [np.ones(3), np.ones(5), -np.ones(4), np.ones((2, 2)), np.array([1, np.nan, 1, 1])], ids=str
)
def test_other_factors_of_the_frequencies_are_refused(factors, tmp_path):
    _, fields, keys = CASES["llama 3"]
    config = {**SIZES, **fields}
    arguments = ("llama 3", config, drawn(config), keys, lambda _: factors.astype(np.float32))
    with pytest.raises(InputError, match=r"^(factors|rope_freqs.weight): expected"):
        pretrained.load(write(tmp_path / "model.gguf", *arguments))


VALUES = [0, 1, 2, 3, 5, 8, 24, 40, 2**31, 0.0, 0.5, 3.0, -1.0, float("nan"), "linear", "yarn", "none", True, False]
FIELDS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Keys of llama.cpp, and what they are in transformers."""
WITHOUT_EFFECT = ["attention.value_length", "vocab_size", "rope.scaling.type", "rope.scaling.factor"]
WITHOUT_EFFECT += ["rope.dimension_count", "expert_count", "attention.causal", "a.key"]


def mistaken(tensors, choose):
    """The tensors with one that is missing, has another name, or has other numbers."""
    name = choose.choice(sorted(tensors))
    mistake = choose.choice(["drop", "rename", "turn", "longer", "integers", "double", "more"])
    value, rest = tensors[name], {key: array for key, array in tensors.items() if key != name}
    if mistake == "rename":
        return rest | {choose.choice([name + "x", name.replace("weight", "bias"), "a." + name]): value}
    changes = {"turn": value.T, "longer": np.concatenate([value] * 2), "integers": value.astype(np.int32)}
    changes |= {"double": value.astype(np.float64), "more": value[None]}
    return rest if mistake == "drop" else rest | {name: changes[mistake]}


def mutated(name, path, choose):
    """A file with mistakes in its keys, its tensors or the bytes of its header, and the mistakes in its keys."""
    config = {**SIZES, **CASES[name][1]}
    weights, keys, kind = drawn(config), CASES[name][2], choose.choice(["keys", "keys", "tensors", "header"])
    mistakes = {}
    if kind == "keys":
        for _ in range(choose.choice([1, 1, 2])):
            mistakes[choose.choice([*FIELDS, *WITHOUT_EFFECT])] = choose.choice(VALUES)
    change = (lambda tensors: mistaken(tensors, choose)) if kind == "tensors" else (lambda tensors: tensors)
    write(path, name, config, weights, {**keys, **mistakes}, mistake=change)
    if kind == "header":
        data = bytearray(path.read_bytes())
        size = len(data) - sum(array.nbytes for array in weights.values())
        for _ in range(choose.choice([1, 2, 4])):
            data[choose.randrange(size)] = choose.randrange(256)
        path.write_bytes(data)
    return kind, mistakes


def opened(path, monkeypatch):
    """The model of a file, or None if it is refused, in one line and before a weight is read."""
    reads, read = [], Place.read
    monkeypatch.setattr(Place, "read", lambda self, *args: (reads.append(self.shape), read(self, *args))[1])
    model, message = None, ""
    try:
        model = pretrained.load(path)
    except InputError as error:
        message = str(error)
    finally:
        monkeypatch.undo()
    assert "\n" not in message
    assert len(message) < 700
    # The factors of the frequencies are read as a part of the header.
    assert not message or set(reads) <= {(DIM // 2,)}, message
    return model


def in_transformers(name, mistakes):
    """The fields of the same configuration in transformers."""
    keys = {**CASES[name][2], **mistakes}
    config = {**SIZES, **CASES[name][1]} | {FIELDS[key]: value for key, value in keys.items() if key in FIELDS}
    if "rope.scaling.type" in mistakes or "rope.scaling.factor" in mistakes:
        factor = keys.get("rope.scaling.factor", 0)
        scaled = factor not in (0, 1) and keys.get("rope.scaling.type") != "none"
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor} if scaled else None
    if config["model_type"] in ("llama", "mistral"):
        window = config.pop("sliding_window", 0)
        config |= {"model_type": "mistral", "sliding_window": window} if window else {"model_type": "llama"}
    return config


def answer(model):
    with jax.disable_jit():  # each mistake would be compiled anew
        return np.asarray(model(TokenPrompt.from_ids(IDS)))


@pytest.mark.parametrize("name", CASES)
def test_mistakes_are_refused_in_one_line(name, tmp_path, monkeypatch):
    """Five of the 500 of the slow test."""
    for seed in range(5):
        mutated(name, tmp_path / "model.gguf", random.Random(f"{name} {seed}"))
        opened(tmp_path / "model.gguf", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_five_hundred_mistakes_are_opened_right_or_refused(name, tmp_path, monkeypatch):
    """What opens with other keys is the function of the folder with the fields that these keys are in transformers."""
    file, counts = tmp_path / "model.gguf", {"refused": 0, "opened": 0, "compared": 0}
    for seed in range(500):
        kind, mistakes = mutated(name, file, random.Random(f"{name} {seed}"))
        model = opened(file, monkeypatch)
        counts["refused" if model is None else "opened"] += 1
        if model is None or kind != "keys":
            continue
        config = in_transformers(name, mistakes)
        folder = pretrained.load(files.write_folder(tmp_path / f"{seed}", config, drawn({**SIZES, **CASES[name][1]})))
        counts["compared"] += 1
        ours, theirs = answer(model), answer(folder)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max(), err_msg=str(mistakes))
    print({name: counts})
    assert counts["refused"] > 100
    assert counts["opened"] > 10
