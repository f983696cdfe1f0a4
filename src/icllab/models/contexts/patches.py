r"""Patches: weight changes of rank one per block after which a transformer answers one prompt as another.

Let a block's dense layers read a(C) after a context C and a(C') after another, at one token, with the skip connections
u(C) and u(C'). With the change

.. math:: \Delta W_1 = \frac{a(C') \big[ (a(C) - a(C'))\, W_1 \big]}{|a(C')|^2} \text{ (an outer product)}, \qquad
          \Delta b_2 = u(C) - u(C')

of the first weights and the last bias, the block gives after C' exactly what it gave after C: :math:`a(C')(W_1 + \Delta
W_1) = a(C) W_1`. A gate's weights change like the first. Without a last bias the last weights change, by rank one too:
the last layer reads h in both cases, and

.. math:: \Delta W_2 = \frac{h\, [u(C) - u(C')]}{|h|^2}, \qquad h (W_2 + \Delta W_2) = h W_2 + u(C) - u(C').

Without a skip connection there is nothing to make up for. In a parallel block u is the stream before it and what
attention adds. Block by block, this makes a whole transformer answer so. It is as exact as it is cheap. The patch
depends on the query, and the formula knows nothing of contexts: C and C' may be any two prompts.

Source: [Dherin25]; gates and layers without biases, [Goldwaser25].
Derived: docs/language-models.md, A context as an exact patch.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.core.errors import expected
from icllab.core.views import fields_html, fields_repr
from icllab.models.contexts.weight_changes import WeightChange, best_change
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.dense import Dense, GatedPerceptron, Perceptron
from icllab.models.networks.embedding import Layout
from icllab.models.networks.transformer import Block, Transformer

Fit = Callable[[Array, Array, bool], WeightChange]
"""Fit of a layer's change from its inputs [row inner], the gain of its output [row outer], and a flag for its bias."""


def rank_one(
    weight: Float[Array, "inner outer"], target: Float[Array, " inner"], source: Float[Array, " inner"]
) -> Float[Array, "inner outer"]:
    r"""The least change of the weights with which a layer's output for ``source`` becomes its output for ``target``.

    .. math:: \Delta W = \frac{g\,[(t - g) W]}{|g|^2}, \qquad g (W + \Delta W) = t W

    It has rank one, and the least norm of all that do so. There is none for :math:`g = 0`: then it is not finite.

    Source: [Dherin25].
    """
    return _least(source, (target - source) @ weight)


def _least(source: Array, change: Array) -> Array:
    """The least change of weights that adds ``change`` to the output for ``source``."""
    return jnp.outer(source / jnp.sum(source**2), change)


class Patch(eqx.Module):
    """A change of the dense layers of every block.

    Attributes:
        first: Change of the weights, and of the bias if it has one, of the first dense layer.
        last: Change of the bias of the last, [width]; of its weights [inner, width] where it has no bias.
        gates: Change of each gate, like that of the first layer; empty without gates.
    """

    first: tuple[WeightChange, ...]
    last: tuple[Float[Array, "..."], ...]
    gates: tuple[WeightChange, ...] = ()

    __repr__ = fields_repr
    _repr_html_ = fields_html

    def applied(self, model: Transformer) -> Transformer:
        """The transformer with the patched weights."""
        gates = self.gates or (None,) * len(self.first)
        changes = zip(model.blocks, self.first, gates, self.last, strict=True)
        blocks = tuple(_finished(_begun(block, first, gate), last) for block, first, gate, last in changes)
        return eqx.tree_at(lambda m: m.blocks, model, blocks)


def rank_one_patch(model: Transformer, prompt: Any, bare_prompt: Any) -> Patch:
    """The patch that turns the model's last answer to ``bare_prompt`` into its last answer to ``prompt``.

    Norms stay as they are: what is patched is the layer that reads their output, whatever ``norm`` is.

    Args:
        model: A transformer with dense layers in every block, gated or not, with biases or without.
        prompt: The prompt with the context.
        bare_prompt: The prompt without it, or with a part of it: ``prompt.alone(position)``.

    Raises:
        InputError: A block has attention only.
    """

    def fit(reads: Array, gains: Array, biased: bool) -> WeightChange:
        return WeightChange(_least(reads[0], gains[0]), jnp.zeros_like(gains[0]))

    def stacked(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[None], tree)

    return _patched_in_turn(model, stacked(prompt), stacked(bare_prompt), fit)


def best_patch(model: Transformer, prompts: Any, bare_prompts: Any, *, affine: bool) -> Patch:
    """The best patch that does not depend on the query: a regression over all given queries, block by block.

    In every block the changes of what the first dense layer and the gate give are fitted by least squares. The last
    bias changes by the mean change of the stream; without one, the last weights are fitted to it. What is left in one
    block enters the next, and is fitted there. With fewer queries than inputs of each layer nothing is left, at these.

    Args:
        model: A transformer with dense layers in every block, gated or not, with biases or without.
        prompts: Stacked prompts of one context and many queries.
        bare_prompts: The same queries without it.
        affine: Whether the biases of the first layer and of the gate change too, where they have any.

    Raises:
        InputError: A block has attention only.
    """

    def fit(reads: Array, gains: Array, biased: bool) -> WeightChange:
        return best_change(reads, gains, affine=affine and biased)

    return _patched_in_turn(model, prompts, bare_prompts, fit)


def patch_errors(
    model: Transformer, patch: Patch, prompts: Any, bare_prompts: Any
) -> tuple[Float[Array, " prompt"], Float[Array, " prompt"]]:
    """Distances of the last answers to ``bare_prompts`` from the answers to ``prompts``, with and without the patch.

    At the query of a rank-one patch the first is zero. At other queries of the same context it says how much of the
    context the patch holds: all, if zero; nothing, if it is no smaller than the second.

    Args:
        model: The transformer without a patch.
        patch: The patch.
        prompts: Stacked prompts with the context.
        bare_prompts: The same queries without it.
    """
    answers = jax.vmap(model)(prompts)[:, -1:]
    with_patch, without_patch = (jax.vmap(m)(bare_prompts)[:, -1:] - answers for m in (patch.applied(model), model))
    over = tuple(range(1, answers.ndim))
    return jnp.sqrt(jnp.sum(with_patch**2, axis=over)), jnp.sqrt(jnp.sum(without_patch**2, axis=over))


def block_inputs(model: Transformer, prompts: Any) -> list[tuple[Float[Array, "prompt width"], ...]]:
    """Inputs of each block's dense layers and the stream to which they add, at the last token of stacked prompts."""
    streams, layout = _embedded(model, prompts)
    inputs = []
    for block in model.blocks:
        *values, streams = _through(block, streams, layout)
        inputs.append(tuple(values))
    return inputs


def _embedded(model: Transformer, prompts: Any) -> tuple[Float[Array, "prompt token width"], Layout]:
    for block in model.blocks:
        _require_dense(block)
    layouts = []

    def embedded(prompt: Any) -> Array:
        stream, layout = model.embedding(prompt)
        layouts.append(layout)
        return stream

    return jax.vmap(embedded)(prompts), layouts[0]


def _through(block: Block, streams: Array, layout: Layout) -> tuple[Array, Array, Array]:
    """Inputs of a block's dense layers and the stream to which they add, at the last token; streams after the block."""

    def through(stream: Array) -> tuple[Array, Array, Array]:
        record = Recorder()
        after = block(stream, layout, record, "block", None)
        if block.parallel:
            seen, beside = stream[-1:], stream[-1:] + record.activations["block.attention"][-1:]
        else:
            seen = beside = record.activations["block.middle"][-1:]
        return block.read(1, seen)[0], beside[0], after

    return jax.vmap(through)(streams)


def _patched_in_turn(model: Transformer, prompts: Any, bare_prompts: Any, fit: Fit) -> Patch:
    """Patch the first block, then the second given the patched first, and so on."""
    (with_context, layout), (bare, bare_layout) = (_embedded(model, batch) for batch in (prompts, bare_prompts))
    first, last, gates = [], [], []
    for block in model.blocks:
        read, stream, with_context = _through(block, with_context, layout)
        reads, streams, _ = _through(block, bare, bare_layout)
        mlp = _require_dense(block)
        layers = [mlp.layers[0], *([mlp.gate] if isinstance(mlp, GatedPerceptron) else [])]
        changes = [fit(reads, (read - reads) @ layer.weight, layer.bias is not None) for layer in layers]
        first.append(changes[0])
        gates.extend(changes[1:])
        block = _begun(block, *changes)
        gain = stream - streams
        if mlp.layers[-1].bias is None:
            last.append(fit(_last_reads(_require_dense(block), reads), gain, False).weight)
        else:
            last.append(jnp.mean(gain, axis=0))
        *_, bare = _through(_finished(block, last[-1]), bare, bare_layout)
    return Patch(tuple(first), tuple(last), tuple(gates))


def _last_reads(mlp: Perceptron | GatedPerceptron, reads: Array) -> Array:
    """Inputs of the last dense layer: the last hidden layer, or the block's inputs if there is none."""
    hidden = [reads]

    def record(_: str, value: Array) -> Array:
        hidden.append(value)
        return value

    mlp(reads, record)
    return hidden[-1]


def _require_dense(block: Block) -> Perceptron | GatedPerceptron:
    if block.mlp is None:
        raise expected("model", "dense layers in every block", "attention only", "BlockOptions(mlp=(...,))")
    if block.norm in ("output", "both"):
        raise expected("model", "dense layers whose output is added as it is", f"norm={block.norm!r}", "it is normed")
    return block.mlp


def _begun(block: Block, first: WeightChange, gate: WeightChange | None = None) -> Block:
    """The block with a patched first layer and gate."""
    block = eqx.tree_at(lambda of: of.mlp.layers[0], block, replace_fn=lambda layer: _added(layer, first))
    if gate is None:
        return block
    return eqx.tree_at(lambda of: of.mlp.gate, block, replace_fn=lambda layer: _added(layer, gate))


def _added(layer: Dense, change: WeightChange) -> Dense:
    def parts(of: Dense) -> list[Any]:
        return [of.weight] if of.bias is None else [of.weight, of.bias]

    new = [layer.weight + change.weight] + ([] if layer.bias is None else [layer.bias + change.bias])
    return eqx.tree_at(parts, layer, new)


def _finished(block: Block, last: Array) -> Block:
    """The block with a patched last layer."""
    name = "bias" if last.ndim == 1 else "weight"
    return eqx.tree_at(lambda of: getattr(of.mlp.layers[-1], name), block, replace_fn=lambda value: value + last)
