"""Transformers of PyTorch libraries as a :class:`Transformer` with their weights. PyTorch is never imported.

Every option of the source is read: one that no field here can say is refused by its name, so that a network that was
copied is the same function. Weights are what the source has; nothing is folded.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icllab.core.errors import expected, kind_of
from icllab.models.networks.attention import Rotary
from icllab.models.networks.embedding import Interleaved, Tokens
from icllab.models.networks.transformer import BlockOptions, Transformer
from icllab.models.pretrained.assembly import (
    Affine,
    BlockWeights,
    Weights,
    activation,
    assembled,
    require,
    unsaid,
)
from icllab.models.pretrained.families import gpt2, gpt2_backbone, gpt_neox, llama


def from_torch(module: Any) -> Transformer:
    """The transformer that is the same function as a module of PyTorch, with its weights.

    Known are ``GPT2LMHeadModel``, ``GPTNeoXForCausalLM`` (Pythia), ``GPTNeoForCausalLM``, ``LlamaForCausalLM`` and
    ``Qwen2ForCausalLM`` of transformers, ``HookedTransformer`` of TransformerLens, and the ``TransformerModel`` of Garg
    et al., which answers regression prompts. The others answer token prompts. Any other module is a predictor as
    ``FromTorch``.

    Raises:
        InputError: The module is of another kind, or has an option that no field here says; the first is named.
    """
    name = type(module).__name__
    if name not in _SOURCES:
        hint = "models.FromTorch(module, ...) takes any module as a predictor"
        raise expected("module", "one of " + ", ".join(_SOURCES), kind_of(module), hint)
    return _SOURCES[name](module)


def _garg(module: Any) -> Transformer:
    """Labels are the first coordinate of a token of their own there: the row of that coordinate, twice."""
    arrays = _arrays(module)
    reads = arrays["_read_in.weight"].T
    embedding = Affine(jnp.concatenate([reads, reads[:1]]), arrays["_read_in.bias"])
    readout = Affine(arrays["_read_out.weight"].T, arrays["_read_out.bias"])
    config = module._backbone.config
    return gpt2_backbone(config, _weights(arrays), "_backbone.", Interleaved(), embedding, readout)


def _gpt_neo(module: Any) -> Transformer:
    """No scale of the scores; every second layer sees a window."""
    config, weights = module.config, _arrays(module)
    heads, width = config.num_heads, config.hidden_size
    inner = config.intermediate_size or 4 * width
    options = [
        BlockOptions(
            heads=heads,
            mlp=(inner,),
            norm="pre",
            epsilon=config.layer_norm_epsilon,
            nonlinearity=activation(config, "activation_function"),
            bias=True,
            scale=1.0,
            window=config.window_size if kind == "local" else None,
        )
        for kind in config.attention_layers
    ]

    def block(i: int) -> BlockWeights:
        at = f"transformer.h.{i}."
        q, k, v = (
            Affine(
                weights[f"{at}attn.attention.{part}_proj.weight"].T.reshape(width, heads, -1),
                jnp.zeros((heads, width // heads)),
            )
            for part in "qkv"
        )
        out = f"{at}attn.attention.out_proj"
        output = Affine(weights[f"{out}.weight"].T.reshape(heads, -1, width), weights[f"{out}.bias"])
        dense = tuple(
            Affine(weights[f"{at}mlp.{part}.weight"].T, weights[f"{at}mlp.{part}.bias"]) for part in ("c_fc", "c_proj")
        )
        return BlockWeights(q, k, v, output, tuple(_weights(weights).norm(f"{at}ln_{j}", width) for j in (1, 2)), dense)

    table, tied = weights["transformer.wte.weight"], config.tie_word_embeddings
    return assembled(
        Tokens(len(table), tied=tied),
        options,
        [block(i) for i in range(config.num_layers)],
        Affine(table),
        weights["transformer.wpe.weight"],
        _weights(weights).norm("transformer.ln_f", width),
        None if tied else Affine(weights["lm_head.weight"].T),
    )


def _hooked(module: Any) -> Transformer:
    config, weights = module.cfg, _arrays(module)
    require(
        config,
        attention_dir="causal",
        gated_mlp=False,
        n_key_value_heads=None,
        **{} if str(config.normalization_type).startswith("RMS") else {"final_rms": False},
        use_normalization_before_and_after=False,
        use_qk_norm=False,
        num_experts=None,
    )
    kinds = {"LN": "layer", "LNPre": "layer", "RMS": "rms", "RMSPre": "rms", None: "layer"}
    positions = config.positional_embedding_type
    for name, value, known in (
        ("normalization_type", config.normalization_type, kinds),
        ("positional_embedding_type", positions, ("standard", "rotary")),
    ):
        if value not in known:
            raise unsaid(name, value, ", ".join(map(str, known)))
    local = [config.use_local_attn and kind == "local" for kind in config.attn_types or ["global"] * config.n_layers]
    rotary = positions == "rotary"
    options = [
        BlockOptions(
            heads=config.n_heads,
            mlp=None if config.attn_only else (config.d_mlp,),
            norm="none" if config.normalization_type is None else "pre",
            norm_kind=kinds[config.normalization_type],
            epsilon=config.eps,
            nonlinearity="linear" if config.attn_only else activation(config, "act_fn"),
            head_dim=config.d_head,
            scale=float(1 / config.attn_scale) if config.use_attn_scale else 1.0,
            bias=True,
            parallel=config.parallel_attn_mlp,
            window=config.window_size if windowed else None,
            rotary=Rotary(
                float(config.rotary_base), config.rotary_dim, "adjacent" if config.rotary_adjacent_pairs else "halves"
            )
            if rotary
            else Rotary(),
        )
        for windowed in local
    ]
    unit = (jnp.ones(config.d_model), jnp.zeros(config.d_model))[
        : 1 if str(config.normalization_type).startswith("RMS") else 2
    ]

    def norm(name: str) -> tuple[Array, ...]:
        return tuple(weights.get(f"{name}.{part}", one) for part, one in zip("wb", unit, strict=False))

    def block(i: int) -> BlockWeights:
        at = f"blocks.{i}."
        q, k, v = (
            Affine(jnp.moveaxis(weights[f"{at}attn.W_{part}"], 0, 1), weights[f"{at}attn.b_{part}"]) for part in "QKV"
        )
        output = Affine(weights[f"{at}attn.W_O"], weights[f"{at}attn.b_O"])
        dense = (
            ()
            if config.attn_only
            else tuple(Affine(weights[f"{at}mlp.W_{part}"], weights[f"{at}mlp.b_{part}"]) for part in ("in", "out"))
        )
        norms = (
            ()
            if config.normalization_type is None
            else tuple(norm(f"{at}ln{j}") for j in ((1,) if config.attn_only else (1, 2)))
        )
        return BlockWeights(q, k, v, output, norms, dense)

    table = weights["embed.W_E"]
    if weights["unembed.W_U"].shape[1] != len(table):
        raise unsaid("d_vocab_out", weights["unembed.W_U"].shape[1], f"the vocabulary, {len(table)}")
    return assembled(
        Tokens(len(table)),
        options,
        [block(i) for i in range(config.n_layers)],
        Affine(table),
        None if rotary else weights["pos_embed.W_pos"],
        None if config.normalization_type is None else norm("ln_final"),
        Affine(weights["unembed.W_U"], weights["unembed.b_U"]),
    )


def _of_family(build: Callable[..., Transformer], **options: Any) -> Callable[[Any], Transformer]:
    return lambda module: build(module.config, _weights(_arrays(module)), **options)


_SOURCES: dict[str, Callable[[Any], Transformer]] = {
    "GPT2LMHeadModel": _of_family(gpt2),
    "GPTNeoForCausalLM": _gpt_neo,
    "GPTNeoXForCausalLM": _of_family(gpt_neox),
    "LlamaForCausalLM": _of_family(llama),
    "Qwen2ForCausalLM": _of_family(llama, qwen2=True),
    "HookedTransformer": _hooked,
    "TransformerModel": _garg,
}


def _arrays(module: Any) -> dict[str, Array]:
    """Parameters and buffers by name."""
    return {
        name: jnp.asarray(
            np.asarray(value.detach().cpu().float() if value.dtype.itemsize < 4 else value.detach().cpu())
        )
        for name, value in module.state_dict().items()
    }


def _weights(arrays: dict[str, Array]) -> Weights:
    return Weights({name: array.shape for name, array in arrays.items()}, arrays.__getitem__)
