r"""Weights of two linear attentions side by side: what can differ without a consequence is taken away first.

A layer computes with :math:`P_l` and :math:`Q_l` through their product alone, so :math:`(sP_l, Q_l/s)` is the same
layer for any :math:`s\ne0`: the *gauge*. And some entries are never read.
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
from icllab.diagnostics.behaviour.answers import EveryPosition, answers, mean_over_prompts, means_and_errors
from icllab.diagnostics.behaviour.heavy_tails import heaviest_share
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.models.linear.generalised import GeneralisedAttention
from icllab.models.linear.linear_attention import LinearAttention
from icllab.training.ensembles import Ensemble


def as_linear_attention(predictor: Any) -> LinearAttention | None:
    """A predictor as P and Q: linear attention, or the construction of an algorithm that has one; else None."""
    if isinstance(predictor, LinearAttention):
        return predictor
    if isinstance(predictor, GeneralisedAttention):
        plain = predictor.similarity == "linear" and predictor.diagonal is None
        return predictor.linear_attention() if plain else None
    try:
        return as_linear_attention(gradient_descent(predictor))
    except InputError:
        return None


def aligned(model: LinearAttention, other: LinearAttention) -> tuple[LinearAttention, LinearAttention]:
    r"""Both models in one gauge: entries that no answer reads are zero, every layer balanced, with equal signs.

    .. math:: \|P_l\| = \|Q_l\|, \qquad \langle P_l, P_l'\rangle + \langle Q_l, Q_l'\rangle \ge 0

    in Frobenius norm, by :math:`(sP_l, Q_l/s)` with :math:`|s| = \sqrt{\|Q_l\|/\|P_l\|}`; a layer with a zero matrix
    computes nothing and is zero. Every layer of each model computes what it did. A one-layer model that reads its
    answer with the other sign is given the sign of ``other``, with -P.

    Raises:
        InputError: The two have other conventions or shapes: their weights mean different things.

    Derived: docs/identification.md, The gauge.
    """
    if model.sign != other.sign and model.layers == other.layers == 1:
        model = dataclasses.replace(model, p=-model.p, sign=other.sign)
    if _conventions(model) != _conventions(other):
        names = "(layers, dim, sign, query_is_key, normalised, causal)"
        raise expected("other", f"the conventions {names} = {_conventions(model)}", _conventions(other))
    (p, q), (of_p, of_q) = _balanced(*_kept(model)), _balanced(*_kept(other))
    inner = (p * of_p + q * of_q).sum((1, 2), keepdims=True)
    sign = np.where(inner < 0, -1.0, 1.0)
    return (
        dataclasses.replace(model, p=jnp.asarray(sign * p, model.p.dtype), q=jnp.asarray(sign * q, model.q.dtype)),
        dataclasses.replace(other, p=jnp.asarray(of_p, other.p.dtype), q=jnp.asarray(of_q, other.q.dtype)),
    )


def relative_distance(model: LinearAttention, other: LinearAttention) -> float:
    """The number of :func:`weight_distance` for one model.

    Raises:
        InputError: As :func:`aligned`.
    """
    left, right = aligned(model, other)
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in ((left.p, right.p), (left.q, right.q))]
    size = sum((b**2).sum() for _, b in pairs)
    off = sum(((a - b) ** 2).sum() for a, b in pairs)
    return float(np.sqrt(off / size)) if size > 0 else float(np.inf if off > 0 else 0.0)


def weight_distance(model: Any, other: Any) -> xr.DataArray:
    r"""How far a network's weights are from those of another, in one gauge and relative to the other's.

    .. math:: \sqrt{\frac{\sum_l\|P_l - P_l'\|^2 + \|Q_l - Q_l'\|^2}{\sum_l\|P_l'\|^2 + \|Q_l'\|^2}}

    Zero means equal answers to every prompt. The converse holds but for coincidences: where Q has rank one, say, its
    left factor and the last row of P can be exchanged.

    Args:
        model: Linear attention, an algorithm that has a construction, or
            :mod:`several <icllab.diagnostics.predictor_axes>`.
        other: One network of that kind, :math:`P'` and :math:`Q'`.

    Returns:
        The distance over the axes of the networks; a single number for one.

    Raises:
        InputError: There is no construction, or the two have other conventions or shapes.

    Derived: docs/identification.md, The gauge.
    """
    end = _require_linear("other", other)
    axes = PredictorAxes.from_predictors(model, "model")

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        networks = [_require_linear("model", members.member(i)) for i in range(members.size)]
        return {"weight_distance": np.array([relative_distance(one, end) for one in networks])}

    return axes.to_dataset(axes.measure(measure))["weight_distance"]


def interpolate(
    model: Any,
    other: Any,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    points: int = 11,
    prompts: int = 4096,
    block: int = 256,
) -> xr.Dataset:
    r"""The loss on the straight line from a network's weights to a construction's.

    .. math:: P_l(t) = (1 - t)P_l + tP_l', \qquad Q_l(t) = (1 - t)Q_l + tQ_l', \qquad t \in [0, 1]

    in the gauge of :func:`aligned`. A loss that stays low says that the two are one solution, a barrier that they are
    two.

    Args:
        model: Network at t = 0, or several, as of :func:`weight_distance`.
        other: Network at t = 1.
        task: Task that samples the prompts, the same for every t, and owns the loss.
        key: A key, as for :func:`~icllab.diagnostics.behaviour.lengths.per_length`; so are ``prompts`` and ``block``.
        points: Number of values of t, both ends among them; at least 2.

    Returns:
        Over the axes of the networks and ``interpolation`` (t): ``loss``, the mean over the positions answered, and
        ``standard_error``; ``difference`` from the loss of the network, prompt by prompt, and ``difference_error``;
        ``heaviest``, the share of the loss that the ten largest terms carry.

    Raises:
        InputError: There is no construction, the two have other conventions, or there are too few points.

    Source: [vonOswald23].
    Derived: docs/identification.md, The gauge.
    """
    require_integer("points", points, least=2)
    end = _require_linear("other", other)
    axes = PredictorAxes.from_predictors(model, "model")
    along = np.linspace(0.0, 1.0, points)

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        lines = [_line(_require_linear("model", members.member(i)), end, along) for i in range(members.size)]
        # All members at all t are one ensemble: one compiled program, and the same prompts.
        every = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *lines)
        line = Ensemble(every, {"seed": np.arange(members.size * points)})
        found = answers(EveryPosition(), line, task, key=key, prompts=prompts, block=block).mean(2)
        terms = np.moveaxis(found.reshape(members.size, points, prompts), 2, 0)
        loss, error = mean_over_prompts(terms)
        differences = means_and_errors({"difference": terms - terms[:, :, :1]})
        return {"loss": loss, "standard_error": error} | differences | {"heaviest": heaviest_share(terms)}

    return axes.to_dataset(axes.measure(measure), {"interpolation": along}, prompts=prompts)


def _line(model: LinearAttention, end: LinearAttention, along: Float[np.ndarray, " point"]) -> LinearAttention:
    """The networks on the line, stacked on a leading axis."""
    left, right = aligned(model, end)
    t = jnp.asarray(along, left.p.dtype)[:, None, None, None]
    p, q = ((1 - t) * a[None] + t * b[None] for a, b in ((left.p, right.p), (left.q, right.q)))
    return eqx.tree_at(lambda m: (m.p, m.q), dataclasses.replace(model, sign=left.sign), (p, q))


def _require_linear(name: str, given: Any) -> LinearAttention:
    found = as_linear_attention(given)
    if found is None:
        raise expected(name, "linear attention, or an algorithm with a construction", type(given).__name__)
    return found


def _conventions(model: LinearAttention) -> tuple[Any, ...]:
    # In one layer nobody reads what becomes of the examples, so it makes no difference which of them they see.
    causal = model.causal and model.layers > 1
    return (model.layers, model.dim, model.sign, model.query_is_key, model.normalised, causal)


def _kept(model: LinearAttention) -> tuple[np.ndarray, np.ndarray]:
    """P without the rows of inputs in its last layer, Q of one layer without its last column: no answer reads these."""
    p, q = np.array(model.p, float), np.array(model.q, float)
    p[-1, :-1] = 0
    if model.layers == 1:
        q[:, :, -1] = 0
    return p, q


def _balanced(
    p: Float[np.ndarray, "layer token token"], q: Float[np.ndarray, "layer token token"]
) -> tuple[np.ndarray, np.ndarray]:
    of_p, of_q = (np.sqrt((matrices**2).sum((1, 2), keepdims=True)) for matrices in (p, q))
    there = (of_p > 0) & (of_q > 0)
    root = np.sqrt(np.where(there, of_q, 1.0) / np.where(there, of_p, 1.0))
    return np.where(there, root * p, 0.0), np.where(there, q / root, 0.0)
