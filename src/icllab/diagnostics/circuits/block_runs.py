"""Runs of a transformer block by block: one compiled program serves all blocks of one structure.

A program of one block compiles in a second, where that of a whole language model takes half a minute, and a run that
differs from another one only after some block starts there.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from icllab.core.prompt import TokenPrompt
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.embedding import AbstractArrangement
from icllab.models.networks.transformer import Block, Transformer

NAMES = {"residual": "block", "attention": "block.attention", "mlp": "block.mlp", "heads": "block.attention.heads"}
"""The activation of each kind of site: the stream after a block, what its two parts add, and the outputs of heads."""
KINDS = tuple(NAMES)
NUMBERS = 2**25  # of the largest activation that is in memory at once


def _run(block: Block, arrangement: AbstractArrangement, x: Array, record: Recorder) -> Array:
    return block(x, arrangement.layout(len(x)), record, NAMES["residual"], None)


@eqx.filter_jit
def embedded(model: Transformer, tokens: Int[Array, "prompt token"]) -> Float[Array, "prompt token width"]:
    """The stream before the first block."""
    return jax.vmap(lambda ids: model.embedding(TokenPrompt(jnp.append(ids, 0)))[0])(tokens)


@eqx.filter_jit
def passed(
    block: Block, arrangement: AbstractArrangement, x: Float[Array, "prompt token width"]
) -> Float[Array, "prompt token width"]:
    """The stream after a block."""
    return jax.vmap(lambda stream: _run(block, arrangement, stream, Recorder()))(x)


@eqx.filter_jit
def recorded(
    block: Block, arrangement: AbstractArrangement, x: Float[Array, "prompt token width"]
) -> dict[str, Float[Array, "prompt token *rest"]]:
    """Activations of a block by the kind of their sites."""

    def single(stream: Array) -> dict[str, Array]:
        record = Recorder()
        _run(block, arrangement, stream, record)
        return {kind: record.activations[name] for kind, name in NAMES.items() if name in record.activations}

    return jax.vmap(single)(x)


@eqx.filter_jit
def patched(
    block: Block,
    arrangement: AbstractArrangement,
    x: Float[Array, "token width"],
    source: dict[str, Array],
    kinds: Int[Array, " cell"],
    indices: Int[Array, " cell"],
) -> Float[Array, "cell token width"]:
    """The stream after a block, in each cell with one activation of ``source``: of a kind, at a position or head."""

    def cell(kind: Array, index: Array) -> Array:
        def edit(name: str, value: Array) -> Array:
            site = next((site for site, activation in NAMES.items() if activation == name), "")
            if site not in source:
                return value
            axis = 1 if site == "heads" else 0
            here = (jnp.arange(value.shape[axis]) == index) & (kind == KINDS.index(site))
            shape = [-1 if i == axis else 1 for i in range(value.ndim)]
            return jnp.where(jnp.broadcast_to(here.reshape(shape), value.shape), source[site], value)

        return _run(block, arrangement, x, Recorder(edit))

    return jax.vmap(cell)(kinds, indices)


@eqx.filter_jit
def read_out(model: Transformer, rows: Float[Array, "row width"]) -> Float[Array, "row vocabulary"]:
    """Logits of rows of the stream after the last block, or after an earlier one as if it were the last."""
    return model.answers(rows if model.final_norm is None else model.final_norm(rows))


def streams(model: Transformer, tokens: Int[Array, "prompt token"]) -> list[Float[Array, "prompt token width"]]:
    """The stream before the first block and after each block."""
    x = [embedded(model, tokens)]
    for block in model.blocks:
        x.append(passed(block, model.embedding.arrangement, x[-1]))
    return x


def most_at_once(model: Transformer, tokens: int, rows: int = 1) -> int:
    """Number of runs in memory at once: the largest activation of a block, or the logits of ``rows``, bounds them."""
    widths = [leaf.shape[-1] for block in model.blocks for leaf in jax.tree.leaves(eqx.filter(block, eqx.is_array))]
    heads = max(block.attention.query.shape[1] for block in model.blocks)
    outputs = model.embedding.arrangement.outputs or 1
    return max(1, NUMBERS // max(tokens * max(widths), heads * tokens**2, rows * outputs))


@eqx.filter_jit
def pushed(block: Block, arrangement: AbstractArrangement, x: Array, change: Array) -> tuple[Array, Array]:
    """The stream after a block [token, width], and its change to first order if the stream before it changes."""
    return jax.jvp(lambda stream: _run(block, arrangement, stream, Recorder()), (x,), (change,))


@eqx.filter_jit
def pulled(
    block: Block, arrangement: AbstractArrangement, x: Any, slope: Any, zeros: dict[str, Array]
) -> tuple[tuple[Array, dict[str, Array]], tuple[Array, dict[str, Array]]]:
    """Pull a gradient back through a block, to the stream before it and to the activations of its sites.

    ``x`` and ``slope`` are pairs: the stream before the block and the gradient after it, each with its change. The
    second part of the result is the change of the first, a product of the Hessian with the change.
    """

    def pull(stream: Array, gradient: Array) -> tuple[Array, dict[str, Array]]:
        def shifted(stream: Array, shifts: dict[str, Array]) -> Array:
            by_name = {NAMES[kind]: shift for kind, shift in shifts.items()}
            edit = lambda name, value: value + by_name[name] if name in by_name else value  # noqa: E731
            return _run(block, arrangement, stream, Recorder(edit))

        return jax.vjp(shifted, stream, zeros)[1](gradient)

    return jax.jvp(pull, (x[0], slope[0]), (x[1], slope[1]))
