r"""A transformer on one prompt: residual stream, attention, dense layers, layer norm, with the papers' variants.

.. math:: \text{none:}\;\; u = h + A(h), \qquad
          \text{pre:}\;\; u = h + A(\mathrm{LN}\,h), \qquad
          \text{post:}\;\; u = \mathrm{LN}(h + A(h)),

.. math:: \text{output:}\;\; u = h + \mathrm{LN}\,A(h), \qquad
          \text{both:}\;\; u = h + \mathrm{LN}\,A(\mathrm{LN}\,h)

for attention ``A``, and likewise for the dense layers that follow it. The last block computes only what is
read: the tokens at which no answer is read serve it as keys and values, not as queries.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.domains import NON_NEGATIVE
from icllab.core.errors import expected, require_flag, require_instance, require_integer, require_key, unknown
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.core.vocabularies import in_vocabulary
from icllab.models.interventions.recording import Record, Recorder
from icllab.models.networks.attention import Attention, Rotary, Similarity, Weighting
from icllab.models.networks.dense import Dense, GatedPerceptron, Perceptron, product, require_widths
from icllab.models.networks.embedding import AbstractArrangement, Embedding, Interleaved, Joined, Layout, Tokens
from icllab.models.networks.norms import NORM_KINDS, Norm

NORMS = ("none", "pre", "post", "output", "both")


@dataclass(frozen=True, kw_only=True)
class BlockOptions:
    r"""Options of a transformer's blocks; papers differ in all of them.

    Attributes:
        heads: Number of heads of the attention.
        mlp: Widths of the hidden dense layers; ``()`` for one affine map, None for attention only.
        norm: Where norms are: ``"none"``, ``"pre"``, ``"post"``, ``"output"`` (of what is added) or ``"both"`` (of what
            is read and of what is added).
        norm_kind: What they are: ``"layer"`` or ``"rms"``.
        epsilon: What is added to the variance, or the mean square, in a norm.
        norm_offset: What is added to the scale of an RMS norm: 1 in Gemma.
        parallel: Whether attention and dense layers read the same stream, as in GPT-J and GPT-NeoX.
        nonlinearity: Nonlinearity of the dense layers.
        bias: Whether attention has biases; ``"qkv"``: all but the output's, as in Qwen2.
        mlp_bias: Whether dense layers have.
        gated: Whether the one hidden layer is multiplied by a gate: with ``nonlinearity="silu"``, SwiGLU.
        kv_heads: Number of heads of keys and values, which groups of heads share; None: each has its own.
        head_dim: Dimension of a head; None: the width over ``heads``.
        weighting: As in :class:`~icllab.models.networks.attention.Attention`, and so are the next three.
        similarity: A function of a query and a key, or None for ``scale`` times their product.
        scale: Factor of the product; None: one over the root of the head's dimension.
        normalisation: ``"none"``, or ``"examples"`` for one over the number of examples seen.
        window: A token sees only this many of the last tokens; None: all before it.
        rotary: The rotation of queries and keys, where the network's positions are ``"rotary"``; None: of no positions
            in these blocks.
        qk_norm: Norms of queries and keys: ``"none"``, ``"head"`` (of each head) or ``"all"`` (of all heads together).
        score_cap: c, of attention scores :math:`c \tanh(s / c)`; None for s.

    Raises:
        InputError: A number or width is none, a norm is unknown, a parallel block has post norms or no dense layers,
            or a gate has not one hidden layer.
    """

    heads: int
    mlp: tuple[int, ...] | None
    norm: str
    nonlinearity: str | Callable[[Array], Array] = "gelu"
    head_dim: int | None = None
    weighting: Weighting = "softmax"
    similarity: Similarity | None = None
    scale: float | None = None
    normalisation: str = "none"
    norm_kind: str = "layer"
    epsilon: float = 1e-5
    parallel: bool = False
    bias: bool | str = False
    mlp_bias: bool = True
    gated: bool = False
    kv_heads: int | None = None
    window: int | None = None
    rotary: Rotary | None = field(default_factory=Rotary)
    qk_norm: str = "none"
    score_cap: float | None = None
    norm_offset: float = 0.0

    def __post_init__(self) -> None:
        require_integer("heads", self.heads)
        if self.mlp is not None:
            require_widths("mlp", self.mlp, ", or None for attention only")
        if self.head_dim is not None:
            require_integer("head_dim", self.head_dim)
        for name, names in (("norm", NORMS), ("norm_kind", tuple(NORM_KINDS))):
            if getattr(self, name) not in names:
                raise unknown(name, getattr(self, name), names)
        NON_NEGATIVE.require_scalar("epsilon", self.epsilon)
        for name in ("parallel", "mlp_bias", "gated"):
            require_flag(name, getattr(self, name))
        if self.norm_offset and self.norm_kind != "rms":
            raise expected("norm_offset", 'zero unless norm_kind="rms"', self.norm_offset)
        if self.gated and (self.mlp is None or len(self.mlp) != 1):
            raise expected("mlp", "one hidden layer with a gate, (width,)", self.mlp, "or gated=False")
        if self.parallel and (self.norm == "post" or self.mlp is None):
            hint = "which would have no dense layers" if self.mlp is None else "whose norms come after each sum"
            raise expected("parallel", "False for a block " + hint, True)

    def norms(self, width: int, count: int) -> tuple[Norm, ...]:
        """Norms of a stream of this width, with unit scales."""
        fields: dict[str, Any] = {"epsilon": self.epsilon} | ({"offset": self.norm_offset} if self.norm_offset else {})
        return tuple(NORM_KINDS[self.norm_kind](width, **fields) for _ in range(count))

    @property
    def parts(self) -> int:
        """Number of parts of a block that add to the residual stream."""
        return 1 if self.mlp is None else 2


class Block(eqx.Module):
    """Attention and, if present, dense layers; each is added to the residual stream.

    Attributes:
        attention: Attention of the tokens over each other.
        mlp: Dense layers of every token on its own; None for an attention-only block.
        norms: The norm of each of the two; with ``"both"``, of what each reads and then of what each adds.
        norm: Where norms are, as in :class:`BlockOptions`.
        parallel: Whether both read the stream before the block.
    """

    attention: Attention
    mlp: Perceptron | GatedPerceptron | None
    norms: tuple[Norm, ...]
    norm: str = eqx.field(static=True)
    parallel: bool = eqx.field(static=True)

    @classmethod
    def init(
        cls, options: BlockOptions, width: int, *, rotary: bool, std: float | None, writers: int, key: PRNGKeyArray
    ) -> "Block":
        """Draw weights of standard deviation ``std``; if None, the number of inputs sets it.

        What writes into the stream is drawn smaller by the root of ``writers``, the parts of the whole network that do.
        ``rotary``: whether queries and keys are turned by their place.
        """

        def smaller(inner: int) -> float:
            return (inner**-0.5 if std is None else std) / writers**0.5

        of_attention, of_mlp = jax.random.split(key)
        attention = Attention(
            width,
            options.heads,
            dim=options.head_dim,
            weighting=options.weighting,
            similarity=options.similarity,
            scale=options.scale,
            normalisation=options.normalisation,
            rotary=options.rotary if rotary else None,
            window=options.window,
            score_cap=options.score_cap,
            qk_norm=options.qk_norm,
            norm=lambda width: options.norms(width, 1)[0],
            bias=options.bias,
            kv_heads=options.kv_heads,
            std=std,
            output_std=smaller(width if options.head_dim is None else options.heads * options.head_dim),
            key=of_attention,
        )
        mlp = None
        if options.mlp is not None:
            last = smaller(options.mlp[-1] if options.mlp else width)
            fields = {"nonlinearity": options.nonlinearity, "std": std, "last_std": last, "bias": options.mlp_bias}
            if options.gated:
                mlp = GatedPerceptron(width, options.mlp[0], width, **fields, key=of_mlp)
            else:
                mlp = Perceptron(width, options.mlp, width, **fields, key=of_mlp)
        counts = {"none": 0, "both": 2 * options.parts}
        norms = options.norms(width, counts.get(options.norm, options.parts))
        return cls(attention, mlp, norms, options.norm, options.parallel)

    @property
    def adds_heads(self) -> bool:
        """True if the stream after the block is linear in the outputs of its heads, dense layers held."""
        return self.norm in ("none", "pre")

    def read(self, part: int, x: Float[Array, "token width"]) -> Float[Array, "token width"]:
        """The stream as the attention (part 0) or the dense layers (part 1) read it."""
        return self.norms[part](x) if self.norm in ("pre", "both") else x

    def _added(self, part: int, out: Array) -> Array:
        """The output of a part as it is added to the stream."""
        parts = 1 if self.mlp is None else 2
        return self.norms[part - parts](out) if self.norm in ("output", "both") else out

    def __call__(
        self, x: Float[Array, "token width"], layout: Layout, record: Recorder, name: str, rows: slice | None
    ) -> Float[Array, "row width"]:
        """The stream after the block, for ``rows`` only if they are given."""
        return self.through(x, lambda read, within: self.attention(read, layout, within, rows), record, name, rows)

    def through(
        self,
        x: Float[Array, "token width"],
        attend: Callable[[Array, Record], Array],
        record: Recorder,
        name: str,
        rows: slice | None = None,
    ) -> Float[Array, "row width"]:
        """The stream after the block, with the attention that ``attend`` makes of what the block reads."""
        within = record.within(f"{name}.attention")
        out = within("", self._added(0, attend(self.read(0, x), within)))
        stream = x if rows is None else x[rows]
        x = self.norms[0](stream + out) if self.norm == "post" else stream + out
        if self.mlp is None:
            return record(name, x)
        if not self.parallel:
            stream = x = record(f"{name}.middle", x)
        within = record.within(f"{name}.mlp")
        out = within("", self._added(1, self.mlp(self.read(1, stream), within)))
        x = self.norms[1](x + out) if self.norm == "post" else x + out
        return record(name, x)


class TiedReadout(eqx.Module):
    r"""Logits from the embedding's table, which is one array for both: :math:`y = x W_E^\top + b`.

    Source: [PressWolf17].
    """

    bias: Float[Array, " token"] | None

    def __call__(self, x: Float[Array, "row width"], table: Float[Array, "token width"]) -> Float[Array, "row token"]:
        """The logits of every row."""
        y = product(x, table.T)
        return y if self.bias is None else y + jnp.broadcast_to(self.bias, y.shape)


class Transformer(AbstractModel):
    """Embedding, blocks, a last norm (unless ``"none"`` or ``"post"``), and an affine readout of the answering tokens.

    Named activations, in order: ``embedding``; of each block ``block0.attention.queries``, ``.keys``, ``.values``,
    ``.scores``, ``.pattern``, ``.heads``, ``block0.attention`` (what it adds), ``block0.middle`` (the stream between
    attention and dense layers, unless these are parallel), ``block0.mlp.hidden0``, ``block0.mlp`` (what they add),
    ``block0`` (the stream after it); ``readout`` (the stream that is read); ``prediction``. Those of the last block
    have rows for the answering tokens only, keys and values excepted. Rotary positions add ``.unrotated_queries`` and
    ``.unrotated_keys``, gated layers ``.mlp.gate``.

    Attributes:
        embedding: Tokens, positions.
        blocks: First to last.
        final_norm: Before the readout, or None.
        readout: From the stream to the prediction; of ``Tokens(tied=True)`` with the table of the embedding.

    Source: [Vaswani17].
    """

    embedding: Embedding
    blocks: tuple[Block, ...]
    final_norm: Norm | None
    readout: Dense | TiedReadout

    def __init__(
        self,
        arrangement: AbstractArrangement,
        *,
        dim: int,
        width: int | None,
        layers: int,
        block: BlockOptions | Sequence[BlockOptions],
        positions: str,
        length: int | None = None,
        std: float | None = None,
        key: PRNGKeyArray,
    ):
        """Draw the weights with variance ``std**2``, or one over the number of inputs if ``std`` is None.

        What writes into the residual stream is drawn smaller by the root of the number of writers, as in GPT-2.

        Args:
            arrangement: How the prompt becomes tokens.
            dim: Input dimension of the prompts; of token ids, the vocabulary.
            width: Width of the residual stream; None to put the tokens into it as they are.
            layers: Number of blocks.
            block: What each of them is; or one of these for each block.
            positions: Positional code; see :class:`~icllab.models.networks.embedding.Embedding`.
            length: The longest context, for learned and one-hot positions; None for others.
            std: Standard deviation of the weights; None: that of variance one over the number of inputs.
            key: Key of the weights.

        Raises:
            InputError: A name is unknown, or the widths do not fit.
        """
        require_integer("layers", layers)
        blocks = list(block) if isinstance(block, Sequence) else [block] * layers
        for options in blocks:
            require_instance(
                "block", options, BlockOptions, "options such as BlockOptions(heads=2, mlp=(64,), norm='pre')"
            )
        if len(blocks) != layers:
            raise expected("block", f"one BlockOptions, or one for each of {layers} blocks", len(blocks))
        require_key(key)
        of_embedding, of_readout, *of_blocks = jax.random.split(key, 2 + layers)
        self.embedding = Embedding(
            arrangement, dim=dim, width=width, positions=positions, length=length, std=std, key=of_embedding
        )
        stream = self.embedding.width
        fields = {"rotary": positions == "rotary", "std": std, "writers": sum(options.parts for options in blocks)}
        self.blocks = tuple(
            Block.init(options, stream, **fields, key=of_block)
            for options, of_block in zip(blocks, of_blocks, strict=True)
        )
        self.final_norm = None if blocks[-1].norm in ("none", "post") else blocks[-1].norms(stream, 1)[0]
        outputs = arrangement.outputs or 1
        if arrangement.tied and width is None:
            raise expected("width", "a width for the tied table", width, "or Tokens(tied=False)")
        self.readout = (
            TiedReadout(jnp.zeros(outputs)) if arrangement.tied else Dense(stream, outputs, std=std, key=of_readout)
        )

    @classmethod
    def raventos(
        cls, *, dim: int, length: int, width: int = 128, heads: int = 2, layers: int = 8, key: PRNGKeyArray
    ) -> "Transformer":
        """GPT-2 on interleaved tokens; 8 layers of width 128 with 2 heads in the paper.

        Source: [Raventos23].
        """
        require_integer("width", width)  # of which the dense layers have four times
        return cls(
            Interleaved(),
            dim=dim,
            width=width,
            layers=layers,
            block=BlockOptions(heads=heads, mlp=(4 * width,), norm="pre"),
            positions="learned",
            length=length,
            std=0.02,
            key=key,
        )

    @classmethod
    def lu(cls, *, dim: int, layers: int = 1, dense: bool = False, key: PRNGKeyArray) -> "Transformer":
        """Softmax attention over joined tokens, one head, layer norm after each sum, no positions.

        The residual stream has the dimension of the inputs. With ``dense`` each block ends in one affine map.

        Source: [Lu24].
        """
        require_flag("dense", dense)
        return cls(
            Joined(answers="last", causal=True, query_is_key=True),
            dim=dim,
            width=dim,
            layers=layers,
            block=BlockOptions(heads=1, mlp=() if dense else None, norm="post"),
            positions="none",
            key=key,
        )

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the arrangement of tokens."""
        return self.embedding.arrangement.positions

    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record = Recorder(edit)
        x, layout = self.embedding(prompt)
        x = record("embedding", x)
        last = len(self.blocks) - 1
        narrower = layout.read.indices(len(x)) != (0, len(x), 1)
        for i, block in enumerate(self.blocks):
            x = block(x, layout, record, f"block{i}", layout.read if i == last and narrower else None)
        if self.final_norm is not None:
            x = self.final_norm(x)
        x = record("readout", x)
        return Trace(record("prediction", self.answers(x)), record.activations)

    def answers(self, stream: Float[Array, "row width"]) -> Float[Array, "row *output"]:
        """The prediction from rows of the stream, after the last layer norm."""
        arrangement, projection = self.embedding.arrangement, self.embedding.projection
        outputs = arrangement.outputs
        if isinstance(self.readout, TiedReadout):
            assert projection is not None  # what is tied has a table
            y = self.readout(stream, projection.weight[:outputs])
        else:
            y = self.readout(stream)
        if isinstance(arrangement, Tokens) and arrangement.cap is not None:
            y = arrangement.cap * jnp.tanh(y / arrangement.cap)
        return y[:, 0] if outputs is None else y

    def logits(self, ids: Any) -> Float[Array, "position vocabulary"]:
        """Logits of the token after each of ``ids``, a sequence of integers; compiled once up to each power of two.

        Raises:
            InputError: The model answers no tokens, there are more ids than positions, or an id is not of its
                vocabulary.
        """
        ids = self.require_ids(ids)
        logits = _answers(self, jnp.asarray(np.pad(ids, (0, bucket(len(ids), self.embedding.places) - len(ids)))))
        # Cut by NumPy, since JAX would compile a program for each length.
        return logits[: len(ids)] if isinstance(logits, Tracer) else jax.device_put(np.asarray(logits)[: len(ids)])

    def require_ids(self, ids: Any, more: int = 0) -> Int[np.ndarray, " position"]:
        """``ids`` as an array; raise unless they are of the vocabulary, and the model has positions for ``more``."""
        arrangement, places = self.embedding.arrangement, self.embedding.places
        require_instance("model", arrangement, Tokens, "a model of token ids, Transformer(Tokens(vocabulary), ...)")
        if isinstance(ids, str):
            raise expected("ids", "a sequence of token ids", ids, "pretrained.open(path) takes texts")
        ids = np.asarray(ids)
        if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
            raise expected("ids", "a sequence of at least one token id", f"{ids.dtype} of shape {ids.shape}")
        size = arrangement.outputs or 0
        if ids.min() < 0 or ids.max() >= size:  # by NumPy, as JAX compiles for each length
            in_vocabulary("ids", ids, size)
        if places is not None and len(ids) + more > places:
            of_more = f", {more} of them to be written" if more else ""
            raise expected("ids", f"at most {places} tokens, the model's positions", f"{len(ids) + more}{of_more}")
        return ids.astype(np.int32)


def bucket(count: int, most: int | None = None) -> int:
    """The next power of two, at least 16, or ``most`` if that is less: lengths for which programs are compiled."""
    return min(max(16, 1 << (count - 1).bit_length()), most or sys.maxsize)


@eqx.filter_jit
def _answers(model: Transformer, ids: Array) -> Array:
    return model(TokenPrompt(jnp.append(ids, 0)))
