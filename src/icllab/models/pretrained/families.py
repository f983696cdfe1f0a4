"""Families of language models as configurations of one :class:`Transformer`, with the names of transformers.

``config`` has the fields of the family's configuration in transformers as attributes, ``weights`` the tensors by their
names there. Nothing is folded.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from icllab.core.domains import POSITIVE
from icllab.core.errors import expected, require_integer
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
    readout = None if tied else weights.affine("lm_head", *rows, bias=False)
    table = weights.take("transformer.wte.weight", *rows)
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
    require(config, scale_attn_weights=True, add_cross_attention=False)
    heads, width, inner = config.n_head, config.n_embd, config.n_inner or 4 * config.n_embd
    dim, count = _head_dim("n_head", width, heads), config.n_layer
    by_layer = getattr(config, "scale_attn_by_inverse_layer_idx", False)
    options = [
        BlockOptions(
            heads=heads,
            mlp=(inner,),
            norm="pre",
            epsilon=_number("layer_norm_epsilon", config.layer_norm_epsilon),
            nonlinearity=activation(config, "activation_function"),
            bias=True,
            scale=dim**-0.5 / (i + 1) if by_layer else None,
        )
        for i in range(count)
    ]

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
    return assembled(arrangement, options, map(block, range(count)), embedding, places, final, readout)


def gpt_neo(config: Any, weights: Weights) -> Transformer:
    """GPT-Neo, without a scale of the scores and with a window in every second layer."""
    heads, width, count = config.num_heads, config.hidden_size, config.num_layers
    dim, inner = _head_dim("num_heads", width, heads), config.intermediate_size or 4 * width
    options = [
        BlockOptions(
            heads=heads,
            mlp=(inner,),
            norm="pre",
            epsilon=_number("layer_norm_epsilon", config.layer_norm_epsilon),
            nonlinearity=activation(config, "activation_function"),
            bias=True,
            scale=1.0,
            window=window,
        )
        for window in windows("attention_layers", _kinds_of_layers(config), config.window_size, count)
    ]

    def block(i: int) -> BlockWeights:
        prefix = f"transformer.h.{i}."
        names = (f"{prefix}attn.attention.{part}_proj" for part in "qkv")
        projections = (weights.affine(name, width, width, bias=False).weight for name in names)
        q, k, v = (
            Affine(weight.reshape(width, heads, dim), np.zeros((heads, dim), weight.dtype)) for weight in projections
        )
        output = from_heads(weights.affine(f"{prefix}attn.attention.out_proj", width, width), dim)
        dense = weights.affine(f"{prefix}mlp.c_fc", inner, width), weights.affine(f"{prefix}mlp.c_proj", width, inner)
        return BlockWeights(q, k, v, output, tuple(weights.norm(f"{prefix}ln_{j}", width) for j in (1, 2)), dense)

    tied, rows = config.tie_word_embeddings, (config.vocab_size, width)
    readout = None if tied else weights.affine("lm_head", *rows, bias=False)
    table = weights.take("transformer.wte.weight", *rows)
    places = weights.take("transformer.wpe.weight", config.max_position_embeddings, width)
    final = weights.norm("transformer.ln_f", width)
    arrangement = Tokens(rows[0], tied=tied)
    return assembled(arrangement, options, map(block, range(count)), Affine(table), places, final, readout)


def _kinds_of_layers(config: Any) -> list[Any]:
    """GPT-Neo's kinds of layers, which stand in a list, or as groups with a number of repetitions, or in both."""
    listed, groups, kinds = config.attention_layers, getattr(config, "attention_types", None), []
    if groups is None and listed is None:
        groups = [[["global", "local"], config.num_layers // 2]]
    for group, times in groups or ():
        if require_integer("attention_types", times) or len(kinds) + times * len(group) > config.num_layers:
            raise expected("attention_types", f"groups for {config.num_layers} layers", groups)
        kinds += list(group) * times
    if groups and listed is not None and list(listed) != kinds:
        raise expected("attention_layers and attention_types", "the same kinds of layers", [listed, groups])
    return list(listed or ()) if not groups else kinds


def windows(name: str, kinds: Any, size: Any, count: int, *, local: str = "local") -> list[int | None]:
    """The window of each layer; None for layers that are not local."""
    kinds = list(kinds or ())
    full = {"local": "global", "sliding_attention": "full_attention"}[local]
    if len(kinds) != count or any(kind not in (full, local) for kind in kinds):
        raise unsaid(name, kinds, f"{full} or {local} for each of {count} layers")
    if local in kinds:
        require_integer("window_size" if local == "local" else "sliding_window", size)
    return [size if kind == local else None for kind in kinds]


def gpt_neox(config: Any, weights: Weights) -> Transformer:
    """GPT-NeoX models, such as Pythia."""
    heads, width, inner = config.num_attention_heads, config.hidden_size, config.intermediate_size
    dim, bias = _head_dim("num_attention_heads", width, heads), getattr(config, "attention_bias", True)
    if getattr(config, "head_dim", None) not in (None, dim):  # transformers takes it for the rotation alone
        raise unsaid("head_dim", config.head_dim, dim)
    options = BlockOptions(
        heads=heads,
        mlp=(inner,),
        norm="pre",
        epsilon=_number("layer_norm_eps", config.layer_norm_eps),
        nonlinearity=activation(config, "hidden_act"),
        bias=bias,
        parallel=config.use_parallel_residual,
        rotary=_rotary(config, dim, ("rotary_emb_base", config.rotary_emb_base), ("rotary_pct", config.rotary_pct)),
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
    name = "lm_head" if "lm_head.weight" in weights else "embed_out"
    readout = None if tied else weights.affine(name, *rows, bias=False)
    table = weights.take("gpt_neox.embed_in.weight", *rows)
    final = weights.norm("gpt_neox.final_layer_norm", width)
    blocks = map(block, range(count))
    return assembled(Tokens(rows[0], tied=tied), [options] * count, blocks, Affine(table), None, final, readout)


class Form(NamedTuple):
    """Differences of families of Llama's form.

    Attributes:
        sliding: Layers with a window, a name of :data:`SLIDING`, if ``config.layer_types`` does not say.
        bias: Biases of the attention if no field says which: ``"qkv"`` or False.
        norm: As in :class:`BlockOptions`, and so is the next.
        qk_norm: Norms of queries and keys.
        fused: Whether queries, keys and values are one matrix, and the gate and the first dense layer.
        gemma: Whether the embedding is scaled by the root of the width, and norms have the offset 1.
    """

    sliding: str = "none"
    bias: bool | str = False
    norm: str = "pre"
    qk_norm: str = "none"
    fused: bool = False
    gemma: bool = False


PLAIN = Form()
SLIDING: dict[str, Callable[[Any, int], bool]] = {
    "none": lambda config, i: False,
    "all": lambda config, i: config.sliding_window is not None,
    "after": lambda config, i: _window(config) is not None and i >= config.max_window_layers,
    "in turn": lambda config, i: (i + 1) % getattr(config, "sliding_window_pattern", 2) != 0,
    "unrotated": lambda config, i: _window(config) is not None and not turned(config, config.num_hidden_layers)[i],
}
"""Layers with a window: of Mistral, Qwen, Gemma and SmolLM3 (those without positions)."""
NORMS = {
    "pre": ("input_layernorm", "post_attention_layernorm"),
    "output": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "both": (
        "input_layernorm",
        "pre_feedforward_layernorm",
        "post_attention_layernorm",
        "post_feedforward_layernorm",
    ),
}
"""Names of the norms of a block, of what is read before of what is added."""


def llama(config: Any, weights: Weights, form: Form = PLAIN) -> Transformer:
    """Llama and models of its form."""
    width, count = config.hidden_size, config.num_hidden_layers
    layers, offset = _Layers(config, weights, form), getattr(config, "norm_offset", float(form.gemma))
    options = [layers.options(i, offset) for i in range(count)]
    tied, rows = config.tie_word_embeddings, (config.vocab_size, width)
    readout = None if tied else weights.affine("lm_head", *rows, bias=False)
    table = weights.take("model.embed_tokens.weight", *rows)
    final = weights.norm("model.norm", width, shift=False)
    cap = getattr(config, "final_logit_softcapping", None)
    arrangement = Tokens(
        rows[0],
        tied=tied,
        scale=width**0.5 if form.gemma else 1.0,
        cap=None if cap is None else _number("final_logit_softcapping", cap),
    )
    return assembled(arrangement, options, map(layers.weights_of, range(count)), Affine(table), None, final, readout)


class _Layers:
    """Options and weights of the blocks of Llama and of models of its form."""

    def __init__(self, config: Any, weights: Weights, form: Form) -> None:
        self.config, self.weights, self.form = config, weights, form
        self.heads, width, self.inner = config.num_attention_heads, config.hidden_size, config.intermediate_size
        self.shared = self.heads if config.num_key_value_heads is None else config.num_key_value_heads
        self.dim = getattr(config, "head_dim", None) or _head_dim("num_attention_heads", width, self.heads)
        self.bias = getattr(config, "attention_bias", form.bias)
        self.mlp_bias = getattr(config, "mlp_bias", False)
        count = config.num_hidden_layers
        self.turned = turned(config, count)
        windowed, window = SLIDING[form.sliding], _window(config)
        kinds = getattr(config, "layer_types", None) or [_LAYERS[windowed(config, i)] for i in range(count)]
        if window is None and set(kinds) - {"full_attention"}:
            raise unsaid("layer_types", kinds, "full_attention in each layer without a sliding_window")
        self.windows = windows("layer_types", kinds, window, count, local="sliding_attention")

    def options(self, i: int, offset: float) -> BlockOptions:
        """Options of block i."""
        config, window = self.config, self.windows[i]
        local, share = hasattr(config, "rope_local_base_freq"), getattr(config, "partial_rotary_factor", 1.0)
        if share != 1 and not self.form.fused:
            raise unsaid("partial_rotary_factor", share, "1.0 in this family")
        base = "rope_local_base_freq" if local and window is not None else "rope_theta"
        kind = ("full_attention" if window is None else "sliding_attention") if local else None
        scalar, cap = (getattr(config, name, None) for name in ("query_pre_attn_scalar", "attn_logit_softcapping"))
        rotary = _rotary(config, self.dim, (base, getattr(config, base)), ("partial_rotary_factor", share), kind)
        return BlockOptions(
            heads=self.heads,
            mlp=(self.inner,),
            norm=self.form.norm,
            norm_kind="rms",
            norm_offset=offset,
            epsilon=_number("rms_norm_eps", config.rms_norm_eps),
            nonlinearity=activation(config, "hidden_activation" if self.form.gemma else "hidden_act"),
            gated=True,
            head_dim=self.dim,
            kv_heads=self.shared,
            scale=None if scalar is None else _positive("query_pre_attn_scalar", scalar) ** -0.5,
            score_cap=None if cap is None else _positive("attn_logit_softcapping", cap),
            qk_norm=self.form.qk_norm,
            bias=self.bias,
            mlp_bias=self.mlp_bias,
            window=window,
            rotary=rotary if self.turned[i] else None,
        )

    def weights_of(self, i: int) -> BlockWeights:
        """Weights of block i."""
        at, width, dim = f"model.layers.{i}.", self.config.hidden_size, self.dim
        of_qkv, sizes = bool(self.bias), [dim * count for count in (self.heads, self.shared, self.shared)]
        q, k, v = self._parts(f"{at}self_attn.", ("q_proj", "k_proj", "v_proj"), "qkv_proj", sizes, of_qkv)
        output = self.weights.affine(f"{at}self_attn.o_proj", width, self.heads * dim, bias=self.bias is True)
        inner = [self.inner, self.inner]
        dense = self._parts(f"{at}mlp.", ("gate_proj", "up_proj"), "gate_up_proj", inner, self.mlp_bias)
        dense += (self.weights.affine(f"{at}mlp.down_proj", width, self.inner, bias=self.mlp_bias),)
        parts = {"none": {}, "head": {"q": dim, "k": dim}, "all": {"q": sizes[0], "k": sizes[1]}}[self.form.qk_norm]
        qk_norms = tuple(self.weights.take(f"{at}self_attn.{p}_norm.weight", size) for p, size in parts.items())
        norms = tuple(self.weights.norm(f"{at}{part}", width, shift=False) for part in NORMS[self.form.norm])
        q, k, v = (per_head(part, dim) for part in (q, k, v))
        return BlockWeights(q, k, v, from_heads(output, dim), norms, dense, qk_norms)

    def _parts(self, at: str, names: tuple[str, ...], fused: str, sizes: list[int], bias: bool) -> tuple[Affine, ...]:
        """Layers that read the stream, each a tensor or, if they are fused, rows of one."""
        width = self.config.hidden_size
        if not self.form.fused:
            parts = zip(names, sizes, strict=True)
            return tuple(self.weights.affine(f"{at}{name}", size, width, bias=bias) for name, size in parts)
        whole = self.weights.affine(f"{at}{fused}", sum(sizes), width, bias=False).weight
        ends = np.cumsum(sizes)
        return tuple(Affine(whole[:, end - size : end]) for end, size in zip(ends, sizes, strict=True))


def _window(config: Any) -> Any:
    """The window of layers that have one, or None."""
    return getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None


def turned(config: Any, count: int) -> list[bool]:
    """True for each layer with rotary positions; some layers of SmolLM3 have none."""
    if not hasattr(config, "no_rope_layers"):
        return [True] * count
    listed, every = config.no_rope_layers, config.no_rope_layer_interval
    if listed is None:
        require_integer("no_rope_layer_interval", every)
        return [(i + 1) % every != 0 for i in range(count)]
    if not isinstance(listed, list) or len(listed) != count or any(value not in (0, 1) for value in listed):
        raise expected("no_rope_layers", f"1, or 0 for no positions, for each of {count} layers", listed)
    return list(map(bool, listed))


def _head_dim(name: str, width: int, heads: int) -> int:
    if width % heads:
        raise expected(name, f"a divisor of the width {width}", heads)
    return width // heads


ROPE_FIELDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Fields of each rotary code, beside those of all."""
_LAYERS = ("full_attention", "sliding_attention")


def _rotary(config: Any, dim: int, base: tuple[str, Any], share: tuple[str, Any], kind: str | None = None) -> Rotary:
    """The rotary code of all layers, or of one ``kind`` of layers; base and share of rotated coordinates by name."""
    rope = _rope(config, kind)
    turned = int(dim * _positive(*share))
    for name, (_, value) in (("rope_theta", base), ("partial_rotary_factor", share)):
        if rope.get(name, value) != value:
            raise unsaid(name, rope[name], value)
    factors = getattr(config, "rope_factors", None) or 1.0
    factor = _positive("factor", rope.get("factor", 1.0))
    if rope["rope_type"] == "linear":
        factors = factor
    elif rope["rope_type"] == "llama3" and factor != 1:
        rates = _positive(*base) ** (-np.arange(turned // 2) / (turned // 2))
        low, high, length = (_positive(name, rope.get(name)) for name in ROPE_FIELDS["llama3"][1:])
        if not low < high:
            raise expected("high_freq_factor", f"a number above low_freq_factor, {low}", high)
        # Rotations of less than `low` turns in the original context are slowed down by the factor.
        kept = np.clip((length * rates / (2 * np.pi) - low) / (high - low), 0, 1)
        factors = tuple((1 / (kept + (1 - kept) / factor)).tolist())
    pairs = getattr(config, "rotary_pairs", "halves")
    return Rotary(_positive(*base), None if turned == dim else turned, pairs, factors)


def _rope(config: Any, kind: str | None) -> dict[str, Any]:
    """Fields of the rotary code, possibly in a separate dictionary, or in one for each kind of layers."""
    rope = {}
    for name in ("rope_scaling", "rope_parameters"):
        fields = getattr(config, name, None) or {}
        if kind is not None and isinstance(fields, dict):
            if name == "rope_scaling":
                fields = fields if kind == "full_attention" else {}
            elif set(fields) - set(_LAYERS):
                raise unsaid(name, fields, "one dictionary for full_attention and one for sliding_attention")
            else:
                fields = fields.get(kind) or {}
        if not isinstance(fields, dict):
            raise expected(name, "a dictionary, or None", fields)
        for field in ("type", "rope_type"):
            if fields.get(field, "default") not in ROPE_FIELDS:
                raise unsaid(field, fields[field], ", ".join(ROPE_FIELDS))
        of_type = fields.get("rope_type", fields.get("type", "default"))
        for field, value in fields.items():
            known = ("rope_type", "type", "rope_theta", "partial_rotary_factor", *ROPE_FIELDS[of_type])
            if field not in known and not (field == "factor" and value == 1):
                raise unsaid(f"{name}.{field}", value, f"no such field with the code {of_type}")
        if of_type != "default" and "factor" not in fields:
            raise expected(f"{name}.factor", f"a number, for the code {of_type}", None)
        rope |= {**fields, "rope_type": of_type} if fields else {}
    return {"rope_type": "default"} | rope


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise expected(name, "a number", value)
    return float(value)


def _positive(name: str, value: Any) -> float:
    value = _number(name, value)
    POSITIVE.require(name, value)
    return value
