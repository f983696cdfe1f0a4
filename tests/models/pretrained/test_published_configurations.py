"""Configurations that others published, made small: each is opened or refused as the docs say."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors")

import language_models as files

from icllab.core.errors import InputError
from icllab.models import pretrained

HERE = Path(__file__).parent
PUBLISHED = json.loads((HERE / "published_configurations.json").read_text())
IDS = np.array([3, 1, 4, 1, 5, 12, 0, 7, 9, 2, 2, 6])


def tiny(config):
    """The configuration with small sizes; groups of heads, caps, windows and kinds of layers stay."""
    small = {"vocab_size": 13, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "head_dim": 8}
    small |= {"n_embd": 16, "n_head": 4, "n_positions": 17, "n_inner": None, "num_heads": 4}
    layers = len(set(config.get("layer_types", ()))) * 3 or 4
    small |= {"num_hidden_layers": layers, "n_layer": layers, "pad_token_id": 0}
    if config["model_type"] == "gpt_neo":
        small["max_position_embeddings"] = 17
    if "num_key_value_heads" in config:
        small["num_key_value_heads"] = 4 if config["num_key_value_heads"] == config["num_attention_heads"] else 2
    for name in ("layer_types", "no_rope_layers"):
        if name in config:
            small[name] = config[name][-layers:]
            small["num_hidden_layers"] = len(small[name])
    return {**config, **{name: value for name, value in small.items() if config.get(name) is not None}}


def folder_of(entry, path):
    config = tiny(entry["config"])
    rng = np.random.default_rng(0)
    weights = {"a": np.zeros(1, np.float32)}
    if config["model_type"] in files.CLASSES:
        weights = {
            name: (0.4 * rng.normal(size=shape)).astype(np.float32)
            for name, shape in files.tensor_shapes(config).items()
        }
    folder = files.write_folder(path, config, weights)
    (folder / "model-0.safetensors").rename(folder / "model.safetensors")
    return folder


@pytest.mark.filterwarnings("ignore:auto_map")
@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry["model"])
def test_the_outcome_is_the_one_of_the_table(entry, tmp_path):
    folder = folder_of(entry, tmp_path / "model")
    if "refused" in entry:
        with pytest.raises(InputError) as caught:
            pretrained.load(folder)
        assert str(caught.value).startswith(entry["refused"]), str(caught.value)
        assert "\n" not in str(caught.value)
    else:
        pretrained.load(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:auto_map")
@pytest.mark.parametrize("entry", [e for e in PUBLISHED if "refused" not in e], ids=lambda entry: entry["model"])
def test_a_published_configuration_is_opened_right(entry, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5")
    folder = folder_of(entry, tmp_path / "model")
    theirs = files.logits_of_transformers(folder, IDS)
    assert theirs is not None
    ours = pretrained.load(folder).logits(IDS)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", files.CLASSES)
def test_the_default_configuration_of_each_class(kind, tmp_path):
    """The configuration of the class in transformers as it is, with small sizes, written and read by transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5")
    name = files.CLASSES[kind] + ("Model" if kind == "gpt2" else "ForCausalLM")
    config = getattr(transformers, name).config_class
    small = tiny({**config().to_dict(), "model_type": kind})
    changed = {key: value for key, value in small.items() if config().to_dict().get(key) != value}
    if kind == "gpt_neo":
        changed |= {"num_layers": 2, "attention_types": [[["global", "local"], 1]]}
    torch.manual_seed(0)
    getattr(transformers, name)(config(**changed)).save_pretrained(tmp_path)
    theirs = files.logits_of_transformers(tmp_path, IDS)
    ours = pretrained.load(tmp_path).logits(IDS)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * np.abs(theirs).max())


def test_the_table_of_the_docs_has_each_configuration():
    text = (HERE.parents[2] / "docs" / "families.md").read_text()
    for entry in PUBLISHED:
        (line,) = [line for line in text.split("\n") if line.startswith(f"| [{entry['model']}]({entry['source']}) |")]
        assert ("refused" in entry) == ("refused" in line), line
