"""Load language models from folders and files: the same function, with the weights of the file."""

import functools
import gc
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.errors import InputError, ResultWarning, expected, require_known, require_path
from icllab.models.networks.transformer import Transformer
from icllab.models.pretrained.assembly import Weights
from icllab.models.pretrained.configurations import (
    Configuration,
    family_and_fields,
    from_json,
    from_shapes,
    glassllm,
)
from icllab.models.pretrained.files import (
    BUFFERS,
    DAMAGED,
    PART,
    TensorFile,
    damaged,
    npz_file,
    read_json,
    safetensors_files,
)
from icllab.models.pretrained.gguf_configurations import from_gguf
from icllab.models.pretrained.gguf_files import gguf_file
from icllab.models.pretrained.ignored_fields import AssumedTransformer

PREFIXES = {"gpt2": "transformer.", "gpt_neo": "transformer.", "gpt_neox": "gpt_neox."}
SUFFIXES = (".gguf", ".npz")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
_NAMES = (
    ("input_layernorm", "attn_norm", "norm1.gamma"),
    ("post_attention_layernorm", "ffn_norm", "norm2.gamma"),
    ("self_attn.q_proj", "attn_q", "attn.W_Q"),
    ("self_attn.k_proj", "attn_k", "attn.W_K"),
    ("self_attn.v_proj", "attn_v", "attn.W_V"),
    ("self_attn.o_proj", "attn_output", "attn.W_O"),
    ("self_attn.q_norm", "attn_q_norm", ""),
    ("self_attn.k_norm", "attn_k_norm", ""),
    ("mlp.gate_proj", "ffn_gate", "ffn.W1"),
    ("mlp.up_proj", "ffn_up", "ffn.W3"),
    ("mlp.down_proj", "ffn_down", "ffn.W2"),
)
"""Parts of a block in transformers, in GGUF files and in glassllm."""
_GGUF_PARTS = {gguf: part for part, gguf, _ in _NAMES}
_GGUF_GEMMA = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm"}
_GGUF_GEMMA |= {"post_ffw_norm": "post_feedforward_layernorm"}
_GLASSLLM_PARTS = {glassllm: part for part, _, glassllm in _NAMES}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ENDS |= {"E": "model.embed_tokens", "norm_f.gamma": "model.norm"}


def load(
    path: str | os.PathLike[str],
    *,
    ignore: Sequence[str] = (),
    dtype: str | None = None,
    family: str | None = None,
    heads: int | None = None,
) -> Transformer:
    """Load the language model in a folder or file as a predictor of token prompts, with the file's weights.

    A folder has ``config.json`` and ``*.safetensors`` (GPT-2, GPT-Neo, GPT-NeoX, Llama, Mistral, Qwen2, Qwen3, Gemma 2,
    text of Gemma 3, Phi-3, OLMo 2, SmolLM3; in shards too), or one ``.gguf`` or ``.npz`` file. A GGUF file has Llama,
    Mistral, Qwen2, Qwen3, Gemma 2 or Gemma 3 in a type that the package ``gguf`` dequantises, one tensor at a time; an
    ``.npz`` file is one of glassllm. Numbers get JAX's default type of floats. Nothing is folded, unpickled or fetched.
    Needs the extra ``[pretrained]``, an ``.npz`` file nothing.

    Args:
        path: Folder or file.
        ignore: Names of fields that are not known and change nothing. The model and results on it name them. A known
            field with a value that is not understood is refused all the same.
        dtype: ``"bfloat16"`` keeps matrices so, in half the memory; they compute in JAX's default type. None: that
            type, float32 unless 64 bits are enabled; or ``"float32"``.
        family: ``"gpt2"`` for a state without a configuration, in one ``.safetensors`` or ``.npz`` file. Shapes give
            its sizes; the activation (``gelu_new``) and the epsilon (1e-5) are those of GPT-2.
        heads: Number of heads, for such a state alone.

    Raises:
        InputError: A field or tensor is not understood, which is named; a shape is another than the configuration says;
            or a file is damaged. No memory for weights is taken before.
        EnvironmentFault: The extra is not installed.

    Warns:
        ResultWarning: A weight is NaN or infinite, or the folder has an adapter or code, which are not read.
    """
    if isinstance(ignore, str) or not all(isinstance(name, str) for name in ignore):
        raise expected("ignore", "a list of names of fields", ignore)
    if dtype not in (None, "float32", "bfloat16"):
        raise expected("dtype", "'bfloat16', 'float32' or None", dtype)
    place = Path(path) if family is not None else model_path(path)
    try:
        configuration, file = _opened(place, ignore) if family is None else _state(place, family, heads)
        shapes = Weights(file.shapes, lambda name: jnp.zeros(file.shapes[name]))
        kind, config = family_and_fields(configuration.fields, len(file.shapes), form=configuration.form)
        eqx.filter_eval_shape(lambda: kind.build(config, shapes))
    except InputError:
        raise
    except DAMAGED as error:  # a field of another kind than the family's
        raise damaged(place, error) from error
    copies = {"lm_head.weight", "embed_out.weight"} if config.tie_word_embeddings else set()
    for name in sorted(shapes.untaken):
        if name in copies:
            table = next(n for n in file.shapes if n.endswith(("wte.weight", "embed_in.weight", "embed_tokens.weight")))
            if not np.array_equal(file.read(name), file.read(table)):
                raise expected(name, "the tied table of the embedding", "another matrix")
        elif not BUFFERS.search(name):
            raise expected(name, "only known tensors", file.shapes[name])
    not_finite = []

    def read(name: str) -> Any:
        gc.collect(0)  # at which JAX lets go of memory that it shared with arrays of NumPy
        array = file.read(name, dtype if len(file.shapes[name]) > 1 else None)
        if array.size and not np.isfinite([array.min(), array.max()]).all():
            not_finite.append(name)
        # Large arrays are handed over at once; views of small ones need no compilation.
        return jax.device_put(array) if array.nbytes > PART else array

    model = kind.build(config, Weights(file.shapes, read))
    if not_finite:
        _warn(f"{place.name}: NaN or infinite weights in {_listed(not_finite)}: predictions are meaningless")
    return AssumedTransformer(model, configuration.ignored) if configuration.ignored else model


def _warn(message: str) -> None:
    warnings.warn(message, ResultWarning, stacklevel=3)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def model_path(path: str | os.PathLike[str]) -> Path:
    """The folder with a configuration, or its one file that is a model."""
    require_path("path", path)
    place = Path(path)
    if not place.exists():
        raise expected("path", "a folder or a file that exists", str(path))
    if place.is_file():
        if place.suffix.lower() not in SUFFIXES:
            hint = "give its folder" if (place.parent / "config.json").is_file() else _advice([place])
            raise expected("path", "a folder, a .gguf file or an .npz file", place.name, hint)
        return place
    files = sorted(entry for entry in place.iterdir() if entry.suffix.lower() in SUFFIXES)
    if (place / "config.json").is_file():
        if files and not any(place.glob("*.safetensors")):
            hint = f"give the path of the file, {files[0]}"
            raise expected("path", "a folder with .safetensors files beside config.json", files[0].name, hint)
        return place
    if len(files) != 1:
        names = [file.name for file in files]
        inner = next(_models_below(place), None)
        hint = _advice(place.iterdir()) if inner is None else f"give {inner}"
        hint = f"give one of them, {files[0]}" if files else hint
        raise expected("path", "a folder with config.json, or with one .gguf or .npz file", names, hint)
    return files[0]


def _models_below(place: Path) -> Iterator[Path]:
    """Subfolders that hold a model, as in a cache of the Hub with ``snapshots``; the one of ``main`` comes first."""
    for repository in (place, *sorted(place.glob("models--*"))):
        main = repository / "refs" / "main"
        snapshots = sorted(repository.glob("snapshots/*"))
        if main.is_file():
            name = main.read_text(errors="replace").strip()
            snapshots.sort(key=lambda snapshot: snapshot.name != name)
        for folder in filter(Path.is_dir, snapshots):
            if any(entry.name == "config.json" or entry.suffix.lower() in SUFFIXES for entry in folder.iterdir()):
                yield folder
    yield from (file.parent for file in sorted(place.glob("*/config.json")))


def _advice(entries: Iterable[Path]) -> str:
    """Advice for a pickle or an adapter, which are not opened: how to get a model; else an empty text."""
    names = sorted(entry.name for entry in entries)
    if pickles := [name for name in names if name.endswith(PICKLES)]:
        hint = "save_pretrained(folder, safe_serialization=True) of transformers writes safetensors"
        return f"{pickles[0]} is not opened, since reading it runs code; {hint}"
    if adapters := [name for name in names if name.startswith("adapter")]:
        return f"{adapters[0]} is a part of a model; merge_and_unload() of peft makes a whole one"
    return ""


def _opened(path: Path, ignore: Iterable[str]) -> tuple[Configuration, TensorFile]:
    """The configuration and the tensors, with the names of transformers."""
    if path.suffix.lower() == ".gguf" and path.is_file():
        metadata, stored = gguf_file(path)
        kind = str(metadata.get("general.architecture"))
        gemma = kind.startswith("gemma")
        tensors = _renamed(path, stored, functools.partial(_gguf_name, _GGUF_PARTS | (_GGUF_GEMMA if gemma else {})))
        rows = tensors.shapes.get("model.embed_tokens.weight", (0,))[0]
        shapes = dict(tensors.shapes)
        factors = None
        if kind == "llama" and len(shapes.get("rope_freqs.weight", ())) == 1:
            factors = stored.read("rope_freqs.weight") if shapes.pop("rope_freqs.weight") else None
        tied = "lm_head.weight" not in shapes
        return from_gguf(metadata, rows, ignore, tied=tied, factors=factors), TensorFile(shapes, tensors.read)
    if path.suffix.lower() == ".npz" and path.is_file():
        tensors, text = npz_file(path)
        if text is None:
            raise expected(path.name, "an entry __config__ with the configuration", sorted(tensors.shapes)[:5])
        tensors = _renamed(path, tensors, _glassllm_name)
        hidden = tensors.shapes.get("model.layers.0.mlp.gate_proj.weight", (0,))[-1]
        try:
            configuration = glassllm(text, hidden, ignore)
        except InputError:
            raise
        except (ValueError, RecursionError) as error:
            raise damaged(path, error) from error
        shapes = {name: _oriented(name, shape) for name, shape in tensors.shapes.items()}
        return configuration, TensorFile(shapes, lambda name, dtype=None: _transposed(name, tensors.read(name, dtype)))
    raw = read_json(path / "config.json")
    configuration = from_json(raw, ignore)
    tensors = _shards(path)
    _warn_of_neighbours(path, raw)
    return configuration, _prefixed(path, tensors, configuration.fields["model_type"])


def _state(path: Path, family: str, heads: int | None) -> tuple[Configuration, TensorFile]:
    """The configuration that shapes and a family determine, and the tensors of one file."""
    if not path.is_file() or path.suffix not in (".safetensors", ".npz"):
        raise expected("path", "a .safetensors or .npz file that exists, for a state of a family", str(path))
    require_known("family of a state:", family, ["gpt2"], "; others load from a folder with config.json")
    tensors = npz_file(path)[0] if path.suffix == ".npz" else safetensors_files([path])
    tensors = _prefixed(path, tensors, family)
    return from_shapes(heads, tensors.shapes, path.name), tensors


def _prefixed(path: Path, tensors: TensorFile, family: str) -> TensorFile:
    """The tensors with the family's prefix, which some files leave out."""
    begin = (PREFIXES.get(family, "model."), "lm_head.", "embed_out.")
    return _renamed(path, tensors, lambda name: name if name.startswith(begin) else begin[0] + name)


def _warn_of_neighbours(folder: Path, raw: Mapping[str, Any]) -> None:
    """Warn of an adapter next to the model, and of custom code that other programs may run instead of the family's."""
    if adapters := sorted(entry.name for entry in folder.glob("adapter*.*")):
        hint = "merge_and_unload() of peft merges both"
        warnings.warn(f"{folder.name}: {_listed(adapters)} beside the model is not read; {hint}", ResultWarning, 4)
    code = raw.get("auto_map")
    classes = [str(code[name]) for name in code if "Model" in name] if isinstance(code, dict) else []
    if classes:
        family = f"the model is {raw['model_type']} as transformers has it"
        warnings.warn(f"auto_map: the code of {_listed(classes)} is not run; {family}", ResultWarning, 4)


def _shards(folder: Path) -> TensorFile:
    """The tensors of a folder: of the index, of ``model.safetensors``, or of the only safetensors file."""
    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise damaged(index, "no weight_map")
        names = sorted({str(name) for name in places.values()})
        for name in names:
            if Path(name).name != name or not (folder / name).is_file():
                raise expected("weight_map", f"files in {folder.name}", name)
        return safetensors_files(
            [folder / name for name in names], {tensor: folder / str(name) for tensor, name in places.items()}
        )
    files = [file for file in sorted(folder.glob("*.safetensors")) if not file.name.startswith("adapter")]
    files = [whole] if whole in files else files
    if len(files) != 1:
        names = [file.name for file in files]
        hint = "" if files else _advice(folder.iterdir())
        raise expected("path", "one .safetensors file, or model.safetensors.index.json", names, hint)
    return safetensors_files(files)


def _renamed(path: Path, file: TensorFile, rename: Any) -> TensorFile:
    names = {rename(name): name for name in file.shapes}
    if len(names) != len(file.shapes):
        raise damaged(path, "two tensors of one name")
    return TensorFile(
        {new: file.shapes[old] for new, old in names.items()}, lambda name, dtype=None: file.read(names[name], dtype)
    )


def _gguf_name(of_blocks: Mapping[str, str], name: str) -> str:
    parts = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if parts is None:
        return name
    layer, part, kind = parts.groups()
    new_part = _ENDS.get(part) if layer is None else of_blocks.get(part)
    if new_part is None:
        return name
    return f"{new_part}.{kind}" if layer is None else f"model.layers.{layer}.{new_part}.{kind}"


def _glassllm_name(name: str) -> str:
    parts = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
    if parts is None:
        return f"{_ENDS[name]}.weight" if name in _ENDS else name
    new_part = _GLASSLLM_PARTS.get(parts[2])
    return name if new_part is None else f"model.layers.{parts[1]}.{new_part}.weight"


def _oriented(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shapes of glassllm's matrices as [outer, inner]; its files have [inner, outer]."""
    return shape[::-1] if "_proj." in name else shape


def _transposed(name: str, array: np.ndarray) -> np.ndarray:
    return array.T if "_proj." in name else array
