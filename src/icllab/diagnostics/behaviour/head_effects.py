r"""Effects of heads of a transformer on its loss, of all heads by one gradient, and of some by ablation.

With :math:`m_h` the weight to which head h is ablated, the effect to first order is the derivative at no ablation,

.. math:: L(m_h = 1) - L(m = 0) \approx \frac{\partial L}{\partial m_h}\Big|_{m = 0},

which costs one backward pass for all heads together. It is a screen: where the loss bends, as behind a head whose
pattern is saturated, it may be off by its sign, and the heads that matter are ablated.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from icllab.core.errors import require_key
from icllab.core.protocols import AbstractTask, declared, position_losses, require_task
from icllab.diagnostics.behaviour.answers import Question, answers, means_and_errors
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.models import ablated
from icllab.models.interventions.heads import Outputs, head_weights, heads_in
from icllab.training.ensembles import Ensemble


class _Effects(Question):
    """First-order effects of all heads, then the effects of each of some ablations."""

    ablations: Float[Array, "ablation block head"]
    outputs: Outputs | None
    tokens: Bool[Array, " token"] | Callable[[Any], Array] | None
    positions: slice = eqx.field(static=True)
    traces = True

    def __call__(self, predictor: Any, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        def loss(weights: Array) -> Array:
            model = ablated(predictor, heads=weights, outputs=self.outputs, tokens=self.tokens)
            return jnp.nanmean(position_losses(task, model(prompt), prompt)[self.positions])

        none = jnp.zeros(self.ablations.shape[1:])
        if declared(predictor, "differentiable"):
            plain, slopes = jax.value_and_grad(loss)(none)
        else:
            plain, slopes = loss(none), jnp.full(none.shape, jnp.nan)
        return jnp.concatenate([slopes.reshape(-1), jax.lax.map(loss, self.ablations) - plain])


def head_effects(
    model: Any,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    prompts: int = 32,
    heads: Sequence[tuple[int, int]] = (),
    outputs: Outputs | None = None,
    tokens: Bool[Array, " token"] | Callable[[Any], Array] | None = None,
    positions: slice = slice(None),
) -> xr.Dataset:
    """Change of the mean loss by ablation of each head: of all to first order, and of some ``heads`` by ablation.

    One prompt at a time is in memory.

    Args:
        model: :class:`~icllab.models.networks.transformer.Transformer`, a ``WithActivations`` or ``FromTorch``, or
            :mod:`several <icllab.diagnostics.predictor_axes>` with the same heads. Those of PyTorch have no
            ``first_order_effect`` (NaN), and all their heads are ablated unless ``heads`` are given.
        task: Task whose loss is taken.
        key: Key of the prompts.
        prompts: Number of prompts, at least 2.
        heads: Pairs (block, head) that are ablated, one by one, each at the cost of a run.
        outputs: Outputs in the place of the heads'; and ``tokens`` at which they are: as in
            :func:`~icllab.models.interventions.clamps.ablated`.
        positions: Positions over which the loss is averaged, such as ``slice(-1, None)``; those without a target do
            not count.

    Returns:
        Over the axes of the models and ``attention_head``, named by block and number as in
        :func:`~icllab.diagnostics.behaviour.heads.head_scores`: ``first_order_effect`` and ``ablation_effect``, NaN for
        heads that are not ablated, each with an ``_error`` over prompts.

    Raises:
        InputError: The model is of another kind, or a head does not exist.

    Source: [Michel19], [WangIOI23].
    """
    require_task(task)
    require_key(key)
    axes = PredictorAxes.from_predictors(model, "model")
    single = next(axes.ensembles()).member(0)
    head_weights(single, [(0, 0)])  # raises for a model of another kind
    counts = heads_in(eqx.filter_eval_shape(lambda m, k: m.trace(task.sample(key=k)).activations, single, key))
    shape = len(counts), max(counts)
    screened = declared(single, "differentiable")
    heads = heads or [] if screened else heads or [(i, j) for i, count in enumerate(counts) for j in range(count)]
    weights = [head_weights(single, [pair], counts=counts) for pair in heads]
    ablations = jnp.stack(weights or [jnp.zeros(shape)])[: len(heads)]
    question = _Effects(ablations, outputs, tokens, positions)
    names = [f"block{block}.{head}" for block, head in np.ndindex(*shape)]
    places = [block * shape[1] + head for block, head in heads]

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        values = answers(question, members, task, key=key, prompts=prompts, block=1 if screened else 256).swapaxes(0, 1)
        effects = np.full((*values.shape[:2], len(names)), np.nan)
        first_order, effects[..., places] = np.split(values, [len(names)], axis=2)
        return means_and_errors({"first_order_effect": first_order, "ablation_effect": effects})

    return axes.to_dataset(axes.measure(measure), {"attention_head": names}, prompts=prompts)
