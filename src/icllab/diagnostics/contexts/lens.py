r"""Logit lens: the answer of a network that stops after a layer."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractModel, AbstractTask, Predictor, position_losses, require_task
from icllab.diagnostics.behaviour.answers import means_and_errors, require_unmasked, sample_prompts
from icllab.diagnostics.contexts.distances import divergence, divergence_kind
from icllab.models.induction.item_label_network import ItemLabelNetwork
from icllab.models.networks.transformer import Transformer

ReadOut = Callable[[Float[Array, " width"]], Array]


@functools.singledispatch
def residual_stream(model: Any) -> tuple[tuple[str, ...], ReadOut]:
    """Names of the activations of a model's residual stream, in order, and the read-out of one token."""
    hint = "for an edited model give the inner model"
    raise expected(
        "model", "one with a residual stream and a read-out, such as Transformer", type(model).__name__, hint
    )


@residual_stream.register
def _(model: Transformer) -> tuple[tuple[str, ...], ReadOut]:
    def read(token: Float[Array, " width"]) -> Array:
        rows = token[None] if model.final_norm is None else model.final_norm(token[None])
        return model.answers(rows)

    return ("embedding", *(f"block{i}" for i in range(len(model.blocks)))), read


@residual_stream.register
def _(model: ItemLabelNetwork) -> tuple[tuple[str, ...], ReadOut]:
    return ("tokens", *(f"layer{i + 1}" for i in range(len(model.layers)))), model.classifier


def logit_lens(
    model: Predictor,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    query_length: int = 1,
    prompts: int = 1024,
) -> xr.Dataset:
    r"""Loss of a model's own read-out of its residual stream after every layer, with and without the context.

    .. math:: T^{(l)}(c, x) = \mathrm{readout}\big(h^{(l)}\big), \qquad
              \mathrm{distance}_l = E\, \mathrm{KL}\big(T(c, x) \,\Vert\, T^{(l)}(c, x)\big)

    where :math:`h^{(0)}` is the embedding of the last token, and the read-out of the last layer is the model's answer.
    A layer norm before the read-out belongs to it.

    Args:
        model: A :class:`~icllab.models.networks.transformer.Transformer` or
            :class:`~icllab.models.induction.item_label_network.ItemLabelNetwork`.
        task: Task that samples the prompts and owns the loss.
        key: Key of the prompts.
        query_length: Number of positions of the query without context.
        prompts: Number of prompts, at least 2.

    Returns:
        Over ``layer``, 0 being the embedding: ``loss`` of the last answer and ``distance`` from the model's answer, in
        the divergence of :func:`~icllab.diagnostics.contexts.maps.context_map`; ``loss_alone`` and ``distance_alone``
        without the context. Each has an ``_error`` over prompts.

    Raises:
        InputError: The model has no trace, residual stream or read-out, or an argument is out of range.

    Derived: docs/context-map.md, The logit lens.
    """
    require_task(task)
    require_key(key)
    require_integer("prompts", prompts, least=2)
    if not isinstance(model, AbstractModel):
        raise expected("model", "one with a trace of named activations", type(model).__name__)
    residual_stream(model)
    sampled = sample_prompts(task, key=key, prompts=prompts)
    require_unmasked("task", sampled)
    example = jax.tree.map(lambda leaf: leaf[0], sampled)
    if not 1 <= query_length <= example.positions:
        raise expected("query_length", f"an integer from 1 to {example.positions}", query_length)
    answer = eqx.filter_eval_shape(lambda: model(example)[-1].reshape(-1))
    kind = divergence_kind(task, answer)
    statistics: dict[str, np.ndarray] = {}
    for suffix, size in (("", example.positions), ("_alone", query_length)):
        losses, distances = _read(model, task, sampled, size, kind)
        samples = {f"loss{suffix}": losses, f"distance{suffix}": distances}
        statistics |= means_and_errors({name: np.asarray(values, float) for name, values in samples.items()})
    variables = {name: ("layer", values) for name, values in statistics.items()}
    layers = np.arange(len(residual_stream(model)[0]))
    return xr.Dataset(variables, coords={"layer": layers}, attrs={"prompts": prompts, "query_length": query_length})


@eqx.filter_jit
def _read(model: Any, task: AbstractTask, prompts: Any, size: int, kind: str) -> tuple[Array, Array]:
    """Loss and distance, [prompt, layer]."""
    names, read = residual_stream(model)

    def measure(prompt: Prompt) -> tuple[Array, Array]:
        query = prompt.alone(prompt.positions - 1, size=size)
        trace = model.trace(query)
        streams = [trace.activations[name] for name in names]
        answers = [read(stream[-1] if stream.ndim > 1 else stream) for stream in streams]
        losses = jnp.stack([position_losses(task, answer, query)[-1] for answer in answers])
        final = trace.prediction[-1].reshape(-1)
        return losses, jnp.stack([divergence(kind, final, answer.reshape(-1)) for answer in answers])

    return jax.vmap(measure)(prompts)
