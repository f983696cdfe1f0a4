"""A model from a file is the function that the file says, and a file that lies is refused in one line."""

import json
import struct
import warnings

import jax
import numpy as np
import pytest

pytest.importorskip("safetensors")
pytest.importorskip("gguf")

import language_models as files
from language_models import GPT2, LLAMA, NEOX, QWEN2, TIED, drawn
from safetensors.numpy import save_file

from icllab.core.errors import InputError, ResultWarning
from icllab.core.prompt import TokenPrompt
from icllab.models import pretrained
from icllab.models.networks.parameters import parameter_count

IDS = np.array([3, 1, 4, 1, 5, 12, 0])


def require_logits(model, config, weights, tolerance=2e-5):
    theirs = files.logits(config, weights, IDS)
    np.testing.assert_allclose(model.logits(IDS), theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


CONFIGS = {
    "gpt2": GPT2,
    "gpt_neox": NEOX,
    "gpt_neox in turn": {**NEOX, "use_parallel_residual": False},
    "llama": {**LLAMA, "rope_scaling": {"rope_type": "default"}},
    "llama tied": TIED,
    "qwen2": QWEN2,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_is_the_function_of_its_formula(name, tmp_path):
    config = CONFIGS[name]
    weights = drawn(config)
    model = pretrained.load(files.write_folder(tmp_path / "model", config, shards=2))
    require_logits(model, config, weights)
    assert parameter_count(model) == sum(value.size for value in weights.values())  # nothing folded, nothing added


def test_old_names_masks_and_copies(tmp_path):
    """GPT-2 on the hub has no prefix and stores its masks; a copy of the table beside a tied one is the table."""
    weights = drawn(GPT2)
    old = {name.removeprefix("transformer."): value for name, value in weights.items()}
    old |= {"h.0.attn.bias": np.ones((1, 1, 9, 9), np.float32), "lm_head.weight": old["wte.weight"]}
    require_logits(pretrained.load(files.write_folder(tmp_path / "old", GPT2, old)), GPT2, weights)
    old["lm_head.weight"] = 2 * old["wte.weight"]
    with pytest.raises(InputError, match=r"lm_head.weight: expected the tied table of the embedding"):
        pretrained.load(files.write_folder(tmp_path / "other", GPT2, old))


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_gguf_has_rows_of_its_own_order(architecture, tmp_path):
    config = TIED if architecture == "llama" else QWEN2
    weights = drawn(config)
    stored = files.in_adjacent_pairs(weights) if architecture == "llama" else weights
    file = files.write_gguf(tmp_path / "model.gguf", stored, architecture=architecture, metadata={})
    require_logits(pretrained.load(file), config, weights)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_numbers_are_those_of_the_package(kind, tmp_path):
    from gguf import GGMLQuantizationType, quants

    of = GGMLQuantizationType[kind]
    weights = {
        name: quants.dequantize(quants.quantize(value, of), of) if value.ndim == 2 else value
        for name, value in drawn(TIED).items()
    }
    file = files.write_gguf(tmp_path / "model.gguf", files.in_adjacent_pairs(drawn(TIED)), kind=kind)
    if kind in ("F16", "BF16", "Q8_0"):  # whose blocks are rows: the order of rows changes nothing
        require_logits(pretrained.load(tmp_path), TIED, weights)
    table = pretrained.load(file).embedding.projection.weight
    np.testing.assert_array_equal(table, weights["model.embed_tokens.weight"])


def test_glassllm(tmp_path):
    weights = drawn(TIED)
    file = files.write_glassllm(tmp_path / "model.npz", files.in_adjacent_pairs(weights))
    require_logits(pretrained.load(file), TIED, weights)
    with pytest.raises(InputError, match="unknown field 'dropout'"):
        pretrained.load(files.write_glassllm(tmp_path / "other.npz", weights, dropout=0.1))


def test_a_loaded_model_is_a_predictor_with_named_activations(tmp_path):
    model = pretrained.load(files.write_folder(tmp_path / "model", LLAMA))
    trace = model.trace(TokenPrompt(jax.numpy.asarray([*IDS, 0], jax.numpy.int32)))
    shape = trace.activations["block1.attention.pattern"].shape
    assert shape == (files.HEADS, len(IDS), len(IDS))
    assert trace.activations["block0.attention.keys"].shape == (len(IDS), files.SHARED, files.DIM)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA, "logit_scale": 2.0}, "logit_scale: expected only known fields, got 2.0"),
        ({**LLAMA, "model_type": "bloom"}, "unknown model_type 'bloom'"),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn"}}, "rope_type: expected default, linear, llama3, got 'yarn'"),
        ({**LLAMA, "rope_scaling": {"rope_type": "default", "factor": 8.0}}, "rope_scaling.factor: expected no such"),
        ({**LLAMA, "hidden_act": "mish"}, "hidden_act: expected gelu_new"),
        ({**LLAMA, "hidden_size": 2**40}, "lm_head.weight: expected a tensor of shape"),
        ({**LLAMA, "num_hidden_layers": 10**12}, "num_hidden_layers: expected a number of layers for 21 tensors"),
        ({**LLAMA, "num_hidden_layers": 3}, "model.layers.2.self_attn.q_proj.weight: expected a tensor of shape"),
        ({**LLAMA, "num_hidden_layers": 1}, "model.layers.1.input_layernorm.weight: expected only known tensors"),
        ({**LLAMA, "vocab_size": 13.0}, "vocab_size: expected an integer of at least 1, got 13.0"),
        ({**LLAMA, "rms_norm_eps": "1e-6"}, "rms_norm_eps: expected a number, got '1e-6'"),
        ({**LLAMA, "use_sliding_window": True}, "use_sliding_window: expected False, got True"),
        ({**QWEN2, "layer_types": ["sliding_attention"]}, "layer_types: expected full_attention in each layer"),
        ({**GPT2, "scale_attn_by_inverse_layer_idx": 1}, "scale_attn_by_inverse_layer_idx: expected True or False"),
        ({**GPT2, "n_head": 5}, "n_head: expected a divisor of the width 32, got 5"),
        ({**NEOX, "rotary_pct": float("nan")}, "rotary_pct: expected a finite number > 0, got nan"),
        ({**QWEN2, "layer_types": 3}, "model: expected a sound file, got one with 'int' object is not iterable"),
        ({**NEOX, "rotary_pairs": "adjacent"}, "rotary_pairs: expected only known fields"),
        ({**NEOX, "rotary_pct": "half"}, "rotary_pct: expected a number, got 'half'"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(config, message, tmp_path):
    known = {"llama": LLAMA, "qwen2": QWEN2, "gpt2": GPT2, "gpt_neox": NEOX}
    folder = files.write_folder(tmp_path / "model", config, drawn(known.get(config["model_type"], LLAMA)))
    with pytest.raises(InputError) as caught:
        pretrained.load(folder)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_gguf_keys_that_are_not_understood(tmp_path):
    for metadata, message in (
        ({"llama.attention.sliding_window_pattern": 2}, "llama.attention.sliding_window_pattern: expected only known"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count: expected all 8 of a head, got 4"),
        ({"llama.vocab_size": 12}, "llama.vocab_size: expected the rows of the embedding, 13, got 12"),
    ):
        with pytest.raises(InputError, match=message):
            pretrained.load(files.write_gguf(tmp_path / "model.gguf", drawn(TIED), metadata=metadata))


def write_shards(folder, weights, places):
    """A folder whose index says which file has which tensor, with all tensors in each of two files."""
    files.write_folder(folder, LLAMA, weights)
    (folder / "model-0.safetensors").rename(folder / "a.safetensors")
    save_file({name: 2 * value for name, value in weights.items()}, folder / "b.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def test_the_index_says_which_file_has_a_tensor(tmp_path):
    weights = drawn(LLAMA)
    places = {name: "b.safetensors" if "norm" in name else "a.safetensors" for name in weights}
    spare = weights | {"model.spare": np.zeros(3, np.float32)}
    chosen = {name: value * (2 if "norm" in name else 1) for name, value in weights.items()}
    require_logits(pretrained.load(write_shards(tmp_path / "both", spare, places)), LLAMA, chosen)
    places["model.norm.bias"] = "b.safetensors"
    with pytest.raises(
        InputError, match=r"^b.safetensors: expected a sound file, got one with no tensor 'model.norm.b"
    ):
        pretrained.load(write_shards(tmp_path / "lacking", weights, places))


def write_one(folder, config=TIED, weights=None):
    """A folder with config.json and model.safetensors."""
    files.write_folder(folder, config, weights)
    (folder / "model-0.safetensors").rename(folder / "model.safetensors")
    return folder


def test_other_files_beside_the_model(tmp_path):
    weights = drawn(TIED)
    folder = write_one(tmp_path / "model")
    for name in ("consolidated", "model-00001-of-00002"):
        save_file({"a": weights["model.norm.weight"]}, folder / f"{name}.safetensors")
    (folder / "model.gguf").write_bytes(b"another program's")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_logits(pretrained.load(folder), TIED, weights)
    save_file({"a": weights["model.norm.weight"]}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.warns(ResultWarning, match=r"adapter_config.json, adapter_model.safetensors beside the model is not"):
        require_logits(pretrained.load(folder), TIED, weights)


def test_code_of_a_model_is_not_run_in_silence(tmp_path):
    code = {"AutoConfig": "configuration_x.C", "AutoModelForCausalLM": "modeling_x.M"}
    with pytest.warns(ResultWarning, match=r"auto_map: the code of modeling_x.M is not run; the model is llama"):
        pretrained.load(write_one(tmp_path / "model", TIED | {"auto_map": code}))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_weights_that_are_not_numbers_are_named(value, tmp_path):
    weights = drawn(LLAMA)
    weights["model.norm.weight"][3] = value
    weights["lm_head.weight"][1, 2] = value
    with pytest.warns(ResultWarning, match=r"NaN or infinite weights in lm_head.weight, model.norm.weight: "):
        pretrained.load(write_one(tmp_path / "model", LLAMA, weights))


def test_buffers_have_any_type(tmp_path):
    """Causal masks of Pythia are booleans."""
    weights = drawn(NEOX) | {"gpt_neox.layers.0.attention.bias": np.ones((1, 1, 4, 4), bool)}
    require_logits(pretrained.load(write_one(tmp_path / "model", NEOX, weights)), NEOX, drawn(NEOX))
    weights["gpt_neox.layers.0.attention.dense.bias"] = np.ones(32, bool)
    with pytest.raises(InputError, match=r"dtype of gpt_neox.layers.0.attention.dense.bias: expected F64, F32, F16"):
        pretrained.load(write_one(tmp_path / "other", NEOX, weights))


STAND_INS = {
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "a web page": b"<!DOCTYPE html>\n<html><body>Not found</body></html>",
}


@pytest.mark.parametrize("content", STAND_INS)
def test_what_lies_in_the_place_of_a_file_is_named(content, tmp_path):
    weights = drawn(TIED)
    folder = write_one(tmp_path / "model")
    gguf, npz = files.write_gguf(tmp_path / "a.gguf", weights), files.write_glassllm(tmp_path / "a.npz", weights)
    for path, file in ((gguf, gguf), (npz, npz), *((folder, folder / name) for name in NAMES)):
        sound = file.read_bytes()
        file.write_bytes(STAND_INS[content])
        with pytest.raises(InputError, match=f"^{file.name}: expected a sound file, got {content}; "):
            pretrained.load(path)
        file.write_bytes(sound)


NAMES = ("config.json", "model.safetensors")


def test_suffixes_in_capitals(tmp_path):
    weights = files.in_adjacent_pairs(drawn(TIED))
    files.write_gguf(tmp_path / "A.GGUF", weights)
    require_logits(pretrained.load(tmp_path), TIED, drawn(TIED))
    require_logits(pretrained.load(tmp_path / "A.GGUF"), TIED, drawn(TIED))


def test_a_root_of_the_hubs_cache(tmp_path):
    root = tmp_path / "models--org--name"
    for name in ("0a", "1b"):
        (root / "snapshots" / name).mkdir(parents=True)
        write_one(root / "snapshots" / name)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("1b")
    for path in (root, tmp_path):
        with pytest.raises(
            InputError, match=rf"path: expected a folder with config.json.*; give .*{root.name}/snapshots/1b$"
        ):
            pretrained.load(path)
    (root / "refs" / "main").unlink()
    with pytest.raises(InputError, match=r"; give .*/0a$"):
        pretrained.load(root / "snapshots")


def test_folders_without_a_model_say_what_to_do(tmp_path):
    folder = files.write_folder(tmp_path / "model", TIED)
    (folder / "model-0.safetensors").rename(folder / "adapter_model.safetensors")
    with pytest.raises(
        InputError, match=r"path: expected one .safetensors file.*; adapter_model.safetensors is a part"
    ):
        pretrained.load(folder)
    (folder / "adapter_model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"path: expected one .safetensors file.*; pytorch_model.bin is not opened"):
        pretrained.load(folder)
    for path in (folder / "pytorch_model.bin", folder / "config.json"):
        with pytest.raises(InputError, match=rf"path: expected a folder, a .gguf.*got '{path.name}'; give its folder"):
            pretrained.load(path)
    (folder / "config.json").rename(folder / "other.json")
    with pytest.raises(
        InputError, match=r"path: expected a folder with config.json.*; pytorch_model.bin is not opened"
    ):
        pretrained.load(folder)
    (folder / "other.json").rename(folder / "config.json")
    file = files.write_gguf(folder / "a.gguf", drawn(TIED))
    with pytest.raises(
        InputError, match=rf"path: expected a folder with .safetensors.*give the path of the file, {file}"
    ):
        pretrained.load(folder)
    files.write_gguf(folder / "b.gguf", drawn(TIED))
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=rf"got \['a.gguf', 'b.gguf'\]; give one of them, {file}"):
        pretrained.load(folder)


def test_sixty_four_bits_are_not_rounded_in_silence(tmp_path):
    weights = {name: value.astype(np.float64) for name, value in drawn(TIED).items()}
    folder = files.write_folder(tmp_path / "model", TIED, weights)
    with pytest.raises(InputError, match=r"expected numbers that float32 holds, got 'float64'; .*jax_enable_x64"):
        pretrained.load(folder)
    with jax.enable_x64(True):
        require_logits(pretrained.load(folder), TIED, weights, 1e-12)


def test_paths(tmp_path):
    with pytest.raises(InputError, match="path: expected a folder or a file that exists"):
        pretrained.load(tmp_path / "none")
    with pytest.raises(InputError, match=r"path: expected a folder with config.json, or with one .gguf or .npz file"):
        pretrained.load(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"pickle")
    with pytest.raises(InputError, match=r"path: expected a folder, a .gguf file or an .npz file, got 'model.bin'"):
        pretrained.load(tmp_path / "model.bin")
    folder = files.write_folder(tmp_path / "model", TIED, shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    with pytest.raises(InputError, match="weight_map: expected files in model"):
        pretrained.load(folder)


LIES = [0, 1, 255, 2**31, 2**40, 2**60, 2**64 - 1]


def mutated(data, rng):
    """Cut, with bytes changed, or with a number of eight bytes that is a lie; most often in the header."""
    data = bytearray(data)
    at = int(rng.integers(min(len(data) - 8, 2000 if rng.random() < 0.8 else len(data))))
    match rng.integers(4):
        case 0:
            return bytes(data[:at])
        case 1:
            data[at : at + 8] = struct.pack("<Q", LIES[rng.integers(len(LIES))])
        case 2:
            data[at] ^= 1 << int(rng.integers(8))
        case _:
            data[at : at + 4] = rng.bytes(4)
    return bytes(data)


def require_an_answer(sources, count):
    """Each mutated file loads or is refused in one line; nothing else happens."""
    rng, refused = np.random.default_rng(0), 0
    for i in range(count):
        path, target = sources[i % len(sources)]
        sound = target.read_bytes()
        target.write_bytes(mutated(sound, rng))
        try:
            pretrained.load(path)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017
            refused += 1
        finally:
            target.write_bytes(sound)
    return refused


def written(folder):
    """Paths to load, each with the file of it that is to be damaged."""
    weights = drawn(TIED)
    safe = files.write_folder(folder / "safe", TIED, weights)
    gguf, npz = folder / "model.gguf", folder / "model.npz"
    files.write_gguf(gguf, weights, kind="Q8_0")
    files.write_glassllm(npz, weights)
    names = ("model-0.safetensors", "config.json")
    return [(gguf, gguf), (npz, npz), *((safe, safe / name) for name in names)]


def test_a_damaged_file_is_one_line(tmp_path):
    assert require_an_answer(written(tmp_path), 20) > 10


@pytest.mark.slow
def test_five_hundred_damaged_files(tmp_path):
    assert require_an_answer(written(tmp_path), 500) > 250
