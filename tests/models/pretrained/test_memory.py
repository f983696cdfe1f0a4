"""Weights in bfloat16, and the memory that opening a model takes."""

import json
import subprocess
import sys

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("safetensors")
pytest.importorskip("gguf")

import language_models as files
from language_models import GPT2, QWEN2, TIED, drawn

from icllab.core.errors import InputError
from icllab.models import ablated, edited, pretrained

IDS = np.array([3, 1, 4, 1, 5, 12, 0])


@pytest.mark.parametrize("config", [GPT2, TIED, QWEN2], ids=lambda config: config["model_type"])
def test_matrices_are_kept_in_bfloat16_and_compute_in_float32(config, tmp_path):
    """The logits are those of the rounded matrices in float32, and all that runs on a model runs on this one."""
    weights = drawn(config)
    rounded = {
        name: value.astype(jnp.bfloat16).astype(np.float32) if value.ndim > 1 else value
        for name, value in weights.items()
    }
    folder = files.write_folder(tmp_path / "model", config, weights)
    kept = pretrained.load(folder, dtype="bfloat16")
    wide = pretrained.load(files.write_folder(tmp_path / "rounded", config, rounded))
    assert kept.blocks[0].attention.query.dtype == kept.embedding.projection.weight.dtype == jnp.bfloat16
    assert kept.blocks[0].norms[0].scale.dtype == jnp.float32
    assert kept.logits(IDS).dtype == jnp.float32
    np.testing.assert_array_equal(kept.logits(IDS), wide.logits(IDS))
    plain = pretrained.load(folder)
    np.testing.assert_array_equal(plain.logits(IDS), pretrained.load(folder, dtype="float32").logits(IDS))
    assert np.abs(plain.logits(IDS) - kept.logits(IDS)).max() > 1e-3
    for change in (lambda m: ablated(m, heads=[(0, 1)]), lambda m: edited(m, lambda name, value: value * 2)):
        ours, theirs = (eqx.filter_jit(change(model))(files.prompt(IDS)) for model in (kept, wide))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_other_types_are_refused(tmp_path):
    with pytest.raises(InputError, match="dtype: expected 'bfloat16', 'float32' or None, got 'int8'"):
        pretrained.load(files.write_folder(tmp_path, TIED), dtype="int8")


MEASURE = """
import sys, jax, numpy as np
from icllab.models import pretrained

def kilobytes(name):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])

pretrained.load(sys.argv[1], dtype=sys.argv[3] or None)  # a small model of the same kind: what is compiled and imported
open("/proc/self/clear_refs", "w").write("5")
before = kilobytes("VmRSS")
model = pretrained.load(sys.argv[2], dtype=sys.argv[3] or None)
kept = sum(leaf.nbytes for leaf in jax.tree.leaves(model) if hasattr(leaf, "nbytes"))
print((kilobytes("VmHWM") - before) * 1024 / kept, kept)
"""


def large(monkeypatch, **sizes):
    """Sizes of a model of 220 MB, most of which is its table."""
    for name, value in {"VOCABULARY": 80_000, "WIDTH": 512, "INNER": 1024, "LAYERS": 6, "DIM": 128, **sizes}.items():
        monkeypatch.setattr(files, name, value)
    values = {"vocab_size": files.VOCABULARY, "hidden_size": files.WIDTH, "intermediate_size": files.INNER}
    return {**TIED, **values, "num_hidden_layers": files.LAYERS}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
@pytest.mark.parametrize("kind", ["safetensors", "safetensors, two tables", "Q8_0"])
@pytest.mark.parametrize("dtype", ["", "bfloat16"])
def test_opening_takes_little_more_than_the_weights(kind, dtype, tmp_path, monkeypatch):
    tied = kind != "safetensors, two tables"
    paths = []
    for name in ("small", "large"):
        config = {**(TIED if name == "small" else large(monkeypatch)), "tie_word_embeddings": tied}
        weights = drawn(config)
        if kind == "Q8_0":
            paths.append(files.write_gguf(tmp_path / f"{name}.gguf", weights, kind=kind, metadata={}))
        else:
            paths.append(files.write_folder(tmp_path / name, config, weights))
        del weights
    command = [sys.executable, "-c", MEASURE, *map(str, paths), dtype]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    ratio, kept = map(float, result.stdout.split())
    assert kept > (1e8 if dtype else 2e8)
    assert ratio < 1.3, json.dumps([kind, dtype, ratio])
