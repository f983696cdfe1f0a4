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
from typing import Any

import equinox as eqx
import jax
import numpy as np

from icllab.core.errors import expected
from icllab.diagnostics.sampling.sampled_losses import require_loss, vector_loss


class HeldLoss(eqx.Module):
    """A loss as a function of some weights; the others are held."""

    loss: Any
    constants: Any

    def __call__(self, part: Any, *samples: Any) -> Any:
        """The loss of the whole."""
        return self.loss(eqx.combine(part, self.constants), *samples)


def restricted_loss(loss: Any, at: Any, weights: Callable[[Any], Any], data: Any) -> tuple[HeldLoss, Any]:
    """The loss as a function of the selected weights, and these weights at the point.

    Raises:
        InputError: There are no such weights, or the loss does not depend on them.
    """
    part, constants = eqx.partition(at, _mask(at, weights))
    partial_loss = HeldLoss(loss, constants)
    require_loss(*vector_loss(partial_loss, part, data))
    _require_effect(partial_loss, part, data)
    return partial_loss, part


def _mask(at: Any, weights: Callable[[Any], Any]) -> Any:
    """The tree with True for every floating-point array that is selected, and False else."""
    every, empty = jax.tree.map(eqx.is_inexact_array, at), jax.tree.map(lambda _: False, at)
    try:
        mask = eqx.tree_at(weights, empty, weights(every))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise expected("weights", "parts of the tree, as in equinox.tree_at", first) from error
    if not any(leaf.size for leaf in jax.tree.leaves(eqx.filter(at, mask))):
        raise expected("weights", "parts with floating-point arrays", "none")
    return mask


def _require_effect(partial_loss: HeldLoss, part: Any, data: Any) -> None:
    """Raise if the loss beside the point is the loss at the point, and has no derivative along the way."""
    samples = () if data is None else (data,)
    beside = jax.tree.map(
        lambda leaf: leaf + 0.1 * (1 + abs(leaf)) * np.cos(np.arange(leaf.size)).reshape(leaf.shape).astype(leaf.dtype),
        part,
    )
    level, level_beside = (np.sum(np.asarray(partial_loss(weights, *samples))) for weights in (part, beside))
    # Beside a large constant a change may be lost in rounding, which a derivative is not.
    if level == level_beside and not np.any(jax.jvp(lambda w: partial_loss(w, *samples), (beside,), (beside,))[1]):
        raise expected("weights", "weights that the loss depends on", "some that change nothing")
