r"""The weights with which a transformer answers one prompt as it answers another: a patch of rank one in each block.

Let a block's dense layers read a(C) after a context C and a(C') after another, at one token, with the skip connections
u(C) and u(C'). With the change

.. math:: \Delta W_1 = \frac{a(C') \big[ (a(C) - a(C'))\, W_1 \big]}{|a(C')|^2} \text{ (an outer product)}, \qquad
          \Delta b_2 = u(C) - u(C')

of the first weights and the last bias, the block gives after C' exactly what it gave after C: :math:`a(C')(W_1 + \Delta
W_1) = a(C) W_1`. Without a skip connection :math:`\Delta b_2 = 0`. Block by block, this makes a whole transformer
answer so. It is as exact as it is cheap. The patch depends on the query, and the formula knows nothing of contexts: C
and C' may be any two prompts.

Source: [Dherin25].
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.core.errors import expected, kind_of
from icllab.core.views import fields_html, fields_repr
from icllab.models.contexts.weight_changes import WeightChange, best_change
from icllab.models.networks.dense import Dense, Perceptron
from icllab.models.networks.transformer import Block, Transformer


def rank_one(
    weight: Float[Array, "inner outer"], target: Float[Array, " inner"], source: Float[Array, " inner"]
) -> Float[Array, "inner outer"]:
    r"""The least change of the weights with which a layer makes of ``source`` what it makes of ``target``.

    .. math:: \Delta W = \frac{g\,[(t - g) W]}{|g|^2}, \qquad g (W + \Delta W) = t W

    It has rank one, and the least norm of all that do so. There is none for :math:`g = 0`: then it is not finite.

    Source: [Dherin25].
    """
    return jnp.outer(source / jnp.sum(source**2), (target - source) @ weight)


class Patch(eqx.Module):
    """A change of the dense layers of every block.

    Attributes:
        first: Change of the weights, and of the bias, of the first dense layer.
        last: Change of the bias of the last.
    """

    first: tuple[WeightChange, ...]
    last: tuple[Float[Array, " width"], ...]

    __repr__ = fields_repr
    _repr_html_ = fields_html

    def applied(self, model: Transformer) -> Transformer:
        """The transformer with these weights."""
        blocks = tuple(
            _changed(block, first, last) for block, first, last in zip(model.blocks, self.first, self.last, strict=True)
        )
        return eqx.tree_at(lambda m: m.blocks, model, blocks)


def rank_one_patch(model: Transformer, prompt: Any, bare_prompt: Any) -> Patch:
    """The patch with which the model's last answer to ``bare_prompt`` is its last answer to ``prompt``.

    Layer norms stand where they stand: what is patched is the layer that reads their output, whatever ``norm`` is.

    Args:
        model: A transformer with dense layers in every block.
        prompt: The prompt with the context.
        bare_prompt: The prompt without it, or with a part of it: ``prompt.alone(position)``.

    Raises:
        InputError: A block has attention only.
    """

    def change(block: Block, read: Array, reads: Array) -> WeightChange:
        layer = _first(block)
        return WeightChange(rank_one(layer.weight, read[0], reads[0]), jnp.zeros_like(layer.bias))  # pyright: ignore[reportArgumentType]

    def stacked(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[None], tree)

    return _patched_in_turn(model, stacked(prompt), stacked(bare_prompt), change)


def best_patch(model: Transformer, prompts: Any, bare_prompts: Any, *, affine: bool) -> Patch:
    """The patch that does not depend on the query, block by block: a regression over all queries given.

    In every block the change of what the first dense layer gives is fitted by least squares, and the last bias changes
    by the mean change of the stream. What is left in one block enters the next, and is fitted there.

    Args:
        model: A transformer with dense layers in every block.
        prompts: Stacked prompts of one context and many queries.
        bare_prompts: The same queries without it.
        affine: Whether the first bias changes too.

    Raises:
        InputError: A block has attention only.
    """

    def change(block: Block, read: Array, reads: Array) -> WeightChange:
        return best_change(reads, (read - reads) @ _first(block).weight, affine=affine)

    return _patched_in_turn(model, prompts, bare_prompts, change)


def patch_errors(
    model: Transformer, patch: Patch, prompts: Any, bare_prompts: Any
) -> tuple[Float[Array, " prompt"], Float[Array, " prompt"]]:
    """Distances of the last answers to ``bare_prompts`` from those to ``prompts``: with the patch, and without.

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
    """Inputs of the dense layers of each block, and the stream beside them, at the last token of stacked prompts."""
    for block in model.blocks:
        _first(block)
    activations = jax.vmap(lambda prompt: model.trace(prompt).activations)(prompts)
    streams = [activations[f"block{i}.middle"][:, -1] for i in range(len(model.blocks))]
    return [
        (block.norms[1](stream) if block.norm == "pre" else stream, stream)
        for block, stream in zip(model.blocks, streams, strict=True)
    ]


def _patched_in_turn(model: Transformer, prompts: Any, bare_prompts: Any, change: Any) -> Patch:
    """The first block, then the second as it is with the first one patched, and so on."""
    targets, current = block_inputs(model, prompts), model
    first: list[WeightChange] = []
    last: list[Array] = []
    for i, block in enumerate(model.blocks):
        (read, stream), (reads, streams) = targets[i], block_inputs(current, bare_prompts)[i]
        first.append(change(block, read, reads))
        last.append(jnp.mean(stream - streams, axis=0))
        current = eqx.tree_at(lambda m, i=i: m.blocks[i], current, _changed(block, first[i], last[i]))
    return Patch(tuple(first), tuple(last))


def _first(block: Block) -> Dense:
    """The first dense layer."""
    if block.mlp is None:
        raise expected("model", "dense layers in every block", "attention only", "BlockOptions(mlp=(...,))")
    if block.parallel:
        raise expected("model", "dense layers that read the stream after attention", "parallel ones", "parallel=False")
    if not isinstance(block.mlp, Perceptron) or block.mlp.layers[0].bias is None:
        raise expected("model", "dense layers with biases, without a gate", kind_of(block.mlp))
    return block.mlp.layers[0]


def _changed(block: Block, first: WeightChange, last: Array) -> Block:
    def parts(of: Any) -> Any:
        return of.mlp.layers[0].weight, of.mlp.layers[0].bias

    layer = _first(block)
    block = eqx.tree_at(parts, block, (layer.weight + first.weight, layer.bias + first.bias))  # pyright: ignore[reportOptionalOperand]
    return eqx.tree_at(lambda of: of.mlp.layers[-1].bias, block, replace_fn=lambda bias: bias + last)
