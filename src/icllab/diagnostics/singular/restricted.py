r"""Learning coefficients of a part of a model: of one head's weights, on one context's data, or of both."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected
from icllab.diagnostics.singular.asymptotic_coefficients import learning_coefficient

Where = Callable[[Any], Any]


class Held(eqx.Module):
    """A loss as a function of the weights that may move; the others are held."""

    loss: Any
    others: Any

    def __call__(self, part: Any, *samples: Any) -> Any:
        """The loss of the whole."""
        return self.loss(eqx.combine(part, self.others), *samples)


def restricted_coefficient(
    loss: Callable[..., Any], at: Any, *, weights: Where, key: PRNGKeyArray, **how: Any
) -> xr.Dataset:
    r"""The learning coefficient of some weights, with the others held where they are.

    .. math:: \hat\lambda_U = n\beta\,\bigl(E[L(u, v^*)] - L(u^*, v^*)\bigr), \qquad
              u \sim \exp\Bigl(-n\beta\,L(u, v^*) - \frac\gamma2\lVert u-u^*\rVert^2\Bigr)

    for :math:`w = (u, v)`. Restricted to weights alone, L is the loss on all data; restricted to data too, ``loss`` is
    that of one context, on the prompts of that context. A coefficient restricted to data alone is
    :func:`learning_coefficient <icllab.diagnostics.singular.asymptotic_coefficients.learning_coefficient>` of that
    loss. It is one only if :math:`w^*` minimises the loss of that context: elsewhere the estimate warns.

    Args:
        loss: A function of all parameters (and of samples, with ``data``), in nats per sample.
        at: :math:`w^*`, a tree with the parameters.
        weights: The weights u that may move, as ``where`` of ``equinox.tree_at``: of a model with layers
            ``lambda m: m.layers[0].query``.
        key: Key of the chains.
        **how: Arguments of ``learning_coefficient``: ``n``, ``nbeta``, ``sampler``, ``data``, ``localization``.

    Returns:
        What ``learning_coefficient`` returns, of u. The default localization is that of u's own mean square.

    Raises:
        InputError: There are no such weights, the loss does not feel them, or as ``learning_coefficient``.

    Source: [Wang24].
    Derived: docs/routing.md, Parts of a model.
    """
    part, others = eqx.partition(at, _mask(at, weights))
    held = Held(loss, others)
    _require_felt(held, part, how.get("data"))
    return learning_coefficient(held, part, key=key, **how)


def _mask(at: Any, where: Where) -> Any:
    """The tree with True for every floating-point array that is chosen, and False else."""
    every, none = jax.tree.map(eqx.is_inexact_array, at), jax.tree.map(lambda _: False, at)
    try:
        mask = eqx.tree_at(where, none, where(every))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise expected("weights", "parts of the tree, as in equinox.tree_at", first) from error
    if not any(leaf.size for leaf in jax.tree.leaves(eqx.filter(at, mask))):
        raise expected("weights", "parts with floating-point arrays", "none")
    return mask


def _require_felt(held: Held, part: Any, data: Any) -> None:
    """Refuse weights that do not change the loss beside the point."""
    samples = () if data is None else (data,)
    beside = jax.tree.map(
        lambda leaf: leaf + 0.1 * (1 + abs(leaf)) * np.cos(np.arange(leaf.size)).reshape(leaf.shape).astype(leaf.dtype),
        part,
    )
    here, there = (np.sum(np.asarray(held(some, *samples))) for some in (part, beside))
    if here == there:
        raise expected("weights", "weights that the loss feels", "some that change nothing")
