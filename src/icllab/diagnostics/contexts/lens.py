r"""The logit lens: what a network would answer if it stopped after a layer."""

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
from icllab.core.protocols import AbstractModel, AbstractTask, Predictor
from icllab.diagnostics.behaviour.answers import means_and_errors, sample_prompts
from icllab.diagnostics.contexts.distances import divergence, kind_of
from icllab.models.induction.item_label_network import ItemLabelNetwork
from icllab.models.networks.transformer import Transformer

ReadOut = Callable[[Float[Array, " width"]], Array]


@functools.singledispatch
def residual_stream(model: Any) -> tuple[tuple[str, ...], ReadOut]:
    """The names of a model's residual stream, first to last, and its read-out of one token as a prediction there."""
    hint = "edited models: give the model within"
    raise expected(
        "model", "one with a residual stream and a read-out, such as Transformer", type(model).__name__, hint
    )


@residual_stream.register
def _(model: Transformer) -> tuple[tuple[str, ...], ReadOut]:
    def read(token: Float[Array, " width"]) -> Array:
        rows = token[None] if model.final_norm is None else model.final_norm(token[None])
        answer = model.readout(rows)
        return answer[:, 0] if model.embedding.arrangement.outputs is None else answer

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
    r"""At which layer a context has done its work: the model's own read-out of its residual stream after every layer.

    .. math:: T^{(l)}(c, x) = \mathrm{readout}\big(h^{(l)}\big), \qquad
              \mathrm{distance}_l = E\, \mathrm{KL}\big(T(c, x) \,\Vert\, T^{(l)}(c, x)\big)

    where :math:`h^{(0)}` is the embedding of the last token, and the last layer's is the model's answer. A layer norm
    before the read-out is part of it. The same without the context, from the last query alone.

    Args:
        model: A :class:`~icllab.models.networks.transformer.Transformer` or
            :class:`~icllab.models.induction.item_label_network.ItemLabelNetwork`.
        task: Task that samples the prompts and owns the loss.
        key: Key of the prompts.
        query_length: Number of positions of the query alone.
        prompts: Number of prompts, at least 2.

    Returns:
        Over ``layer``, 0 being the embedding: ``loss`` of the last answer and ``distance`` from the model's answer, in
        the divergence of :func:`~icllab.diagnostics.contexts.maps.context_map`; ``loss_alone`` and ``distance_alone``
        without the context; each with an ``_error`` over prompts.

    Raises:
        InputError: The model has no trace, no residual stream or no read-out, or an argument is out of its range.

    Derived: docs/context-map.md, The logit lens.
    """
    require_key(key)
    require_integer("prompts", prompts, least=2)
    if not isinstance(model, AbstractModel):
        raise expected("model", "one with a trace of named activations", type(model).__name__)
    residual_stream(model)
    some = sample_prompts(task, key=key, prompts=prompts)
    one = jax.tree.map(lambda leaf: leaf[0], some)
    if not 1 <= query_length <= one.positions:
        raise expected("query_length", f"an integer from 1 to {one.positions}", query_length)
    answer = eqx.filter_eval_shape(lambda: model(one)[-1].reshape(-1))
    kind = kind_of(task, answer)
    found: dict[str, np.ndarray] = {}
    for end, size in (("", one.positions), ("_alone", query_length)):
        losses, distances = _read(model, task, some, size, kind)
        found |= means_and_errors(
            {f"loss{end}": np.asarray(losses, float), f"distance{end}": np.asarray(distances, float)}
        )
    variables = {name: ("layer", values) for name, values in found.items()}
    layers = np.arange(len(residual_stream(model)[0]))
    return xr.Dataset(variables, coords={"layer": layers}, attrs={"prompts": prompts, "query_length": query_length})


@eqx.filter_jit
def _read(model: Any, task: AbstractTask, prompts: Any, size: int, kind: str) -> tuple[Array, Array]:
    """Loss and distance, [prompt, layer]."""
    names, read = residual_stream(model)

    def one(prompt: Prompt) -> tuple[Array, Array]:
        asked = prompt.alone(prompt.positions - 1, size=size)
        trace = model.trace(asked)
        streams = [trace.activations[name] for name in names]
        answers = [read(stream[-1] if stream.ndim > 1 else stream) for stream in streams]
        losses = jnp.stack([task.loss(answer, asked)[-1] for answer in answers])
        final = trace.prediction[-1].reshape(-1)
        return losses, jnp.stack([divergence(kind, final, answer.reshape(-1)) for answer in answers])

    return jax.vmap(one)(prompts)
