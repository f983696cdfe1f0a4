"""Families of language models as configurations of one :class:`Transformer`, with the names of transformers.

``config`` has the fields of the family's configuration in transformers as attributes, ``weights`` the tensors by their
names there. Nothing is folded.
"""

from typing import Any

from icllab.core.errors import expected
from icllab.models.networks.attention import Rotary
from icllab.models.networks.embedding import Interleaved, Tokens
from icllab.models.networks.transformer import BlockOptions, Transformer
from icllab.models.pretrained.assembly import (
    Affine,
    BlockWeights,
    Weights,
    activation,
    assembled,
    from_heads,
    per_head,
    require,
    unsaid,
)


def gpt2(config: Any, weights: Weights) -> Transformer:
    """GPT-2."""
    tied, rows = config.tie_word_embeddings, (config.vocab_size, config.n_embd)
    table = weights.take("transformer.wte.weight", *rows)
    readout = None if tied else weights.affine("lm_head", *rows, bias=False)
    return gpt2_backbone(config, weights, "transformer.", Tokens(rows[0], tied=tied), Affine(table), readout)


def gpt2_backbone(
    config: Any,
    weights: Weights,
    name: str,
    arrangement: Tokens | Interleaved,
    embedding: Affine,
    readout: Affine | None,
) -> Transformer:
    """GPT-2 between an embedding and a readout; its tensors have names that begin with ``name``."""
    require(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    heads, width, inner = config.n_head, config.n_embd, config.n_inner or 4 * config.n_embd
    dim = _head_dim("n_head", width, heads)
    options = BlockOptions(
        heads=heads,
        mlp=(inner,),
        norm="pre",
        epsilon=_number("layer_norm_epsilon", config.layer_norm_epsilon),
        nonlinearity=activation(config, "activation_function"),
        bias=True,
    )

    def layer(name: str, inner: int, outer: int) -> Affine:
        return Affine(weights.take(f"{name}.weight", inner, outer), weights.take(f"{name}.bias", outer))

    def block(i: int) -> BlockWeights:
        prefix = f"{name}h.{i}."
        qkv = layer(f"{prefix}attn.c_attn", width, 3 * width)
        parts = (slice(j * width, (j + 1) * width) for j in range(3))
        q, k, v = (per_head(Affine(qkv.weight[:, part], qkv.bias[part]), dim) for part in parts)
        output = from_heads(layer(f"{prefix}attn.c_proj", width, width), dim)
        dense = layer(f"{prefix}mlp.c_fc", width, inner), layer(f"{prefix}mlp.c_proj", inner, width)
        return BlockWeights(q, k, v, output, tuple(weights.norm(f"{prefix}ln_{j}", width) for j in (1, 2)), dense)

    places = weights.take(f"{name}wpe.weight", config.n_positions, width)
    final = weights.norm(f"{name}ln_f", width)
    count = config.n_layer
    return assembled(arrangement, [options] * count, map(block, range(count)), embedding, places, final, readout)


def gpt_neox(config: Any, weights: Weights) -> Transformer:
    """GPT-NeoX models, such as Pythia."""
    heads, width, inner = config.num_attention_heads, config.hidden_size, config.intermediate_size
    dim, bias = _head_dim("num_attention_heads", width, heads), getattr(config, "attention_bias", True)
    if getattr(config, "head_dim", None) not in (None, dim):  # transformers takes it for the rotation alone
        raise unsaid("head_dim", config.head_dim, dim)
    rope = _rope(config)
    share = rope.get("partial_rotary_factor", getattr(config, "rotary_pct", 0.25))
    base = rope.get("rope_theta", getattr(config, "rotary_emb_base", 10_000))
    options = BlockOptions(
        heads=heads,
        mlp=(inner,),
        norm="pre",
        epsilon=_number("layer_norm_eps", config.layer_norm_eps),
        nonlinearity=activation(config, "hidden_act"),
        bias=bias,
        parallel=config.use_parallel_residual,
        rotary=Rotary(_number("rope_theta", base), int(dim * _number("rotary_pct", share))),
    )

    def block(i: int) -> BlockWeights:
        prefix = f"gpt_neox.layers.{i}."
        qkv = weights.affine(f"{prefix}attention.query_key_value", 3 * width, width, bias=bias)
        of_heads = qkv.weight.reshape(width, heads, 3, dim)
        biases = None if qkv.bias is None else qkv.bias.reshape(heads, 3, dim)
        q, k, v = (Affine(of_heads[:, :, j], None if biases is None else biases[:, j]) for j in range(3))
        output = from_heads(weights.affine(f"{prefix}attention.dense", width, width, bias=bias), dim)
        dense = (
            weights.affine(f"{prefix}mlp.dense_h_to_4h", inner, width),
            weights.affine(f"{prefix}mlp.dense_4h_to_h", width, inner),
        )
        norms = tuple(
            weights.norm(f"{prefix}{part}", width) for part in ("input_layernorm", "post_attention_layernorm")
        )
        return BlockWeights(q, k, v, output, norms, dense)

    tied, rows, count = config.tie_word_embeddings, (config.vocab_size, width), config.num_hidden_layers
    table = weights.take("gpt_neox.embed_in.weight", *rows)
    final = weights.norm("gpt_neox.final_layer_norm", width)
    name = "lm_head" if "lm_head.weight" in weights else "embed_out"
    readout = None if tied else weights.affine(name, *rows, bias=False)
    blocks = map(block, range(count))
    return assembled(Tokens(rows[0], tied=tied), [options] * count, blocks, Affine(table), None, final, readout)


def llama(config: Any, weights: Weights, *, qwen2: bool = False) -> Transformer:
    """Llama and models of its form, such as SmolLM2; ``qwen2`` adds biases of queries, keys and values.

    ``config.rotary_pairs`` may say how coordinates are paired; those of transformers are in halves.
    """
    require(config, use_sliding_window=False)
    layer_types = getattr(config, "layer_types", None) or []
    if set(layer_types) - {"full_attention"}:
        raise unsaid("layer_types", layer_types, "full_attention in each layer")
    heads, width, inner = config.num_attention_heads, config.hidden_size, config.intermediate_size
    shared = heads if config.num_key_value_heads is None else config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or _head_dim("num_attention_heads", width, heads)
    of_qkv, of_output = (True, False) if qwen2 else (config.attention_bias, config.attention_bias)
    rope = _rope(config)
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise unsaid("partial_rotary_factor", rope["partial_rotary_factor"], "1.0 in this family")
    base = rope.get("rope_theta", getattr(config, "rope_theta", 10_000.0))
    mlp_bias = getattr(config, "mlp_bias", False)
    options = BlockOptions(
        heads=heads,
        mlp=(inner,),
        norm="pre",
        norm_kind="rms",
        epsilon=_number("rms_norm_eps", config.rms_norm_eps),
        nonlinearity=activation(config, "hidden_act"),
        gated=True,
        head_dim=dim,
        kv_heads=shared,
        bias="qkv" if qwen2 else of_qkv,
        mlp_bias=mlp_bias,
        rotary=Rotary(_number("rope_theta", base), pairs=getattr(config, "rotary_pairs", "halves")),
    )

    def block(i: int) -> BlockWeights:
        prefix = f"model.layers.{i}."
        q, k, v = (
            per_head(weights.affine(f"{prefix}self_attn.{part}_proj", count * dim, width, bias=of_qkv), dim)
            for part, count in (("q", heads), ("k", shared), ("v", shared))
        )
        output = from_heads(weights.affine(f"{prefix}self_attn.o_proj", width, heads * dim, bias=of_output), dim)
        dense = tuple(
            weights.affine(f"{prefix}mlp.{part}_proj", *sizes, bias=mlp_bias)
            for part, sizes in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner)))
        )
        parts = ("input_layernorm", "post_attention_layernorm")
        norms = tuple(weights.norm(f"{prefix}{part}", width, shift=False) for part in parts)
        return BlockWeights(q, k, v, output, norms, dense)

    tied, rows, count = config.tie_word_embeddings, (config.vocab_size, width), config.num_hidden_layers
    table = weights.take("model.embed_tokens.weight", *rows)
    final = weights.norm("model.norm", width, shift=False)
    readout = None if tied else weights.affine("lm_head", *rows, bias=False)
    blocks = map(block, range(count))
    return assembled(Tokens(rows[0], tied=tied), [options] * count, blocks, Affine(table), None, final, readout)


def _head_dim(name: str, width: int, heads: int) -> int:
    if width % heads:
        raise expected(name, f"a divisor of the width {width}", heads)
    return width // heads


ROPE_TYPES = ("default", "linear", "llama3")
"""Rotary codes that are the plain one where their factor is 1."""
ROPE_FIELDS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor")
ROPE_FIELDS += ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")


def _rope(config: Any) -> dict[str, Any]:
    """Fields of the rotary code, possibly in a separate dictionary; only the plain code is supported."""
    rope = {}
    for name in ("rope_scaling", "rope_parameters"):
        fields = getattr(config, name, None) or {}
        if not isinstance(fields, dict):
            raise expected(name, "a dictionary, or None", fields)
        for field, value in fields.items():
            if field in ("rope_type", "type") and value not in ROPE_TYPES:
                raise unsaid(field, value, "default")
            if field not in ROPE_FIELDS or (field == "factor" and value != 1):
                raise unsaid(f"{name}.{field}", value, "no such field, or a factor of 1")
            if value in ROPE_TYPES[1:] and "factor" not in fields:
                raise unsaid(field, value, "default, or a factor of 1")
        rope |= fields
    return rope


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise expected(name, "a number", value)
    return float(value)
