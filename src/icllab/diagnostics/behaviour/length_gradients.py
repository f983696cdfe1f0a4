r"""Share of each context length in the gradient of the loss."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_integer
from icllab.core.protocols import AbstractTask, declared, require_task
from icllab.core.result_warnings import warns
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.behaviour.lengths import counts_of
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.models.torch_derivatives import with_autograd
from icllab.training.ensembles import Ensemble
from icllab.training.streams import losses_at

CLEAR = 3.0  # smallest squared gradient that has shares, in standard errors


@warns("gradient shares")
def gradient_shares(
    predictors: Any,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    prompts: int = 1024,
    groups: int = 16,
    counts: Sequence[float] | None = None,
) -> xr.Dataset:
    r"""Projection of each length's gradient on the total gradient, as a share of its square.

    .. math:: s_i = \frac{v_i \langle g_i, g\rangle}{|g|^2}, \qquad g_i = \nabla_w L^{(i)}, \quad g = \sum_i v_i g_i

    with :math:`L^{(i)}` the expected loss after i examples and w all floating-point arrays of the predictor. The shares
    sum to one. To first order a small step of gradient descent lowers :math:`v_iL^{(i)}` by :math:`s_i` times the fall
    of the total loss, and raises it if :math:`s_i` is negative. A share above one belongs to a length that the other
    lengths hold back.

    Products are taken between gradients on different groups of prompts, so that noise biases neither numerator nor
    denominator. Errors come from a jackknife over groups.

    Args:
        predictors: Differentiable predictor with parameters, or :mod:`several <icllab.diagnostics.predictor_axes>`.
        task: Task that samples the prompts and owns the loss.
        key: Key of the prompts, which should not be those of training.
        prompts: Number of prompts, a multiple of ``groups``.
        groups: Number G of groups, at least 8. Memory holds one gradient and the activations of one group; time is that
            of G gradients and :math:`G^2` directional derivatives on a group.
        counts: Weight :math:`v_i` of each length; None: 1.

    Returns:
        Over the axes of the predictors: ``gradient_share`` over ``position``, NaN where the predictor does not answer,
        and if the squared gradient is less than three standard errors above zero; ``gradient_square``, an unbiased
        estimate of :math:`|g|^2`, which may be negative. Each with an ``_error``.

    Raises:
        InputError: A predictor has no gradient or no parameters, ``prompts`` is not a multiple of ``groups``, or
            ``counts`` does not have one number >= 0 for each position.

    Derived: docs/lengths.md, Shares of the gradient.
    """
    require_task(task)
    require_integer("groups", groups, least=8)
    require_integer("prompts", prompts, least=groups)
    if prompts % groups:
        raise expected("prompts", f"a multiple of the {groups} groups", prompts)
    axes = PredictorAxes.from_predictors(predictors, task=task, key=key)
    prompt_groups = sample_prompts(task, key=key, prompts=prompts)
    prompt_groups = jax.tree.map(lambda leaf: leaf.reshape(groups, prompts // groups, *leaf.shape[1:]), prompt_groups)
    positions = jax.eval_shape(lambda k: task.sample(key=k), key).positions
    weights = counts_of(positions, counts)

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        rows = [_shares(_products(members.member(i), task, prompt_groups, weights)) for i in range(members.size)]
        shares = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        for name in ("gradient_share", "gradient_share_error"):
            missing = np.full((members.size, positions - shares[name].shape[1]), np.nan)
            shares[name] = np.concatenate([missing, shares[name]], axis=1)
        return shares

    return axes.to_dataset(axes.measure(measure), {"position": np.arange(positions)}, prompts=prompts, groups=groups)


def _products(
    member: Any, task: AbstractTask, prompt_groups: Any, weights: Float[np.ndarray, " position"]
) -> Float[np.ndarray, "answered group group"]:
    """Inner products of each length's gradient on one group with the total gradient on another."""
    member = with_autograd(member)
    params, static = eqx.partition(member, eqx.is_inexact_array)
    if not (declared(member, "differentiable") and jax.tree.leaves(params)):
        raise expected("predictors", "differentiable ones with floating-point arrays", type(member).__name__)
    return np.asarray(_compiled_products(params, static, task, prompt_groups, jnp.asarray(weights, float)), np.float64)


@eqx.filter_jit
def _compiled_products(
    params: Any, static: Any, task: AbstractTask, prompt_groups: Any, weights: Float[Array, " position"]
) -> Float[Array, "answered group group"]:
    answered = 1 if declared(static, "positions") == "last" else len(weights)

    def losses(free: Any, group: Any) -> Float[Array, " answered"]:
        network = eqx.combine(free, static)
        total = group.positions
        mean = losses_at(network, task, group, tuple(range(total - answered, total)), total)
        return mean * weights[total - answered :]

    def along(group: Any) -> Float[Array, "group answered"]:
        """Derivatives along the total gradient on one group: its products with every length's gradient on each."""
        slope = jax.grad(lambda free: jnp.sum(losses(free, group)))(params)
        return jax.lax.map(
            lambda other: jax.jvp(lambda free: losses(free, other), (params,), (slope,))[1], prompt_groups
        )

    return jnp.transpose(jax.lax.map(along, prompt_groups), (2, 1, 0))


def _shares(products: Float[np.ndarray, "answered group group"]) -> dict[str, np.ndarray]:
    """Shares and squared gradient with their jackknife errors."""
    products_apart = products * (1 - np.eye(products.shape[1]))
    whole = products_apart.sum((1, 2))
    remainders = (
        whole - products_apart.sum(1).T - products_apart.sum(2).T
    )  # [group, answered]: without the pairs of that group
    size = len(remainders)
    square, squares = whole.sum() / (size * (size - 1)), remainders.sum(1) / ((size - 1) * (size - 2))
    error = _jackknife(squares)
    clear = 1.0 if square > CLEAR * error else np.nan
    return {
        "gradient_share": clear * whole / whole.sum(),
        "gradient_share_error": clear * _jackknife(remainders / remainders.sum(1, keepdims=True)),
        "gradient_square": np.asarray(square),
        "gradient_square_error": error,
    }


def _jackknife(remainders: Float[np.ndarray, "group *rest"]) -> np.ndarray:
    """Standard error of an estimate from its leave-one-group-out values."""
    size = len(remainders)
    return np.asarray(np.sqrt((size - 1) / size * np.sum((remainders - remainders.mean(0)) ** 2, axis=0)))
