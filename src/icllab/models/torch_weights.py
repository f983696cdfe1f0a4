"""Transformers of PyTorch libraries as a :class:`Transformer` with their weights. PyTorch is never imported.

Every option of the source is read: one that no field here can say is refused by its name, so that a network that was
copied is the same function. Weights are what the source has; nothing is folded.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icllab.core.errors import InputError, expected, kind_of
from icllab.models.networks.attention import Rotary
from icllab.models.networks.embedding import Interleaved, Tokens
from icllab.models.networks.transformer import BlockOptions, Transformer

ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu": "exact_gelu",
    "relu": "relu",
}
"""Names of nonlinearities there and here."""


class BlockWeights(NamedTuple):
    """Arrays of one block: per head [head, width, dim] and [head, dim, width], dense layers [inner, outer]."""

    query: tuple[Array, Array]
    key: tuple[Array, Array]
    value: tuple[Array, Array]
    output: tuple[Array, Array]
    norms: tuple[tuple[Array, ...], ...]
    dense: tuple[tuple[Array, Array], ...]


def from_torch(module: Any) -> Transformer:
    """The transformer that is the same function as a module of PyTorch, with its weights.

    Known are ``GPT2LMHeadModel``, ``GPTNeoXForCausalLM`` (Pythia) and ``GPTNeoForCausalLM`` of transformers,
    ``HookedTransformer`` of TransformerLens, and the ``TransformerModel`` of Garg et al., which answers regression
    prompts. The others answer token prompts. Any other module is a predictor as ``FromTorch``.

    Raises:
        InputError: The module is of another kind, or has an option that no field here says; the first is named.
    """
    name = type(module).__name__
    if name not in _SOURCES:
        hint = "models.FromTorch(module, ...) takes any module as a predictor"
        raise expected("module", "one of " + ", ".join(_SOURCES), kind_of(module), hint)
    return _SOURCES[name](module)


def _gpt2(module: Any) -> Transformer:
    weights = _arrays(module)
    tied = module.config.tie_word_embeddings
    readout = None if tied else (weights["lm_head.weight"].T, None)
    table = weights["transformer.wte.weight"]
    arrangement = Tokens(len(table), tied=tied)
    return _gpt2_backbone(module.config, weights, "transformer.", arrangement, (table, None), readout)


def _garg(module: Any) -> Transformer:
    """Labels are the first coordinate of a token of their own there: the row of that coordinate, twice."""
    weights = _arrays(module)
    reads = weights["_read_in.weight"].T
    embedding = jnp.concatenate([reads, reads[:1]]), weights["_read_in.bias"]
    readout = weights["_read_out.weight"].T, weights["_read_out.bias"]
    return _gpt2_backbone(module._backbone.config, weights, "_backbone.", Interleaved(), embedding, readout)


def _gpt2_backbone(
    config: Any,
    weights: Mapping[str, Array],
    name: str,
    arrangement: Tokens | Interleaved,
    embedding: tuple[Array, Array | None],
    readout: tuple[Array, Array | None] | None,
) -> Transformer:
    _require(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    heads, inner = config.n_head, config.n_inner or 4 * config.n_embd
    options = BlockOptions(
        heads=heads,
        mlp=(inner,),
        norm="pre",
        epsilon=config.layer_norm_epsilon,
        nonlinearity=_activation(config, "activation_function"),
        bias=True,
    )

    def block(i: int) -> BlockWeights:
        at = f"{name}h.{i}."
        width = config.n_embd
        of_qkv, bias = weights[f"{at}attn.c_attn.weight"], weights[f"{at}attn.c_attn.bias"]
        q, k, v = (
            (w.reshape(width, heads, -1), b.reshape(heads, -1))
            for w, b in zip(jnp.split(of_qkv, 3, 1), jnp.split(bias, 3), strict=True)
        )
        output = weights[f"{at}attn.c_proj.weight"].reshape(heads, -1, width), weights[f"{at}attn.c_proj.bias"]
        dense = tuple(
            (weights[f"{at}mlp.{part}.weight"], weights[f"{at}mlp.{part}.bias"]) for part in ("c_fc", "c_proj")
        )
        return BlockWeights(q, k, v, output, tuple(_norm(weights, f"{at}ln_{j}") for j in (1, 2)), dense)

    blocks = [block(i) for i in range(config.n_layer)]
    table, final = weights[f"{name}wpe.weight"], _norm(weights, f"{name}ln_f")
    return _assembled(arrangement, [options] * len(blocks), blocks, embedding, table, final, readout)


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
            nonlinearity=_activation(config, "activation_function"),
            bias=True,
            scale=1.0,
            window=config.window_size if kind == "local" else None,
        )
        for kind in config.attention_layers
    ]

    def block(i: int) -> BlockWeights:
        at = f"transformer.h.{i}."
        q, k, v = (
            (
                weights[f"{at}attn.attention.{part}_proj.weight"].T.reshape(width, heads, -1),
                jnp.zeros((heads, width // heads)),
            )
            for part in "qkv"
        )
        out = f"{at}attn.attention.out_proj"
        output = weights[f"{out}.weight"].T.reshape(heads, -1, width), weights[f"{out}.bias"]
        dense = tuple(
            (weights[f"{at}mlp.{part}.weight"].T, weights[f"{at}mlp.{part}.bias"]) for part in ("c_fc", "c_proj")
        )
        return BlockWeights(q, k, v, output, tuple(_norm(weights, f"{at}ln_{j}") for j in (1, 2)), dense)

    table, tied = weights["transformer.wte.weight"], config.tie_word_embeddings
    return _assembled(
        Tokens(len(table), tied=tied),
        options,
        [block(i) for i in range(config.num_layers)],
        (table, None),
        weights["transformer.wpe.weight"],
        _norm(weights, "transformer.ln_f"),
        None if tied else (weights["lm_head.weight"].T, None),
    )


def _gpt_neox(module: Any) -> Transformer:
    config, weights = module.config, _arrays(module)
    heads, width, count = config.num_attention_heads, config.hidden_size, config.num_hidden_layers
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        raise _unsaid("rope_type", rope["rope_type"], "default")
    share = rope.get("partial_rotary_factor", getattr(config, "rotary_pct", 0.25))
    base = rope.get("rope_theta", getattr(config, "rotary_emb_base", 10_000))
    options = BlockOptions(
        heads=heads,
        mlp=(config.intermediate_size,),
        norm="pre",
        epsilon=config.layer_norm_eps,
        nonlinearity=_activation(config, "hidden_act"),
        bias=True,
        parallel=config.use_parallel_residual,
        rotary=Rotary(float(base), int(width // heads * share)),
    )

    def block(i: int) -> BlockWeights:
        at = f"gpt_neox.layers.{i}."
        qkv = weights[f"{at}attention.query_key_value.weight"].reshape(heads, 3, -1, width)
        bias = weights.get(f"{at}attention.query_key_value.bias", jnp.zeros(3 * width)).reshape(heads, 3, -1)
        q, k, v = ((jnp.moveaxis(qkv[:, j], -1, 0), bias[:, j]) for j in range(3))
        out = f"{at}attention.dense"
        output = weights[f"{out}.weight"].T.reshape(heads, -1, width), weights.get(f"{out}.bias", jnp.zeros(width))
        parts = ("dense_h_to_4h", "dense_4h_to_h")
        dense = tuple((weights[f"{at}mlp.{part}.weight"].T, weights[f"{at}mlp.{part}.bias"]) for part in parts)
        norms = tuple(_norm(weights, f"{at}{part}") for part in ("input_layernorm", "post_attention_layernorm"))
        return BlockWeights(q, k, v, output, norms, dense)

    table, tied = weights["gpt_neox.embed_in.weight"], config.tie_word_embeddings
    return _assembled(
        Tokens(len(table), tied=tied),
        [options] * count,
        [block(i) for i in range(count)],
        (table, None),
        None,
        _norm(weights, "gpt_neox.final_layer_norm"),
        None if tied else (weights["lm_head.weight" if "lm_head.weight" in weights else "embed_out.weight"].T, None),
    )


def _hooked(module: Any) -> Transformer:
    config, weights = module.cfg, _arrays(module)
    _require(
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
            raise _unsaid(name, value, ", ".join(map(str, known)))
    local = [config.use_local_attn and kind == "local" for kind in config.attn_types or ["global"] * config.n_layers]
    rotary = positions == "rotary"
    options = [
        BlockOptions(
            heads=config.n_heads,
            mlp=None if config.attn_only else (config.d_mlp,),
            norm="none" if config.normalization_type is None else "pre",
            norm_kind=kinds[config.normalization_type],
            epsilon=config.eps,
            nonlinearity="linear" if config.attn_only else _activation(config, "act_fn"),
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
        q, k, v = ((jnp.moveaxis(weights[f"{at}attn.W_{part}"], 0, 1), weights[f"{at}attn.b_{part}"]) for part in "QKV")
        output = weights[f"{at}attn.W_O"], weights[f"{at}attn.b_O"]
        dense = (
            ()
            if config.attn_only
            else tuple((weights[f"{at}mlp.W_{part}"], weights[f"{at}mlp.b_{part}"]) for part in ("in", "out"))
        )
        norms = (
            ()
            if config.normalization_type is None
            else tuple(norm(f"{at}ln{j}") for j in ((1,) if config.attn_only else (1, 2)))
        )
        return BlockWeights(q, k, v, output, norms, dense)

    table = weights["embed.W_E"]
    if weights["unembed.W_U"].shape[1] != len(table):
        raise _unsaid("d_vocab_out", weights["unembed.W_U"].shape[1], f"the vocabulary, {len(table)}")
    return _assembled(
        Tokens(len(table)),
        options,
        [block(i) for i in range(config.n_layers)],
        (table, None),
        None if rotary else weights["pos_embed.W_pos"],
        None if config.normalization_type is None else norm("ln_final"),
        (weights["unembed.W_U"], weights["unembed.b_U"]),
    )


_SOURCES: dict[str, Callable[[Any], Transformer]] = {
    "GPT2LMHeadModel": _gpt2,
    "GPTNeoForCausalLM": _gpt_neo,
    "GPTNeoXForCausalLM": _gpt_neox,
    "HookedTransformer": _hooked,
    "TransformerModel": _garg,
}


def _assembled(
    arrangement: Tokens | Interleaved,
    options: list[BlockOptions],
    blocks: list[BlockWeights],
    embedding: tuple[Array, Array | None],
    table: Array | None,
    final_norm: tuple[Array, ...] | None,
    readout: tuple[Array, Array | None] | None,
) -> Transformer:
    """A transformer with these arrays; where ``readout`` is None, the table of the embedding is read with as well."""
    width = embedding[0].shape[1]
    places = None if table is None else len(table)
    # ``length`` counts examples before the query: of interleaved tokens two make one.
    length = None if places is None else (places - 1 if isinstance(arrangement, Tokens) else (places - 1) // 2)

    def build() -> Transformer:
        return Transformer(
            arrangement,
            dim=arrangement.vocabulary if isinstance(arrangement, Tokens) else len(embedding[0]) - 1,
            width=width,
            layers=len(blocks),
            block=options,
            positions="rotary" if table is None else "learned",
            length=length,
            key=jax.random.key(0),
        )

    # Shapes alone: no weight is drawn only to be replaced.
    model = eqx.filter_eval_shape(build)
    arrays: list[Array] = [embedding[0], _or_zeros(embedding[1], width)]
    if table is not None and length is not None:
        arrays.append(table[: arrangement.token_count(length)])
    for weights in blocks:
        arrays += [part[0] for part in (weights.query, weights.key, weights.value, weights.output)]
        arrays += [part[1] for part in (weights.query, weights.key, weights.value, weights.output)]
        arrays += [array for layer in weights.dense for array in layer]
        arrays += [array for norm in weights.norms for array in norm]
    arrays += [*(final_norm or ())]
    outputs = arrangement.outputs or 1
    arrays += [jnp.zeros(outputs)] if readout is None else [readout[0], _or_zeros(readout[1], outputs)]
    leaves, structure = jax.tree.flatten(model)  # in the order of the fields: embedding, blocks, last norm, readout
    for leaf, array in zip(leaves, arrays, strict=True):
        assert leaf.shape == array.shape
    return jax.tree.unflatten(structure, arrays)


def _arrays(module: Any) -> dict[str, Array]:
    """Parameters and buffers by name."""
    return {
        name: jnp.asarray(
            np.asarray(value.detach().cpu().float() if value.dtype.itemsize < 4 else value.detach().cpu())
        )
        for name, value in module.state_dict().items()
    }


def _or_zeros(bias: Array | None, size: int) -> Array:
    return jnp.zeros(size) if bias is None else bias


def _norm(weights: Mapping[str, Array], name: str) -> tuple[Array, ...]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _activation(config: Any, field: str) -> str:
    name = getattr(config, field)
    if name not in ACTIVATIONS:
        raise _unsaid(field, name, ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name]


def _require(config: Any, **values: Any) -> None:
    """Raise for the first option that has another value; one that the source does not know has none."""
    for name, value in values.items():
        if (found := getattr(config, name, value)) != value:
            raise _unsaid(name, found, value)


def _unsaid(name: str, found: Any, known: Any) -> InputError:
    return expected(name, str(known), found, "models.FromTorch(module, ...) takes any module as a predictor")
