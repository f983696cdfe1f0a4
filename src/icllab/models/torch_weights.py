"""Convert transformers of PyTorch libraries to :class:`Transformer` with their weights, without importing PyTorch.

Every attribute of the source's configuration is read, is known not to change the function, or is refused by its name,
so that a network that was copied is the same function. Weights are those of the source; nothing is folded but biases of
a gated layer of TransformerLens, which have no place of their own here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.errors import expected, kind_of, unknown
from icllab.core.prompt import TokenPrompt
from icllab.models import transformer_lens
from icllab.models.networks.embedding import Interleaved
from icllab.models.networks.transformer import Transformer
from icllab.models.pretrained.assembly import Affine, Weights
from icllab.models.pretrained.configurations import FAMILIES, family_and_fields
from icllab.models.pretrained.families import gpt2_backbone
from icllab.models.pretrained.files import BUFFERS
from icllab.models.pytorch import FromTorch
from icllab.models.torch_blocks import copied


def from_torch(
    module: Any,
    *,
    embedding: str | None = None,
    blocks: str | Sequence[str] | None = None,
    readout: str | None = None,
    causal: bool = True,
    parts: Mapping[str, Any] | None = None,
    task: Any = None,
) -> Transformer:
    """The transformer with the weights of a PyTorch module, which computes the same function.

    Without names of parts, known are the causal language models of transformers of the families that
    :func:`~icllab.models.pretrained.load` opens, ``HookedTransformer`` and ``TransformerBridge`` of TransformerLens,
    and the ``TransformerModel`` of Garg et al., which answers regression prompts. The others answer token prompts. Any
    other module is a predictor as ``FromTorch``.

    An attribute of the configuration that is not known is taken to be off if it is None, False or empty; with any other
    value it is refused. Attributes that begin with an underscore are the library's own.

    A ``TransformerBridge`` is read through its ``original_model``, and the copy must give its logits on eight tokens.

    With names of parts the module may be of any class whose blocks add softmax attention and dense layers to a stream.
    It runs on ten prompts, and each part of the copy is the candidate that reproduces what the module computes: tokens
    (interleaved, joined, or an input beside a label), learned places or none, norms before or after a sum, or none,
    fused or separate projections, nonlinearity, a gate, rotary places of usual bases.

    Args:
        module: The module; or, for parts by name, a :class:`~icllab.models.pytorch.FromTorch` that answers prompts.
        embedding: Name of the layer that reads the tokens, such as ``"wte"``; a table (``nn.Embedding``) of token ids.
            None, as for ``blocks`` and ``readout``: the class of the module is known.
        blocks: Name of the list of blocks or of an ``nn.TransformerEncoder``, such as ``"h"``; or names of the
            blocks; None: see ``embedding``.
        readout: Name of the layer that answers, such as ``"head"``; None: see ``embedding``.
        causal: Whether a token sees itself and earlier tokens alone; else it sees all, and the last position is
            answered.
        parts: Names of layers within a block; None if their own tell them: ``"q"``, ``"k"``, ``"v"`` or ``"qkv"``,
            ``"out"``, and ``"dense"``, a list; and a ``"rotary"`` :class:`~icllab.models.networks.attention.Rotary`.
        task: Task whose prompts the module answers; None for token ids.

    Raises:
        InputError: The answers of the copy differ from those of the module by more than 1e-5 of their largest, or a
            part is not reproduced; the error names it, and what was assumed. The module is of another kind, or has an
            option or a tensor that is not understood; the first is named. Or a bridge computes with other weights than
            its ``original_model`` has.
    """
    if embedding is not None and blocks is not None and readout is not None:
        predictor = module if isinstance(module, FromTorch) else FromTorch(module)
        return copied(predictor, (embedding, blocks, readout), causal, parts or {}, task)
    if any(name is not None for name in (embedding, blocks, readout)):
        raise expected("embedding, blocks, readout", "names of three parts", (embedding, blocks, readout))
    if type(module).__name__ != "TransformerBridge":
        return _converted(module)
    if getattr(module, "_weights_processed", False):
        hint = "copy it before enable_compatibility_mode(), or call it with no_processing=True"
        raise expected("module", "a TransformerBridge with the weights of its original_model", "processed ones", hint)
    model = _converted(module.original_model, module)
    if callable(module):
        _require_same(model, module)
    return model


def _converted(module: Any, bridge: Any = None) -> Transformer:
    """The transformer of a module. A module within a bridge has some tensors under several names."""
    kind = type(module).__name__
    if kind not in _SOURCES:
        hint = "from_torch(module, embedding=, blocks=, readout=) copies others by names of parts; FromTorch takes any"
        raise expected("module", "a " + ", ".join([*_SOURCES, "TransformerBridge"]), kind_of(module), hint)
    source = _SOURCES[kind]
    owner = module if bridge is None or source.config != "cfg" else bridge
    try:
        attributes, state = vars(attrgetter(source.config)(owner)), module.state_dict()
    except (AttributeError, TypeError) as error:
        raise expected("module", f"a {kind} with {source.config} and state_dict", str(error)) from error
    tensors = {name.replace(_WRAPPED, ""): tensor for name, tensor in state.items()}
    if bridge is None and any(_WRAPPED in name for name in state):
        raise expected("module", "the TransformerBridge itself", f"its original_model, a {kind}")
    weights = Weights({name: tuple(np.shape(tensor)) for name, tensor in tensors.items()}, lambda n: _array(tensors[n]))
    family, options = family_and_fields(_computing(attributes, source), len(tensors), _FAMILIES)
    model = (source.build or family.build)(options, weights)
    if bridge is None:
        _require_all_taken(weights, source, getattr(options, "tie_word_embeddings", False))
    return model


def _computing(attributes: Mapping[str, Any], source: "Source") -> dict[str, Any]:
    """Attributes of a configuration that may affect the function, with the name of its family."""
    family = _FAMILIES[source.family]
    attributes = {name: value for name, value in attributes.items() if name not in source.no_effect}
    for name, value in family.unknown(attributes).items():
        if not (value is None or value is False or (isinstance(value, str | list | tuple | dict | set) and not value)):
            hint = f"{unknown('attribute', name, family.known)}; set it to None if it changes nothing"
            raise expected(name, "only known attributes", value, hint)
        del attributes[name]
    return attributes | {"model_type": source.family}


def _array(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return np.asarray(tensor.float() if tensor.dtype.itemsize < 4 else tensor)


def _require_all_taken(weights: Weights, source: "Source", tied: bool) -> None:
    """Raise for a tensor that was not read, unless it changes nothing."""
    for name in sorted(weights.untaken):
        if tied and name in ("lm_head.weight", "embed_out.weight"):
            tables = (n for n in weights.shapes if n.endswith(("wte.weight", "embed_in.weight", "embed_tokens.weight")))
            table = next(tables)
            if not np.array_equal(
                weights.take(name, *weights.shapes[name]), weights.take(table, *weights.shapes[table])
            ):
                raise expected(name, "the tied table of the embedding", "another matrix")
        elif not source.unused.search(name):
            raise expected(name, "only known tensors", weights.shapes[name])


def _require_same(model: Transformer, module: Any) -> None:
    """Raise unless the model and the module have the same logits on a few tokens."""
    ids = np.arange(1 + min(8, module.cfg.n_ctx)) % (model.embedding.arrangement.outputs or 1)
    prompt = TokenPrompt(jnp.asarray(ids, jnp.int32))
    theirs = FromTorch(module)(prompt)
    with jax.default_matmul_precision("highest"):
        error, size = (float(jnp.abs(values).max()) for values in (model(prompt) - theirs, theirs))
    tolerance = 1e-3 if next(module.parameters()).dtype.itemsize >= 4 else 0.05
    if not error <= tolerance * size:
        requirement, actual = (
            "a TransformerBridge with the same logits as the copy",
            f"a difference of {error:.2g} of {size:.2g}",
        )
        hint = "it does not use the weights of its original_model; copy that before it is wrapped"
        raise expected("module", requirement, actual, hint)


def _garg(config: Any, weights: Weights) -> Transformer:
    """Garg et al.'s GPT-2: a label is the first coordinate of its own token, so that coordinate's row occurs twice."""
    width = config.n_embd
    dim = weights.shapes.get("_read_in.weight", (0, 0))[-1]
    inner = weights.affine("_read_in", width, dim)
    embedding = Affine(np.concatenate([inner.weight, inner.weight[:1]]), inner.bias)
    return gpt2_backbone(config, weights, "_backbone.", Interleaved(), embedding, weights.affine("_read_out", 1, width))


_WRAPPED = "._original_component"
_GARG_UNUSED = re.compile(rf"{BUFFERS.pattern}|^_backbone\.wte\.weight$")
_FAMILIES = FAMILIES | {
    "HookedTransformer": transformer_lens.HOOKED_TRANSFORMER,
    "NativeModel": transformer_lens.NATIVE_MODEL,
}


class Source(NamedTuple):
    """A PyTorch class: the family of its configuration, and where the module keeps it."""

    family: str
    config: str = "config"
    build: Callable[..., Transformer] | None = None
    no_effect: Sequence[str] = ()
    unused: re.Pattern[str] = BUFFERS


_SOURCES = {
    "GPT2LMHeadModel": Source("gpt2"),
    "GPTNeoForCausalLM": Source("gpt_neo"),
    "GPTNeoXForCausalLM": Source("gpt_neox"),
    "LlamaForCausalLM": Source("llama"),
    "MistralForCausalLM": Source("mistral"),
    "Qwen2ForCausalLM": Source("qwen2"),
    "Qwen3ForCausalLM": Source("qwen3"),
    "Gemma2ForCausalLM": Source("gemma2"),
    "Gemma3ForCausalLM": Source("gemma3_text"),
    "Phi3ForCausalLM": Source("phi3"),
    "Olmo2ForCausalLM": Source("olmo2"),
    "SmolLM3ForCausalLM": Source("smollm3"),
    "HookedTransformer": Source("HookedTransformer", "cfg", None, transformer_lens.NO_EFFECT, transformer_lens.UNUSED),
    "NativeModel": Source("NativeModel", "cfg", None, transformer_lens.NO_EFFECT),
    "TransformerModel": Source("gpt2", "_backbone.config", _garg, unused=_GARG_UNUSED),
}
