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
from icllab.core.prompt import TokenPrompt, scored_positions
from icllab.core.protocols import AbstractModel, AbstractTask, Predictor, position_losses, require_task
from icllab.diagnostics.behaviour.answers import (
    Question,
    answers,
    means_and_errors,
    require_unmasked,
    sampled_targets,
)
from icllab.diagnostics.contexts.distances import divergence, divergence_kind
from icllab.models.induction.item_label_network import ItemLabelNetwork
from icllab.models.networks.transformer import Transformer
from icllab.models.pretrained.ignored_fields import names_ignored

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


@names_ignored
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
    A layer norm before the read-out belongs to it. Of prompts of token ids with a mask, the last answer is that before
    the padding. Prompts are answered a block at a time, and only the last token of a layer is read out: memory holds
    the streams of one block, and one vector of logits for each of its prompts and layers.

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
    example = jax.eval_shape(lambda k: task.sample(key=k), key)
    if not isinstance(example, TokenPrompt):
        require_unmasked("task", example)
    scored = sampled_targets(task, key=key, prompts=prompts)
    shortest = example.positions if scored is None else int(scored.sum(1).min())
    if not 1 <= query_length <= shortest:
        raise expected("query_length", f"an integer from 1 to {shortest}", query_length)
    answer = eqx.filter_eval_shape(lambda: model(task.sample(key=key))[-1].reshape(-1))
    question = LayerAnswers(query_length, divergence_kind(task, answer))
    values = answers(question, model, task, key=key, prompts=prompts).reshape(prompts, 4, -1)
    names = (f"{name}{suffix}" for suffix in ("", "_alone") for name in ("loss", "distance"))
    statistics = means_and_errors(dict(zip(names, values.swapaxes(0, 1), strict=True)))
    variables = {name: ("layer", values) for name, values in statistics.items()}
    layers = np.arange(values.shape[2])
    return xr.Dataset(variables, coords={"layer": layers}, attrs={"prompts": prompts, "query_length": query_length})


class LayerAnswers(Question):
    """Losses and distances of the answer after every layer: of the last query with its context, then without it."""

    query_length: int = eqx.field(static=True)
    kind: str = eqx.field(static=True)

    def __call__(self, predictor: Any, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        """``[loss, distance, loss alone, distance alone]`` of every layer."""
        names, read = residual_stream(predictor)
        last, scored, row = prompt.positions - 1, scored_positions(prompt), -1
        ending = prompt
        if scored is not None:  # the last target is followed by padding, which no earlier token sees
            row = jnp.sum(scored) - 1
            ending = TokenPrompt(jnp.roll(prompt.tokens, last - row))
        alone = ending.alone(last, size=self.query_length)
        parts = []
        for query, at in ((prompt, row), (alone, -1)):
            trace = predictor.trace(query)
            streams = [trace.activations[name] for name in names]
            layers = [read(stream[at] if stream.ndim > 1 else stream) for stream in streams]
            judged = prompt if query is prompt and scored is None else alone
            parts.append(jnp.stack([position_losses(task, layer, judged)[-1] for layer in layers]))
            final = trace.prediction[at].reshape(-1)
            parts.append(jnp.stack([divergence(self.kind, final, layer.reshape(-1)) for layer in layers]))
        return jnp.concatenate(parts)
