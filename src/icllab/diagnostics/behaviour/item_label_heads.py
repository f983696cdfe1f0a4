r"""Measures of an induction head on prompts of items and labels, of a network or of a head that is stated.

In a prompt :math:`x_1, \ell_1, \dots, x_N, \ell_N, x_q` a label attends to its item in the first layer, and the query
to the label of its own item in the second. The measures are functions of patterns :math:`a_{ij}`, so that they apply
to a network, to a head of three numbers, and to a head that is defined by its patterns (:class:`StatedHead`).
"""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icllab.core.errors import expected, require_key
from icllab.core.protocols import AbstractModel, AbstractTask, Edit, Trace, require_task
from icllab.core.statistics import mean_and_error
from icllab.core.vocabularies import in_vocabulary
from icllab.diagnostics.behaviour.answers import Question, answers
from icllab.diagnostics.behaviour.heads import above_even, like, traced
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.models.induction.minimal_head import label_mass
from icllab.training.ensembles import Ensemble

MEASURES = (
    "item_label_attention",
    "target_attention",
    "label_attention",
    "induction_score",
    "context_label_accuracy",
    "context_label_mass",
)


def item_label_attention(pattern: Float[Array, "*heads token token"]) -> Float[Array, "*heads"]:
    r"""ILA: attention of a label to its item, the token before it, in the first layer, averaged over labels.

    .. math:: \frac1N\sum_{k=1}^Na_{2k,2k-1}

    Source: [Reddy24].
    """
    return jnp.mean(jnp.diagonal(pattern, offset=-1, axis1=-2, axis2=-1)[..., ::2], axis=-1)


def target_attention(row: Float[Array, "*heads token"], matches: Bool[Array, " pair"]) -> Float[Array, "*heads"]:
    r"""TILA: attention of the query to the right labels, in the second layer.

    Source: [Reddy24].
    """
    labels = row[..., 1::2]
    return jnp.sum(labels * like(matches, labels), axis=-1)


def label_attention(row: Float[Array, "*heads token"]) -> Float[Array, "*heads"]:
    r"""TLA: attention of the query to all labels of the context, in the second layer.

    Source: [Reddy24].
    """
    return jnp.sum(row[..., 1::2], axis=-1)


def target_induction_score(row: Float[Array, "*heads token"], matches: Bool[Array, " pair"]) -> Float[Array, "*heads"]:
    r"""Attention of the query to the right label above that to a wrong label.

    .. math:: A - \frac{m}{N-m}(B-A)

    with A the attention to the m right labels and B that to all. For one right label the score is z - z' of the
    landscape; if all attention is on two labels, 2A - 1. NaN if every label is right.

    Source: [Reddy24].
    Derived: docs/abrupt-learning.md, Measures of heads.
    """
    return above_even(row[..., 1::2], matches, ~matches)


def context_labels(logits: Float[Array, " label"], labels: Int[Array, " pair"]) -> Float[Array, "2"]:
    """CLA: whether the most likely label is one of the context's, 0 or 1; and the probability of the context's labels.

    Source: [Reddy24].
    """
    valid = in_vocabulary("labels", labels, len(logits))
    in_context = jnp.zeros(logits.shape, bool).at[labels].set(True)
    is_from_context = in_context[jnp.argmax(logits)].astype(logits.dtype)
    measures = jnp.stack([is_from_context, jnp.sum(jnp.where(in_context, jax.nn.softmax(logits), 0))])
    return jnp.where(jnp.all(valid), measures, jnp.nan)


def item_label_measures(trace: Trace, prompt: Any) -> Float[Array, " measure"]:
    """All :data:`MEASURES` of one prompt of items and labels, in order.

    Args:
        trace: Trace of the prompt, with ``attention1`` and, for two layers, ``attention2``. With one layer the measures
            use the query's attention, and the first is NaN.
        prompt: Prompt of items and labels, an :class:`ItemLabelPrompt <icllab.core.prompt.ItemLabelPrompt>`.

    Raises:
        InputError: The trace has no such activations.

    Source: [Reddy24].
    """
    first = trace.activations.get("attention1")
    row = trace.activations.get("attention2", first)
    if first is None or row is None:
        raise expected("model", "one whose trace has attention1", list(trace.activations))
    first_layer = item_label_attention(first) if first.ndim == 2 else jnp.full((), jnp.nan, row.dtype)
    row = row if row.ndim == 1 else row[-1]
    attentions = [target_attention(row, prompt.matches), label_attention(row)]
    label_measures = context_labels(trace.prediction[-1], prompt.labels[:-1])
    return jnp.stack([first_layer, *attentions, target_induction_score(row, prompt.matches), *label_measures])


class _Measures(Question):
    traces = True

    def __call__(self, predictor: Any, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        return item_label_measures(traced(predictor, prompt), prompt)


def progress_measures(model: Any, task: AbstractTask, *, key: PRNGKeyArray, prompts: int = 1024) -> xr.Dataset:
    r"""Progress of the two steps of an induction head, and the labels that the model guesses meanwhile.

    Args:
        model: Model of items and labels (a network, a head of three numbers, a :class:`StatedHead`), or
            :mod:`several <icllab.diagnostics.predictor_axes>`.
        task: Task of items and labels, preferably its test set of fresh classes.
        key: Key of the prompts.
        prompts: Number of prompts, at least 2.

    Returns:
        Over the axes of the models: the mean of every measure of :data:`MEASURES` over the prompts on which it is
        defined, each with its standard error ``_error``.

    Raises:
        InputError: As :func:`item_label_measures`.

    Source: [Reddy24].
    """
    require_task(task)
    require_key(key)
    axes = PredictorAxes.from_predictors(model, "model")

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        values = answers(_Measures(), members, task, key=key, prompts=prompts)
        statistics = zip(("", "_error"), mean_and_error(values, axis=1), strict=True)
        return {f"{name}{end}": part[:, i] for end, part in statistics for i, name in enumerate(MEASURES)}

    return axes.to_dataset(axes.measure(measure), prompts=prompts)


class StatedHead(AbstractModel):
    r"""An induction head defined by its attentions, as in the landscape.

    In the first layer a label attends with y to its item and uniformly to all other tokens. In the second the query
    attends with z to the right labels together, with z' to each wrong label, and uniformly to all other tokens. The
    logit of a label is :math:`\xi` times the attention to it.

    Attributes:
        previous: Attention y of a label to its item.
        right: Attention z of the query to the right labels.
        other: Attention z' of the query to each other label.
        read: Strength :math:`\xi` of the readout.
        labels: Number of labels L.

    Source: [Reddy24].
    """

    positions: ClassVar[Literal["every", "last"]] = "last"

    previous: Float[Array, ""] | float
    right: Float[Array, ""] | float
    other: Float[Array, ""] | float
    read: Float[Array, ""] | float
    labels: int = eqx.field(static=True)

    def trace(self, prompt: Any, edit: Edit | None = None) -> Trace:
        """Activations ``attention1``, ``attention2``, ``logits``."""
        edit = edit or (lambda _, value: value)
        pairs = prompt.pairs
        tokens = 2 * pairs + 1
        visible = np.tril(np.ones((tokens, tokens)))
        first_layer = jnp.asarray(visible / visible.sum(1, keepdims=True))
        label = np.arange(1, tokens, 2)
        remainder = visible[label] / label[:, None]  # tokens that a label sees, without its item
        remainder[np.arange(pairs), label - 1] = 0.0
        even_rows = jnp.asarray(remainder) * (1 - self.previous)
        first_layer = edit(
            "attention1", first_layer.at[label].set(even_rows.at[np.arange(pairs), label - 1].set(self.previous))
        )
        matches = prompt.matches
        match_count = jnp.maximum(jnp.sum(matches), 1).astype(first_layer.dtype)
        on_labels = jnp.where(matches, self.right / match_count, self.other)
        even = (1 - jnp.sum(on_labels)) / (pairs + 1)
        second_layer = jnp.full(tokens, 1.0) * even
        second_layer = edit("attention2", second_layer.at[label].set(on_labels))
        logits = edit("logits", self.read * label_mass(second_layer, prompt, self.labels)[None])
        return Trace(logits, {"attention1": first_layer, "attention2": second_layer, "logits": logits})
