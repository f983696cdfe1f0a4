r"""Interventions on the three operations of an induction head, in models that answer item-label prompts.

Each takes a model with the activations ``attention1``, ``attention2`` and ``logits`` of
:class:`~icllab.models.induction.item_label_network.ItemLabelNetwork` (the minimal head has them too) and returns a
model that ``fit`` trains as any other; they nest. What is clamped passes no gradient on to what it replaces.
:func:`ablated` takes the heads of a transformer too, :func:`transplanted` any model.
"""

from collections.abc import Callable
from numbers import Integral
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from icllab.core.domains import FRACTION, Domain
from icllab.core.errors import expected
from icllab.core.prompt import ItemLabelPrompt
from icllab.core.protocols import AbstractModel, Edit
from icllab.models.induction.minimal_head import label_mass
from icllab.models.interventions.edits import Edited, EditedBy, edited, edited_by, of_language_models
from icllab.models.interventions.heads import HeadsReplaced, Outputs, head_weights

Tree = TypeVar("Tree")
FLOOR = 1e-6  # of the attention to a label that is not in the context: its logarithm must be finite


def previous_token_clamped(model: AbstractModel, strength: float = 1.0) -> Edited:
    r"""Clamp each label token's attention: ``strength`` y on the item before it, the rest spread evenly.

    .. math:: a_{2k+1,\,j} = \begin{cases} y & j = 2k \\ (1 - y)/(2k + 1) & \text{else} \end{cases}
              \qquad k = 0, \dots, N - 1

    The other rows of ``attention1`` stay as they are.

    Derived: docs/models.md, Clamps.
    """
    return edited(model, _PreviousToken(_share(strength)))


def match_clamped(model: AbstractModel, strength: float = 1.0) -> EditedBy:
    r"""Clamp the query's attention: ``strength`` z on label tokens that show the target, the rest spread evenly.

    .. math:: a_j = \begin{cases} z/n & j \text{ shows the target} \\ (1 - z)/(T - n) & \text{else} \end{cases}

    in ``attention2``, with n tokens that show it. A prompt that has none is left alone.

    Derived: docs/models.md, Clamps.
    """
    return edited_by(model, _Match(_share(strength)))


def copy_clamped(model: AbstractModel, strength: float | None = None) -> EditedBy:
    r"""Replace the classifier by a perfect readout of the labels to which the query attends.

    .. math:: f_l = \ln \max(s_l, 10^{-6}), \quad \text{or} \quad f_l = \xi\, s_l,
              \qquad s_l = \sum_{j \text{ shows } l} a_j

    with a the pattern ``attention2``: its scores are then the logits of the labels in context, and what is not there
    has a small one. With a ``strength`` :math:`\xi` the read-out is linear, which is what a pattern without a softmax
    needs.

    Derived: docs/models.md, Clamps.
    """
    if strength is not None:
        Domain(text="a finite number, or None for the logarithm").require("strength", strength)
    return edited_by(model, _Copy(None if strength is None else float(strength)))


@of_language_models
def ablated(
    model: AbstractModel,
    layer: int | None = None,
    *,
    heads: Any = None,
    outputs: Outputs | None = None,
    tokens: Bool[Array, " token"] | Callable[[Any], Array] | None = None,
) -> Edited | HeadsReplaced:
    """Set the output of one ``layer`` of an item-label network, or of ``heads`` of a transformer, to zero.

    Args:
        model: Item-label network or :class:`~icllab.models.networks.transformer.Transformer`; or a language model of
            ``pretrained.open``, of which the result is one.
        layer: Layer of the item-label network, 1 or 2; None: ``heads`` are given.
        heads: Pairs (block, head) of the transformer, counted from 0; or weights [block, head] from 0, kept, to 1,
            ablated, which may be traced: other heads then compile nothing again. None: ``layer`` is given.
        outputs: Outputs that take the place of the heads', for each block [head, dim] or [token, head, dim], such as
            means of :func:`~icllab.models.interventions.heads.head_outputs`; None: zeros.
        tokens: Mask of the tokens at which they are ablated, or a function of the prompt that gives one; None: all.

    Raises:
        InputError: Not one of ``layer`` and ``heads`` is given, a head does not exist, or the model has none.
    """
    if heads is not None and layer is None:
        return HeadsReplaced(model, head_weights(model, heads), outputs, tokens)
    if heads is not None or isinstance(layer, bool) or not isinstance(layer, Integral) or layer not in (1, 2):
        raise expected("layer", "1 or 2", layer, "or heads=[(block, head)] of a Transformer, without a layer")
    return edited(model, _Ablation(layer))


def transplanted(model: Tree, donor: Any, parts: Callable[[Any], Any]) -> Tree:
    """``model`` with some parts of its weights from a donor, such as ``run.trajectory.at(step).member(0)``.

    Both are models, or stacked members of ensembles; ``parts`` is as ``where`` of ``equinox.tree_at``:
    ``lambda model: model.layers[0]``, or several of them in a tuple.

    Raises:
        InputError: The parts differ in their shapes, or one has none of them.
    """
    try:
        model_parts, donor_parts = parts(model), parts(donor)
    except (AttributeError, IndexError) as error:
        raise expected("parts", "parts that model and donor have", str(error)) from error
    shapes = [
        [leaf.shape for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))] for tree in (model_parts, donor_parts)
    ]
    if shapes[0] != shapes[1]:
        raise expected("donor", f"parts of shapes {shapes[0]}", shapes[1])
    return eqx.tree_at(parts, model, donor_parts)


def _share(strength: float) -> float:
    FRACTION.require("strength", strength)
    return float(strength)


class _PreviousToken(eqx.Module):
    strength: float = eqx.field(static=True)

    def __call__(self, name: str, value: Array) -> Array:
        if name != "attention1":
            return value
        if value.ndim < 2:
            raise expected("model", "two layers, because a single layer attends from the query alone", 1)
        place = np.arange(value.shape[-1])
        uniform = (1 - self.strength) / np.maximum(place, 1)
        pattern = np.where(place[:, None] == place + 1, self.strength, uniform[:, None])
        pattern = np.where(place[:, None] >= place, pattern, 0.0)
        is_label = np.broadcast_to(place[:, None] % 2 == 1, pattern.shape)
        return jnp.where(is_label, jnp.asarray(pattern, value.dtype), value)


class _Match(eqx.Module):
    strength: float = eqx.field(static=True)

    def __call__(self, prompt: ItemLabelPrompt) -> Edit:
        def edit(name: str, value: Array) -> Array:
            if name != "attention2":
                return value
            right = jnp.zeros(value.shape, bool).at[1::2].set(prompt.matches)
            count = jnp.sum(right)
            on_match = self.strength / jnp.maximum(count, 1).astype(value.dtype)
            off_match = (1 - self.strength) / (len(value) - count).astype(value.dtype)
            return jnp.where(count > 0, jnp.where(right, on_match, off_match), value)

        return edit


class _Copy(eqx.Module):
    strength: float | None = eqx.field(static=True)

    def __call__(self, prompt: ItemLabelPrompt) -> Edit:
        attention: dict[str, Array] = {}

        def edit(name: str, value: Array) -> Array:
            if name == "attention2":
                attention[name] = value
            if name != "logits":
                return value
            if "attention2" not in attention:
                raise expected("model", "a model with attention2, the query's attention in a second layer", "none")
            mass = label_mass(attention["attention2"], prompt, value.shape[-1])
            return (jnp.log(jnp.maximum(mass, FLOOR)) if self.strength is None else self.strength * mass)[None]

        return edit


class _Ablation(eqx.Module):
    layer: int = eqx.field(static=True)

    def __call__(self, name: str, value: Array) -> Array:
        return jnp.zeros_like(value) if name == f"update{self.layer}" else value
