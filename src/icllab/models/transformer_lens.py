"""Models of TransformerLens as :class:`Transformer`: HookedTransformer, and NativeModel of its bridges."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np

from icllab.core.domains import POSITIVE
from icllab.core.errors import require_integer
from icllab.models.networks.attention import Rotary
from icllab.models.networks.embedding import Tokens
from icllab.models.networks.transformer import BlockOptions, Transformer
from icllab.models.pretrained.assembly import (
    Affine,
    BlockWeights,
    Weights,
    activation,
    assembled,
    from_heads,
    per_head,
    unsaid,
)
from icllab.models.pretrained.configurations import Family
from icllab.models.pretrained.families import windows

_NORMS = {"LN": "layer", "LNPre": "layer", "RMS": "rms", "RMSPre": "rms", None: "layer"}


def _require_norms(kind: Any, final_rms: bool) -> None:
    if kind not in _NORMS:
        raise unsaid("normalization_type", kind, ", ".join(map(str, _NORMS)))
    if final_rms and _NORMS[kind] != "rms":
        raise unsaid("final_rms", True, "False unless the other norms are RMS norms")


def hooked_transformer(config: Any, weights: Weights) -> Transformer:
    """Convert a HookedTransformer of TransformerLens."""
    kind, positions = config.normalization_type, config.positional_embedding_type
    _require_norms(kind, config.final_rms)
    if positions not in ("standard", "rotary"):
        raise unsaid("positional_embedding_type", positions, "standard, rotary")
    if config.original_architecture in ("OlmoeForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM"):
        requirement = "an architecture without norms of queries and keys"
        raise unsaid("original_architecture", config.original_architecture, requirement)
    for name in ("d_mlp", "n_key_value_heads", "rotary_dim"):
        if getattr(config, name) is not None:
            require_integer(name, getattr(config, name))
    layers, rows, width = config.n_layers, config.d_vocab, config.d_model
    if config.d_vocab_out not in (-1, rows):
        raise unsaid("d_vocab_out", config.d_vocab_out, f"the vocabulary, {rows}")
    table = weights.take("embed.W_E", rows, width)
    blocks = _Blocks(config, weights, table.dtype)
    return assembled(
        Tokens(rows),
        [blocks.options(i) for i in range(layers)],
        map(blocks.weights_of, range(layers)),
        Affine(table),
        None if positions == "rotary" else weights.take("pos_embed.W_pos", config.n_ctx, width),
        None if kind is None else blocks.norm("ln_final"),
        Affine(weights.take("unembed.W_U", width, rows), weights.take("unembed.b_U", rows)),
    )


class _Blocks:
    """Options and weights of the blocks of a HookedTransformer."""

    def __init__(self, config: Any, weights: Weights, dtype: Any) -> None:
        self.config, self.weights, self.dtype = config, weights, dtype
        self.width, self.heads, self.dim = config.d_model, config.n_heads, config.d_head
        self.shared = self.heads if config.n_key_value_heads is None else config.n_key_value_heads
        kinds = config.attn_types if config.use_local_attn else ["global"] * config.n_layers
        self.windows = windows("attn_types", kinds, config.window_size, config.n_layers)
        self.inner = None if config.attn_only else config.d_mlp or 4 * self.width
        scale = self.dim**0.5 if config.attn_scale == -1 else config.attn_scale
        self.divisor = scale if config.use_attn_scale else 1.0
        for name, value in (("attn_scale", self.divisor), ("rotary_base", config.rotary_base)):
            POSITIVE.require(name, value)

    def options(self, i: int) -> BlockOptions:
        """Options of block i."""
        config, window = self.config, self.windows[i]
        base = config.rotary_base if window is None else config.rotary_base_local or config.rotary_base
        pairs = "adjacent" if config.rotary_adjacent_pairs else "halves"
        rotary = config.positional_embedding_type == "rotary"
        return BlockOptions(
            heads=self.heads,
            mlp=None if self.inner is None else (self.inner,),
            norm="none" if config.normalization_type is None else "pre",
            norm_kind=_NORMS[config.normalization_type],
            epsilon=config.eps,
            nonlinearity="linear" if self.inner is None else activation(config, "act_fn"),
            head_dim=self.dim,
            kv_heads=self.shared,
            scale=1 / (float(self.divisor) * (i + 1 if config.scale_attn_by_inverse_layer_idx else 1)),
            bias=True,
            parallel=config.parallel_attn_mlp,
            gated=self.inner is not None and config.gated_mlp,
            window=window,
            rotary=Rotary(base, config.rotary_dim, pairs) if rotary else Rotary(),
        )

    def norm(self, name: str) -> tuple[Any, ...]:
        """Scale, and bias if there is one, of a norm: 1 and 0 where they are part of the next layer."""
        kind = self.config.normalization_type
        parts = ("w",) if _NORMS[kind] == "rms" else ("w", "b")
        if kind in ("LN", "RMS"):
            return tuple(self.weights.take(f"{name}.{part}", self.width) for part in parts)
        return (np.ones(self.width, self.dtype), np.zeros(self.width, self.dtype))[: len(parts)]

    def weights_of(self, i: int) -> BlockWeights:
        """Weights of block i."""
        at, mark = f"blocks.{i}.", "" if self.config.n_key_value_heads is None else "_"
        take, width, heads, dim = self.weights.take, self.width, self.heads, self.dim
        q, k, v = (
            Affine(
                np.moveaxis(take(f"{at}attn.{mark}W_{part}", size, width, dim), 0, 1),
                take(f"{at}attn.{mark}b_{part}", size, dim),
            )
            for part, size, mark in (("Q", heads, ""), ("K", self.shared, mark), ("V", self.shared, mark))
        )
        output = Affine(take(f"{at}attn.W_O", heads, dim, width), take(f"{at}attn.b_O", width))
        count = 0 if self.config.normalization_type is None else 1 if self.inner is None else 2
        norms = tuple(self.norm(f"{at}ln{j}") for j in (1, 2)[:count])
        return BlockWeights(q, k, v, output, norms, () if self.inner is None else self._dense(f"{at}mlp.", self.inner))

    def _dense(self, at: str, inner: int) -> tuple[Affine, ...]:
        take, width = self.weights.take, self.width
        first = Affine(take(f"{at}W_in", width, inner), take(f"{at}b_in", inner))
        last = Affine(take(f"{at}W_out", inner, width), take(f"{at}b_out", width))
        if not self.config.gated_mlp:
            return first, last
        gate, zeros = take(f"{at}W_gate", width, inner), np.zeros_like(first.bias)
        # The first bias is added to the product with the gate there, within the product here.
        return (
            Affine(gate, zeros),
            Affine(first.weight, zeros),
            Affine(last.weight, first.bias @ last.weight + last.bias),
        )


def native_model(config: Any, weights: Weights) -> Transformer:
    """Convert a NativeModel of TransformerLens 4, a HookedTransformer with other names of its tensors.

    It pairs neighbours in the rotary code and always has a scale, whatever the configuration says of these.
    """
    heads, width, dim, mark = config.n_heads, config.d_model, config.d_head, "_" if config.n_key_value_heads else ""
    shared, inner, rows = config.n_key_value_heads or heads, config.d_mlp or 4 * width, config.d_vocab
    names = {str(name).lower(): name for name in _NORMS}
    kind = names.get(str(config.normalization_type).lower(), config.normalization_type)
    _require_norms(kind, config.final_rms)
    arrays = {"embed.W_E": weights.take("tok_embed.weight", rows, width)}
    if config.positional_embedding_type.lower() == "standard":
        arrays["pos_embed.W_pos"] = weights.take("pos.weight", config.n_ctx, width)
    head = weights.affine("head", rows, width, bias="head.bias" in weights)  # a bridge adds a bias
    arrays |= {
        "unembed.W_U": head.weight,
        "unembed.b_U": np.zeros(rows, head.weight.dtype) if head.bias is None else head.bias,
    }

    def norm(name: str, source: str) -> dict[str, Any]:
        parts = weights.norm(source, width, shift=_NORMS[kind] == "layer") if kind in ("LN", "RMS") else ()
        return {f"{name}.{part}": array for part, array in zip("wb", parts, strict=False)}

    def layer(name: str, source: str, outer: int, inner: int) -> dict[str, Any]:
        weight, bias = weights.affine(source, outer, inner, bias=not config.gated_mlp)
        return {name.format("W"): weight, name.format("b"): np.zeros(outer, weight.dtype) if bias is None else bias}

    for i in range(config.n_layers):
        prefix, source = f"blocks.{i}.", f"layers.{i}."
        for part, of, mark_of in (("q", heads, ""), ("k", shared, mark), ("v", shared, mark)):
            projection = per_head(weights.affine(f"{source}attn.{part}", of * dim, width), dim)
            arrays[f"{prefix}attn.{mark_of}W_{part.upper()}"] = np.moveaxis(projection.weight, 1, 0)
            arrays[f"{prefix}attn.{mark_of}b_{part.upper()}"] = projection.bias
        output = from_heads(weights.affine(f"{source}attn.o", width, heads * dim), dim)
        arrays |= {f"{prefix}attn.W_O": output.weight, f"{prefix}attn.b_O": output.bias} | norm(
            f"{prefix}ln1", f"{source}ln1"
        )
        if config.attn_only:
            continue
        first, last = ("in", "out") if config.gated_mlp else ("fc_in", "fc_out")
        arrays |= norm(f"{prefix}ln2", f"{source}ln2") | layer(
            f"{prefix}mlp.{{}}_in", f"{source}mlp.{first}", inner, width
        )
        arrays |= layer(f"{prefix}mlp.{{}}_out", f"{source}mlp.{last}", width, inner)
        if config.gated_mlp:
            arrays[f"{prefix}mlp.W_gate"] = weights.affine(f"{source}mlp.gate", inner, width, bias=False).weight
    arrays |= norm("ln_final", "ln_out")
    fields = {**HOOKED_TRANSFORMER.flags, **vars(config), "normalization_type": kind, "d_mlp": inner}
    fields |= {"n_key_value_heads": config.n_key_value_heads or None, "act_fn": str(config.act_fn).lower()}
    fields |= {"positional_embedding_type": config.positional_embedding_type.lower(), "rotary_adjacent_pairs": True}
    fields["attn_scale"] = config.attn_scale if config.use_attn_scale and config.attn_scale > 0 else -1.0
    fields["use_attn_scale"] = True
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    return hooked_transformer(SimpleNamespace(**fields), Weights(shapes, arrays.__getitem__))


NO_EFFECT = """
model_name from_checkpoint checkpoint_index checkpoint_label_type checkpoint_value tokenizer_name init_mode device
n_devices seed init_weights n_params use_hook_tokens default_prepend_bos tokenizer_prepends_bos tokenizer_appends_eos
default_padding_side trust_remote_code use_attn_result use_split_qkv_input use_hook_mlp_in use_attn_in
ungroup_grouped_query_attention experts_per_token norm_topk_prob relative_attention_max_distance
relative_attention_num_buckets decoder_start_token_id tie_word_embeddings NTK_by_parts_low_freq_factor
NTK_by_parts_high_freq_factor NTK_by_parts_factor NTK_original_ctx_len yarn_factor yarn_attention_factor yarn_beta_fast
yarn_beta_slow yarn_truncate yarn_global_attn_only yarn_original_max_position_embeddings train_seq_length
quantization_method qk_norm_after_rope uses_rms_norm layer_norm_folding split_attention_weights architecture
""".split()  # noqa: SIM905
"""Fields of training, tokenizers and hooks, and numbers that count only with an option that is refused."""
# Masks and angles, and parts that the configuration switches off.
UNUSED = re.compile(
    r"^(pos_embed\.W_pos|(blocks\.\d+\.)?ln\w*\.[wb]|blocks\.\d+\.(mlp\.[Wb]_\w+|attn\.(mask|IGNORE|rotary_\w+)))$"
)

_OFF = (-1, 0, None)
HOOKED_TRANSFORMER = Family(
    build=hooked_transformer,
    sizes=("n_layers", "d_model", "n_ctx", "d_head", "n_heads", "d_vocab"),
    layers="n_layers",
    flags={"attn_only": False, "use_attn_scale": True, "scale_attn_by_inverse_layer_idx": False, "final_rms": False}
    | {"parallel_attn_mlp": False, "gated_mlp": False, "use_local_attn": False, "rotary_adjacent_pairs": False},
    defaults={"normalization_type": "LN", "positional_embedding_type": "standard", "act_fn": "relu", "eps": 1e-5}
    | {"d_mlp": None, "d_vocab_out": -1, "attn_scale": -1.0, "attn_types": None, "window_size": None}
    | {"rotary_dim": None, "rotary_base": 10_000, "rotary_base_local": None, "n_key_value_heads": None}
    | {"original_architecture": None},
    only={"attention_dir": "causal", "attn_scores_soft_cap": _OFF, "output_logits_soft_cap": _OFF}
    | {"rotary_scaling_factor": 1.0},
)
_UNUSED_BY_NATIVE = ("scale_attn_by_inverse_layer_idx", "parallel_attn_mlp", "use_local_attn")
NATIVE_MODEL = HOOKED_TRANSFORMER._replace(
    build=native_model,
    flags={name: value for name, value in HOOKED_TRANSFORMER.flags.items() if name not in _UNUSED_BY_NATIVE},
)
