r"""Comparison of the weights of two linear attentions, after fixing what does not change answers.

A layer computes with :math:`P_l` and :math:`Q_l` through their product alone, so :math:`(sP_l, Q_l/s)` is the same
layer for any :math:`s\ne0`: the *gauge*. Some entries have no effect on answers.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float, PRNGKeyArray

from icllab.constructions.descent import gradient_descent
from icllab.core.errors import InputError, expected, require_integer
from icllab.core.protocols import AbstractTask
from icllab.diagnostics.behaviour.answers import (
    EveryPosition,
    answers,
    heaviest_share,
    mean_over_prompts,
    means_and_errors,
)
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.models.linear.generalised import GeneralisedAttention
from icllab.models.linear.linear_attention import LinearAttention
from icllab.training.ensembles import Ensemble


def as_linear_attention(predictor: Any) -> LinearAttention | None:
    """A predictor as linear attention, if it is one or an algorithm with a construction; else None."""
    if isinstance(predictor, LinearAttention):
        return predictor
    if isinstance(predictor, GeneralisedAttention):
        plain = predictor.similarity == "linear" and predictor.diagonal is None
        return predictor.linear_attention() if plain else None
    try:
        return as_linear_attention(gradient_descent(predictor))
    except InputError:
        return None


def align(model: LinearAttention, reference: LinearAttention) -> tuple[LinearAttention, LinearAttention]:
    r"""Transform both models to one gauge: unused entries are zero, layers are balanced, signs agree.

    .. math:: \|P_l\| = \|Q_l\|, \qquad \langle P_l, P_l'\rangle + \langle Q_l, Q_l'\rangle \ge 0

    in Frobenius norm, by :math:`(sP_l, Q_l/s)` with :math:`|s| = \sqrt{\|Q_l\|/\|P_l\|}`; a layer with a zero matrix
    becomes zero. No layer changes its output. A one-layer model that reads its answer with the opposite sign gets the
    sign of ``reference``, and -P.

    Raises:
        InputError: The models have different conventions or shapes.

    Derived: docs/identification.md, The gauge.
    """
    if model.sign != reference.sign and model.layers == reference.layers == 1:
        model = dataclasses.replace(model, p=-model.p, sign=reference.sign)
    if _conventions(model) != _conventions(reference):
        names = "(layers, dim, sign, query_is_key, normalised, causal)"
        raise expected("reference", f"the conventions {names} = {_conventions(model)}", _conventions(reference))
    (p, q), (of_p, of_q) = _balance(*_used_entries(model)), _balance(*_used_entries(reference))
    inner = (p * of_p + q * of_q).sum((1, 2), keepdims=True)
    sign = np.where(inner < 0, -1.0, 1.0)
    return (
        dataclasses.replace(model, p=jnp.asarray(sign * p, model.p.dtype), q=jnp.asarray(sign * q, model.q.dtype)),
        dataclasses.replace(reference, p=jnp.asarray(of_p, reference.p.dtype), q=jnp.asarray(of_q, reference.q.dtype)),
    )


def relative_distance(model: LinearAttention, reference: LinearAttention) -> float:
    """Value of :func:`weight_distance` for one model.

    Raises:
        InputError: As :func:`align`.
    """
    left, right = align(model, reference)
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in ((left.p, right.p), (left.q, right.q))]
    size = sum((b**2).sum() for _, b in pairs)
    squares = sum(((a - b) ** 2).sum() for a, b in pairs)
    return float(np.sqrt(squares / size)) if size > 0 else float(np.inf if squares > 0 else 0.0)


def weight_distance(model: Any, reference: Any) -> xr.DataArray:
    r"""Distance of a network's weights to a reference, in one gauge and relative to the norm of the reference.

    .. math:: \sqrt{\frac{\sum_l\|P_l - P_l'\|^2 + \|Q_l - Q_l'\|^2}{\sum_l\|P_l'\|^2 + \|Q_l'\|^2}}

    Distance zero implies equal answers to every prompt. The converse holds except in degenerate cases: if Q has rank
    one, its left factor and the last row of P can be exchanged.

    Args:
        model: Linear attention, an algorithm that has a construction, or
            :mod:`several <icllab.diagnostics.predictor_axes>`.
        reference: Network of that kind, :math:`P'` and :math:`Q'`.

    Returns:
        Distance over the axes of the networks.

    Raises:
        InputError: There is no construction, or the two have different conventions or shapes.

    Derived: docs/identification.md, The gauge.
    """
    end = _require_linear("reference", reference)
    axes = PredictorAxes.from_predictors(model, "model")

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        networks = [_require_linear("model", members.member(i)) for i in range(members.size)]
        return {"weight_distance": np.array([relative_distance(network, end) for network in networks])}

    return axes.to_dataset(axes.measure(measure))["weight_distance"]


def interpolate(
    model: Any,
    reference: Any,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    points: int = 11,
    prompts: int = 4096,
    block: int = 256,
) -> xr.Dataset:
    r"""Loss on the straight line from a network's weights to a construction's weights.

    .. math:: P_l(t) = (1 - t)P_l + tP_l', \qquad Q_l(t) = (1 - t)Q_l + tQ_l', \qquad t \in [0, 1]

    in the gauge of :func:`align`. A barrier separates two different solutions.

    Args:
        model: Network at t = 0, or several, as for :func:`weight_distance`.
        reference: Network at t = 1.
        task: Task that samples the prompts, the same for every t, and owns the loss.
        key: A key, as for :func:`~icllab.diagnostics.behaviour.lengths.per_length`; so are ``prompts`` and ``block``.
        points: Number of values of t including both ends, at least 2.

    Returns:
        Over the axes of the networks and ``interpolation`` (t): ``loss``, the mean over the positions answered, and
        ``standard_error``; ``difference`` from the loss of the network, prompt by prompt, and ``difference_error``;
        ``heaviest``, the share of the loss that the ten largest terms carry.

    Raises:
        InputError: There is no construction, conventions differ, or there are too few points.

    Source: [vonOswald23].
    Derived: docs/identification.md, The gauge.
    """
    require_integer("points", points, least=2)
    end = _require_linear("reference", reference)
    axes = PredictorAxes.from_predictors(model, "model")
    along = np.linspace(0.0, 1.0, points)

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        lines = [_line(_require_linear("model", members.member(i)), end, along) for i in range(members.size)]
        # All members at all t form one ensemble, with one compiled program and the same prompts.
        stack = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *lines)
        line = Ensemble(stack, {"seed": np.arange(members.size * points)})
        losses = answers(EveryPosition(), line, task, key=key, prompts=prompts, block=block).mean(2)
        terms = np.moveaxis(losses.reshape(members.size, points, prompts), 2, 0)
        loss, error = mean_over_prompts(terms)
        differences = means_and_errors({"difference": terms - terms[:, :, :1]})
        return {"loss": loss, "standard_error": error} | differences | {"heaviest": heaviest_share(terms)}

    return axes.to_dataset(axes.measure(measure), {"interpolation": along}, prompts=prompts)


def _line(model: LinearAttention, end: LinearAttention, along: Float[np.ndarray, " point"]) -> LinearAttention:
    """Networks on the line, stacked on a leading axis."""
    left, right = align(model, end)
    t = jnp.asarray(along, left.p.dtype)[:, None, None, None]
    p, q = ((1 - t) * a[None] + t * b[None] for a, b in ((left.p, right.p), (left.q, right.q)))
    return eqx.tree_at(lambda m: (m.p, m.q), dataclasses.replace(model, sign=left.sign), (p, q))


def _require_linear(name: str, value: Any) -> LinearAttention:
    attention = as_linear_attention(value)
    if attention is None:
        raise expected(name, "linear attention, or an algorithm with a construction", type(value).__name__)
    return attention


def _conventions(model: LinearAttention) -> tuple[Any, ...]:
    # In one layer the updates of the examples have no effect, so that causality does not matter.
    causal = model.causal and model.layers > 1
    return (model.layers, model.dim, model.sign, model.query_is_key, model.normalised, causal)


def _used_entries(model: LinearAttention) -> tuple[np.ndarray, np.ndarray]:
    """P and Q with zeros for entries without effect: input rows of the last P, last column of a single Q."""
    p, q = np.array(model.p, float), np.array(model.q, float)
    p[-1, :-1] = 0
    if model.layers == 1:
        q[:, :, -1] = 0
    return p, q


def _balance(
    p: Float[np.ndarray, "layer token token"], q: Float[np.ndarray, "layer token token"]
) -> tuple[np.ndarray, np.ndarray]:
    of_p, of_q = (np.sqrt((matrices**2).sum((1, 2), keepdims=True)) for matrices in (p, q))
    is_nonzero = (of_p > 0) & (of_q > 0)
    root = np.sqrt(np.where(is_nonzero, of_q, 1.0) / np.where(is_nonzero, of_p, 1.0))
    return np.where(is_nonzero, root * p, 0.0), np.where(is_nonzero, q / root, 0.0)
