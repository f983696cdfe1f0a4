r"""The loss of a part of a model: of one head's weights, with the others held.

.. math:: \hat\lambda_U = n\beta\,\bigl(E[L(u, v^*)] - L(u^*, v^*)\bigr), \qquad
          u \sim \exp\Bigl(-n\beta\,L(u, v^*) - \frac\gamma2\lVert u-u^*\rVert^2\Bigr)

for :math:`w = (u, v)`. Restricted to weights alone, L is the loss on all data; restricted to data too, it is that of
one context, on the prompts of that context. The number is a coefficient only if :math:`w^*` minimises the loss of that
context: elsewhere the estimate warns.

Source: [Wang24].
Derived: docs/routing.md, Parts of a model.
"""

from collections.abc import Callable
from numbers import Real
from typing import Any

import equinox as eqx
import jax
import numpy as np

from icllab.core.errors import expected
from icllab.diagnostics.sampling.priors import Prior
from icllab.diagnostics.sampling.sampled_losses import HeldLoss, require_loss, vector_loss


def restricted_loss(
    loss: Any, at: Any, weights: Any, data: Any, prior: Prior | None = None
) -> tuple[HeldLoss, Any, Prior | None]:
    """The loss as a function of the selected weights, these weights at the point, and their prior.

    Raises:
        InputError: There are no such weights, or the loss does not depend on them.
    """
    partial_loss, weights, part = held(loss, at, weights)
    require_loss(*vector_loss(partial_loss, weights, data))
    _require_effect(partial_loss, weights, data)
    if isinstance(prior, Prior):
        prior = Prior(*(field if isinstance(field, Real) else part(field) for field in vars(prior).values()))
    return partial_loss, weights, prior


def held(function: Any, at: Any, weights: Any) -> tuple[HeldLoss, Any, Callable[[Any], Any]]:
    """A function of parameters as one of the selected weights, these at the point, and what selects them of a tree."""
    mask = _mask(at, weights)

    def part(tree: Any) -> Any:
        return jax.tree.map(lambda chosen, leaf: _entries(leaf, chosen), mask, tree)

    entries = jax.tree.map(lambda chosen: None if isinstance(chosen, bool) else np.nonzero(chosen), mask)
    constants = jax.tree.map(lambda chosen, leaf: None if chosen is True else leaf, mask, at)
    return HeldLoss(function, constants, entries), part(at), part


def _entries(leaf: Any, chosen: Any) -> Any:
    if isinstance(chosen, bool):
        return leaf if chosen else None
    return leaf[np.nonzero(chosen)]


def _mask(at: Any, weights: Any) -> Any:
    """The tree with True for every floating-point array that is selected, an array for a part of one, and else False.

    ``weights`` is a function as for ``equinox.tree_at``, or a mask: a model of booleans may be callable too.
    """

    def chosen(leaf: Any, mask: Any) -> Any:
        if leaf is None:  # what of a network is no parameter
            return False
        mask = np.asarray(mask) & eqx.is_inexact_array(leaf)
        if mask.shape not in ((), np.shape(leaf)):
            raise ValueError(f"a mask of shape {mask.shape} for {np.shape(leaf)}")
        return mask if mask.any() and not mask.all() else bool(mask.any())

    every, empty = jax.tree.map(eqx.is_inexact_array, at), jax.tree.map(lambda _: False, at)
    is_mask = all(np.asarray(leaf).dtype == bool for leaf in jax.tree.leaves(weights))
    try:
        tree = weights if is_mask else eqx.tree_at(weights, empty, weights(every))
        mask = jax.tree.map(chosen, at, tree, is_leaf=lambda leaf: leaf is None)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise expected("weights", "parts of the tree, as in equinox.tree_at, or a mask like it", first) from error
    if not any(np.any(leaf) for leaf in jax.tree.leaves(mask)):
        raise expected("weights", "parts with floating-point arrays", "none")
    return mask


def _require_effect(partial_loss: HeldLoss, part: Any, data: Any) -> None:
    """Raise if the loss is the same beside the point, and its derivative along the way is zero."""
    samples = () if data is None else (data,)
    beside = jax.tree.map(
        lambda leaf: leaf + 0.1 * (1 + abs(leaf)) * np.cos(np.arange(leaf.size)).reshape(leaf.shape).astype(leaf.dtype),
        part,
    )
    level, level_beside = (np.sum(np.asarray(partial_loss(weights, *samples))) for weights in (part, beside))
    # Beside a large constant a change may be lost in rounding, which a derivative is not.
    if level == level_beside and not np.any(jax.jvp(lambda w: partial_loss(w, *samples), (beside,), (beside,))[1]):
        raise expected("weights", "weights that the loss depends on", "some that change nothing")
