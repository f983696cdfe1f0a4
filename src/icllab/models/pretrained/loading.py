"""Loading of language models from folders and files: the same function, with the weights that the file has."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from icllab.core.errors import InputError, expected, require_path
from icllab.models.networks.transformer import Transformer
from icllab.models.pretrained.assembly import Weights
from icllab.models.pretrained.configurations import family_and_fields, from_gguf, glassllm
from icllab.models.pretrained.files import DAMAGED, TensorFile, damaged, npz_file, read_json, safetensors_files
from icllab.models.pretrained.gguf_files import gguf_file

PREFIXES = {"gpt2": "transformer.", "gpt_neox": "gpt_neox.", "llama": "model.", "qwen2": "model."}
BUFFERS = re.compile(r"(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")
"""Causal masks and frequencies, which old checkpoints store beside the weights."""
_NAMES = (
    ("input_layernorm", "attn_norm", "norm1.gamma"),
    ("post_attention_layernorm", "ffn_norm", "norm2.gamma"),
    ("self_attn.q_proj", "attn_q", "attn.W_Q"),
    ("self_attn.k_proj", "attn_k", "attn.W_K"),
    ("self_attn.v_proj", "attn_v", "attn.W_V"),
    ("self_attn.o_proj", "attn_output", "attn.W_O"),
    ("mlp.gate_proj", "ffn_gate", "ffn.W1"),
    ("mlp.up_proj", "ffn_up", "ffn.W3"),
    ("mlp.down_proj", "ffn_down", "ffn.W2"),
)
"""Parts of a block in transformers, in GGUF files and in glassllm."""
_GGUF_PARTS = {gguf: part for part, gguf, _ in _NAMES}
_GLASSLLM_PARTS = {glassllm: part for part, _, glassllm in _NAMES}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ENDS |= {"E": "model.embed_tokens", "norm_f.gamma": "model.norm"}


def load(path: str | os.PathLike[str]) -> Transformer:
    """The language model in a folder or a file, as a predictor of token prompts with the weights that the file has.

    A folder has ``config.json`` and ``*.safetensors`` (GPT-2, GPT-NeoX, Llama, Qwen2; in shards too), or one ``.gguf``
    or ``.npz`` file. A GGUF file has Llama or Qwen2 in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K, dequantised; an
    ``.npz`` file is one of glassllm. Numbers get JAX's default type of floats. Nothing is folded, unpickled or fetched.
    Needs the extra ``[pretrained]``, an ``.npz`` file nothing.

    Raises:
        InputError: A field or tensor is not understood, which is named; a shape is another than the configuration says;
            or a file is damaged. No memory for weights is taken before.
        EnvironmentFault: The extra is not installed.
    """
    place = model_path(path)
    raw, file = _opened(place)
    shapes = Weights(file.shapes, lambda name: jnp.zeros(file.shapes[name]))
    try:
        family, config = family_and_fields(raw, len(file.shapes))
        eqx.filter_eval_shape(lambda: family.build(config, shapes))
    except InputError:
        raise
    except DAMAGED as error:  # a field of another kind than the family's
        raise damaged(place, error) from error
    copies = {"lm_head.weight", "embed_out.weight"} if config.tie_word_embeddings else set()
    for name in sorted(shapes.untaken):
        if name in copies:
            table = next(n for n in file.shapes if n.endswith(("wte.weight", "embed_in.weight", "embed_tokens.weight")))
            if not np.array_equal(file.read(name), file.read(table)):
                raise expected(name, "the table of the embedding, to which it is tied", "another matrix")
        elif not BUFFERS.search(name):
            raise expected(name, "no tensor that is not understood", file.shapes[name])
    return family.build(config, Weights(file.shapes, file.read))


def model_path(path: str | os.PathLike[str]) -> Path:
    """The folder with a configuration, or the one file in it that is a model."""
    require_path("path", path)
    place = Path(path)
    if place.is_dir() and not (place / "config.json").is_file():
        files = sorted(entry for entry in place.iterdir() if entry.suffix in (".gguf", ".npz"))
        if len(files) != 1:
            names = [file.name for file in files]
            raise expected("path", "a folder with config.json, or with one .gguf or .npz file", names)
        return files[0]
    if not place.exists():
        raise expected("path", "a folder or a file that exists", str(path))
    if place.is_file() and place.suffix not in (".gguf", ".npz"):
        raise expected("path", "a folder, a .gguf file or an .npz file", place.name)
    return place


def _opened(path: Path) -> tuple[Mapping[str, Any], TensorFile]:
    """The configuration with the names of transformers, and the tensors likewise."""
    if path.suffix == ".gguf" and path.is_file():
        metadata, tensors = gguf_file(path)
        tensors = _renamed(path, tensors, _gguf_name)
        table = tensors.shapes.get("model.embed_tokens.weight", (0,))
        return from_gguf(metadata, table[0], tied="lm_head.weight" not in tensors.shapes), tensors
    if path.suffix == ".npz" and path.is_file():
        tensors, text = npz_file(path)
        if text is None:
            raise expected(path.name, "an entry __config__ with the configuration", sorted(tensors.shapes)[:5])
        tensors = _renamed(path, tensors, _glassllm_name)
        hidden = tensors.shapes.get("model.layers.0.mlp.gate_proj.weight", (0,))[-1]
        try:
            raw = glassllm(text, hidden)
        except (ValueError, RecursionError) as error:
            raise damaged(path, error) from error
        shapes = {name: _oriented(name, shape) for name, shape in tensors.shapes.items()}
        return raw, TensorFile(shapes, lambda name: _transposed(name, tensors.read(name)))
    raw = read_json(path / "config.json")
    tensors = safetensors_files(_shards(path))
    prefix = PREFIXES.get(str(raw.get("model_type")), "")

    def with_prefix(name: str) -> str:
        return name if name.startswith((prefix, "lm_head.", "embed_out.")) else prefix + name

    return raw, _renamed(path, tensors, with_prefix)


def _shards(folder: Path) -> list[Path]:
    """The files of a folder that have its tensors: those of the index, or the one that there is."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if len(files) != 1:
            names = [file.name for file in files]
            raise expected("path", "one .safetensors file, or model.safetensors.index.json", names)
        return files
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise damaged(index, "no weight_map")
    names = sorted({str(name) for name in places.values()})
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise expected("weight_map", f"files in {folder.name}", name)
    return [folder / name for name in names]


def _renamed(path: Path, file: TensorFile, rename: Any) -> TensorFile:
    names = {rename(name): name for name in file.shapes}
    if len(names) != len(file.shapes):
        raise damaged(path, "two tensors of one name")
    return TensorFile({new: file.shapes[old] for new, old in names.items()}, lambda name: file.read(names[name]))


def _gguf_name(name: str) -> str:
    parts = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if parts is None:
        return name
    layer, part, kind = parts.groups()
    known = _ENDS.get(part) if layer is None else _GGUF_PARTS.get(part)
    if known is None:
        return name
    return f"{known}.{kind}" if layer is None else f"model.layers.{layer}.{known}.{kind}"


def _glassllm_name(name: str) -> str:
    parts = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
    if parts is None:
        return f"{_ENDS[name]}.weight" if name in _ENDS else name
    known = _GLASSLLM_PARTS.get(parts[2])
    return name if known is None else f"model.layers.{parts[1]}.{known}.weight"


def _oriented(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shapes of glassllm's matrices, which are [inner, outer], as [outer, inner]."""
    return shape[::-1] if "_proj." in name else shape


def _transposed(name: str, array: np.ndarray) -> np.ndarray:
    return array.T if "_proj." in name else array
