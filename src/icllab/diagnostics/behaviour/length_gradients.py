r"""How much of the whole gradient is that of each context length."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_integer
from icllab.core.protocols import AbstractTask, declared
from icllab.diagnostics.behaviour.answers import drawn
from icllab.diagnostics.behaviour.lengths import counts_of
from icllab.diagnostics.cases import Cases
from icllab.training.ensembles import Ensemble

CLEAR = 3.0  # standard errors from zero, below which a square of the gradient has no shares


def gradient_shares(
    predictors: Any,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    prompts: int = 1024,
    groups: int = 16,
    counts: Sequence[float] | None = None,
) -> xr.Dataset:
    r"""Projection of each length's gradient on the whole one, as a share of its square.

    .. math:: s_i = \frac{v_i \langle g_i, g\rangle}{|g|^2}, \qquad g_i = \nabla_w L^{(i)}, \quad g = \sum_i v_i g_i

    with :math:`L^{(i)}` the expected loss after i examples and w all floating-point arrays of the predictor. The shares
    sum to one; one that is negative belongs to a length whose loss a small step of gradient descent raises, one above
    one to a length that is held back by others. To first order such a step lowers :math:`v_iL^{(i)}` by :math:`s_i` of
    the fall of the whole.

    Prompts are split into groups, and products are those of gradients on different groups, so that numerator and
    denominator have no bias of the noise in either; errors are those of a jackknife over groups.

    Args:
        predictors: Differentiable predictor with parameters, or :mod:`several <icllab.diagnostics.cases>`.
        task: Task that samples the prompts and owns the loss.
        key: Key of the prompts, which should not be those of training.
        prompts: Number of prompts, a multiple of ``groups``.
        groups: Number of groups, at least 8. Memory has as many gradients of every length.
        counts: How often each length counts, :math:`v_i`; None: once.

    Returns:
        Over the axes of the predictors: ``gradient_share`` over ``position``, NaN where the predictor does not answer,
        and where the square of the gradient is not three of its errors above zero; ``gradient_square``, the estimate of
        :math:`|g|^2`, which may be negative. Each with an ``_error``.

    Raises:
        InputError: A predictor has no gradient or no parameters, prompts do not divide into the groups, or counts are
            not one number of at least 0 for each position.

    Derived: docs/lengths.md, Shares of the gradient.
    """
    require_integer("groups", groups, least=8)
    require_integer("prompts", prompts, least=groups)
    if prompts % groups:
        raise expected("prompts", f"a multiple of the {groups} groups", prompts)
    cases = Cases.of(predictors, task=task, key=key)
    asked = drawn(task, key=key, prompts=prompts)
    asked = jax.tree.map(lambda leaf: leaf.reshape(groups, prompts // groups, *leaf.shape[1:]), asked)
    positions = jax.eval_shape(lambda k: task.sample(key=k), key).positions
    often = counts_of(positions, counts)

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        rows = [_shares(_products(members.member(i), task, asked, often)) for i in range(members.size)]
        found = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        for name in ("gradient_share", "gradient_share_error"):
            unanswered = np.full((members.size, positions - found[name].shape[1]), np.nan)
            found[name] = np.concatenate([unanswered, found[name]], axis=1)
        return found

    return cases.dataset(cases.measured(measure), {"position": np.arange(positions)}, prompts=prompts, groups=groups)


def _products(
    member: Any, task: AbstractTask, asked: Any, often: Float[np.ndarray, " position"]
) -> Float[np.ndarray, "answered group group"]:
    """Of the gradient of each length on one group with the whole gradient on another."""
    params, rest = eqx.partition(member, eqx.is_inexact_array)
    if not (declared(member, "differentiable") and jax.tree.leaves(params)):
        raise expected("predictors", "differentiable ones with floating-point arrays", type(member).__name__)
    return np.asarray(_compiled(params, rest, task, asked, jnp.asarray(often, float)), np.float64)


@eqx.filter_jit
def _compiled(
    params: Any, rest: Any, task: AbstractTask, asked: Any, often: Float[Array, " position"]
) -> Float[Array, "answered group group"]:
    def losses(weights: Any, prompts: Any) -> Float[Array, " answered"]:
        network = eqx.combine(weights, rest)
        mean = jnp.mean(jax.vmap(lambda prompt: task.loss(network(prompt), prompt))(prompts), axis=0)
        return mean * often[-mean.shape[0] :]

    def gradients(prompts: Any) -> Float[Array, "answered parameter"]:
        leaves = jax.tree.leaves(jax.jacrev(losses)(params, prompts))
        return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)

    found = jax.lax.map(gradients, asked)
    return jnp.einsum("apw,bw->pab", found, jnp.sum(found, axis=1))


def _shares(products: Float[np.ndarray, "answered group group"]) -> dict[str, np.ndarray]:
    """Shares, the square of the gradient, and their jackknife errors."""
    apart = products * (1 - np.eye(products.shape[1]))
    whole = apart.sum((1, 2))
    left = whole - apart.sum(1).T - apart.sum(2).T  # [group, answered]: without the pairs that have the group
    size = len(left)
    square, squares = whole.sum() / (size * (size - 1)), left.sum(1) / ((size - 1) * (size - 2))
    error = _jackknife(squares)
    clear = 1.0 if square > CLEAR * error else np.nan
    return {
        "gradient_share": clear * whole / whole.sum(),
        "gradient_share_error": clear * _jackknife(left / left.sum(1, keepdims=True)),
        "gradient_square": np.asarray(square),
        "gradient_square_error": error,
    }


def _jackknife(left: Float[np.ndarray, "group *rest"]) -> np.ndarray:
    """The error of an estimate from its values without each of the groups."""
    size = len(left)
    return np.asarray(np.sqrt((size - 1) / size * np.sum((left - left.mean(0)) ** 2, axis=0)))
