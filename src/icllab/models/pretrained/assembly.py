"""Assembly of a transformer from the arrays of its parts, with checked shapes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from icllab.core.errors import InputError, expected
from icllab.models.networks.embedding import Interleaved, Tokens
from icllab.models.networks.transformer import BlockOptions, Transformer

ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu": "exact_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Names of nonlinearities in transformers, and in icllab."""


class Affine(NamedTuple):
    """Weight and bias (or None): [inner, outer], per head [width, head, dim], or of the output [head, dim, width]."""

    weight: Any
    bias: Any = None


class BlockWeights(NamedTuple):
    """Arrays of one block; dense layers from first to last, with a gate before them; norms as the block has them."""

    query: Affine
    key: Affine
    value: Affine
    output: Affine
    norms: tuple[tuple[Any, ...], ...]
    dense: tuple[Affine, ...]
    qk_norms: tuple[Any, ...] = ()


class Weights:
    """Tensors by name, with a record of those already taken.

    Attributes:
        shapes: Shape of each tensor.
        untaken: Names of those that nobody has taken.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], Any]):
        self.shapes = shapes
        self.untaken = set(shapes)
        self._read = read

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def take(self, name: str, *shape: int) -> Any:
        """The tensor of this name; raise unless it exists with this shape."""
        if name not in self.shapes:
            raise expected(name, f"a tensor of shape {shape}", None)
        if self.shapes[name] != shape:
            raise expected(name, f"a tensor of shape {shape}, according to the configuration", self.shapes[name])
        self.untaken.discard(name)
        return self._read(name)

    def affine(self, name: str, outer: int, inner: int, *, bias: bool = True) -> Affine:
        """The weight [outer, inner] and the bias of a layer of PyTorch, as [inner, outer]."""
        weight = jax.block_until_ready(self.take(f"{name}.weight", outer, inner).T)  # before the next one is read
        return Affine(weight, self.take(f"{name}.bias", outer) if bias else None)

    def norm(self, name: str, width: int, *, shift: bool = True) -> tuple[Any, ...]:
        """The scale and, for a layer norm, the shift."""
        return tuple(self.take(f"{name}.{part}", width) for part in ("weight", "bias")[: 1 + shift])


def per_head(layer: Affine, dim: int) -> Affine:
    """Columns of a layer as heads."""
    bias = None if layer.bias is None else layer.bias.reshape(-1, dim)
    return Affine(layer.weight.reshape(layer.weight.shape[0], -1, dim), bias)


def from_heads(layer: Affine, dim: int) -> Affine:
    """Rows of a layer as heads."""
    return Affine(layer.weight.reshape(-1, dim, layer.weight.shape[1]), layer.bias)


def assembled(
    arrangement: Tokens | Interleaved,
    options: list[BlockOptions],
    blocks: Iterable[BlockWeights],
    embedding: Affine,
    table: Any,
    final_norm: tuple[Any, ...] | None,
    readout: Affine | None,
) -> Transformer:
    """A transformer with these arrays; ``table`` is the table of positions, or None for rotary positions.

    Where ``readout`` is None, the table of the embedding is read with as well. ``blocks`` are drawn one by one.
    """
    rows, width = embedding.weight.shape
    places = None if table is None else len(table)
    # ``length`` counts examples before the query: of interleaved tokens two make one.
    length = None if places is None else (places - 1 if isinstance(arrangement, Tokens) else (places - 1) // 2)

    def build() -> Transformer:
        model = Transformer(
            arrangement,
            dim=arrangement.vocabulary if isinstance(arrangement, Tokens) else rows - 1,
            width=width,
            layers=len(options),
            block=options,
            positions="rotary" if table is None else "learned",
            length=length,
            key=jax.random.key(0),
        )
        biases = [
            where
            for where, bias in ((_embedding_bias, embedding.bias), (_readout_bias, readout and readout.bias))
            if bias is None
        ]
        return eqx.tree_at(lambda m: [where(m) for where in biases], model, [None] * len(biases)) if biases else model

    # Shapes alone: no weight is drawn only to be replaced.
    model = eqx.filter_eval_shape(build)
    parts: list[Any] = [embedding]
    if table is not None and length is not None:
        parts.append(table[: arrangement.token_count(length)])
    for weights in blocks:
        attention = (weights.query, weights.key, weights.value, weights.output)
        block = [[part.weight for part in attention], [part.bias for part in attention], weights.qk_norms]
        block += [weights.dense, weights.norms]
        parts += jax.tree.map(_copied, jax.tree.leaves(block))
    parts += [final_norm, readout]
    arrays = jax.tree.map(_copied, jax.tree.leaves(parts))
    leaves, structure = jax.tree.flatten(model)  # in the order of the fields: embedding, blocks, last norm, readout
    if [leaf.shape for leaf in leaves] != [array.shape for array in arrays]:
        raise expected("weights", "arrays of the shapes that the options determine", [array.shape for array in arrays])
    return jax.tree.unflatten(structure, arrays)


def _copied(array: Any) -> Array:
    """An array of JAX that does not share memory with a file."""
    return array if isinstance(array, jax.Array) else jnp.array(array)


def _embedding_bias(model: Any) -> Any:
    return model.embedding.projection.bias


def _readout_bias(model: Any) -> Any:
    return model.readout.bias


def activation(config: Any, field: str) -> str:
    """The name in icllab of the nonlinearity in a field of a configuration."""
    name = getattr(config, field)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise unsaid(field, name, ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name]


def require(config: Any, **values: Any) -> None:
    """Raise for the first option with another value; an absent option counts as equal."""
    for name, value in values.items():
        if (option := getattr(config, name, value)) != value:
            raise unsaid(name, option, value)


def unsaid(name: str, value: Any, known: Any) -> InputError:
    """The error for an option that models.Transformer does not support."""
    return expected(name, str(known), value, "models.Transformer supports nothing else")
