r"""Loss and accuracy as functions of the number of examples before a query."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icllab.core.domains import Domain
from icllab.core.errors import expected
from icllab.core.progress import shown, stage
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor, require_task
from icllab.core.result_warnings import warns
from icllab.core.statistics import mean_and_error
from icllab.diagnostics.behaviour.answers import (
    EveryPosition,
    Question,
    answers,
    mean_over_prompts,
    means_and_errors,
    of_targets,
    sampled_targets,
)
from icllab.diagnostics.behaviour.item_label_heads import context_labels
from icllab.diagnostics.behaviour.loss_warnings import LossUnits, infinite_answers
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.diagnostics.validate_predictor import validate_predictor
from icllab.training.ensembles import Ensemble, alone

AMONG = ("accuracy", "probability", "accuracy_among", "probability_among", "accuracy_outside", "probability_outside")
AMONG += ("outside_answers", "outside_mass")


class Accuracy(Question):
    """Correctness of the answer at every position that the predictor answers."""

    def __call__(self, predictor: Predictor, task: Any, prompt: Prompt) -> Float[Array, " answer"]:
        """1 if the answer is right, 0 if it is wrong, NaN if the largest logit is not finite."""
        return task.accuracy(predictor(prompt), prompt)


class ContextAccuracy(Question):
    """Correctness of the last answer, among the context's labels and outside of them."""

    def __call__(self, predictor: Predictor, task: Any, prompt: Any) -> Float[Array, " answer"]:
        """All :data:`AMONG` of the last answer."""
        prediction = predictor(prompt)
        whole = task.accuracy(prediction, prompt)[-1]  # which refuses what does not fit
        logits, target = prediction[-1], prompt.labels[-1]
        among = jnp.any(jnp.arange(len(logits))[:, None] == prompt.labels[None, :-1], axis=1)
        measures = [jnp.stack([whole, jax.nn.softmax(logits)[target]])]
        for which in (among, ~among):
            part = jnp.where(which, logits, -jnp.inf)
            hit = jnp.stack([(jnp.argmax(part) == target).astype(part.dtype), jax.nn.softmax(part)[target]])
            measures.append(jnp.where(jnp.any(which), hit, jnp.nan))
        measures.append(1 - context_labels(logits, prompt.labels[:-1]))
        return jnp.where(jnp.isfinite(whole), jnp.concatenate(measures), jnp.nan)


@warns("mean loss", "loss_mean", "loss_mean_error")
def per_length(
    predictors: Any,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    prompts: int = 1024,
    block: int = 256,
    against: str | Predictor | None = None,
    counts: Sequence[float] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    r"""Mean loss of each predictor after 0, 1, ..., ℓ examples, with its standard error.

    .. math:: L^{(i)} = E\, \mathrm{loss}\big(T(x_1, y_1, \dots, x_i, y_i, x_{i+1}),\; y_{i+1}\big), \qquad
              L = \sum_{i=0}^{\ell} L^{(i)}

    All predictors answer the same prompts, so that the difference of two has a smaller error than independent samples
    would give; ``against`` reports it. The errors of sum and mean account for the dependence of positions within a
    prompt.

    Args:
        predictors: Predictor, or :mod:`several <icllab.diagnostics.predictor_axes>`. A predictor that answers the last
            position only has NaN elsewhere. A predictor that is not ``traceable`` is called prompt by prompt, or once
            for each block of prompts if it is ``batched``.
        task: Task that samples the prompts and owns the loss.
        key: Key of the prompts.
        prompts: Number of prompts, at least 2.
        block: Number of prompts held in memory at once.
        against: Reference predictor, or the name of one of ``predictors``; None: no comparison.
        counts: Weight :math:`v_i` of each length; None: 1. The sum is :math:`\sum_i v_i L^{(i)}`, and the mean is that
            over :math:`\sum_i v_i`.
        progress: Whether prompts done and the time left are shown; None: on a terminal and in a notebook.

    Returns:
        Over the axes of the predictors (``predictor``, ``member``, ``step``, or none): ``loss`` and
        ``standard_error`` over ``position``; ``loss_sum`` and ``loss_mean``, each with an ``_error``, NaN unless every
        position of nonzero weight is answered. With ``against`` also ``difference`` over ``position`` and
        ``difference_mean``: the loss minus that of ``against``, prompt by prompt, each with an ``_error``. Of prompts
        with a mask, means and errors over those that have a target at a position, and their number, ``targets``. The
        attribute ``warnings`` names predictors whose losses are not finite, whose means few prompts carry
        (:func:`~icllab.diagnostics.behaviour.loss_warnings.loss_warnings`), or whose answers seem to have other units
        than the targets (:func:`~icllab.diagnostics.behaviour.loss_warnings.unit_warnings`).

    Raises:
        InputError: There is no predictor or fewer than two prompts, ``against`` is unknown, or ``counts`` does not have
            one number >= 0 for each position.

    Derived: docs/lengths.md, From prompts to a loss per length.
    """
    require_task(task)
    axes = PredictorAxes.from_predictors(predictors, task=task, key=key)
    positions = jax.eval_shape(lambda k: task.sample(key=k), key).positions

    weights, scored = counts_of(positions, counts), sampled_targets(task, key=key, prompts=prompts, block=block)
    units = LossUnits.of_task(task, key=key, prompts=prompts, block=block)

    def losses(members: Ensemble) -> _Losses:
        available = answers(EveryPosition(), members, task, key=key, prompts=prompts, block=block)
        count = available.shape[2]
        targets = None if scored is None else scored[:, -count:]
        places = [f"position {i}" for i in range(positions - count, positions)]
        notes = units.warnings(members, available, places, targets)
        return _Losses(of_targets(_pad_positions(available, positions), scored), notes)

    reference = None if against is None else _reference(against, axes, task, key)
    of_reference: _Losses | None = None

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        member_losses = of_reference if members is reference and of_reference is not None else losses(members)
        return member_losses.statistics(weights, None if of_reference is None else of_reference.values)

    with shown("losses", progress):
        count = math.prod(axes.shape) + (reference is not None)
        stage(f"{count} predictors x {prompts} prompts" if count > 1 else "", prompts * count, "prompts")
        of_reference = None if reference is None else losses(reference)
        arrays = axes.measure(measure)
    if of_reference is not None and not isinstance(against, str):
        axes.warnings.extend(f"against: {note}" for note in of_reference.notes if note)
    statistics = axes.to_dataset(arrays, {"position": np.arange(positions)}, prompts=prompts)
    if scored is not None:
        statistics = _with_targets(statistics, scored.sum(0), weights)
    if against is None:
        return statistics
    label = against if isinstance(against, str) else getattr(against, "__name__", type(against).__name__)
    return statistics.assign_attrs(against=label)


class _Losses(NamedTuple):
    """Losses of the members of an ensemble, and a warning for each member."""

    values: Float[np.ndarray, "member prompt position"]
    notes: list[str]

    def statistics(self, weights: np.ndarray, reference: np.ndarray | None) -> dict[str, np.ndarray]:
        """Means with errors of losses, sums and means over lengths, and differences to the reference's losses."""
        total = weights.sum()
        loss_sum = _weighted_sum(self.values, weights)
        row = {"loss": self.values, "loss_sum": loss_sum, "loss_mean": loss_sum / total}
        if reference is not None:
            differences = self.values - reference
            row |= {"difference": differences, "difference_mean": _weighted_sum(differences, weights) / total}
        statistics = means_and_errors({quantity: samples.swapaxes(0, 1) for quantity, samples in row.items()})
        row = {"standard_error" if name == "loss_error" else name: values for name, values in statistics.items()}
        return row | {"warning": np.array(self.notes)}


@warns("accuracy")
def accuracy(
    predictors: Any, task: AbstractTask, *, key: PRNGKeyArray, prompts: int = 1024, block: int = 256
) -> xr.Dataset:
    r"""The accuracy of each predictor at each position it answers, with its standard error.

    .. math:: A_i = P\bigl(\operatorname{argmax}_c f_c(\text{prompt})_i = \text{the class asked for at } i\bigr)

    For the kept steps of a run (``run.trajectory``) the result is a curve over training.

    Args:
        predictors: Predictor of logits, or :mod:`several <icllab.diagnostics.predictor_axes>`.
        task: Classification task.
        key: A key, as for :func:`per_length <icllab.diagnostics.behaviour.lengths.per_length>`; so are the others.

    Returns:
        ``accuracy`` and ``accuracy_error`` over the axes of the predictors and ``position``; NaN where a predictor
        gives no answer, and where the largest logit is not finite. Of prompts with a mask as in ``per_length``.

    Raises:
        InputError: The task is not a classification, or the number of logits differs from the number of classes.

    Derived: docs/item-label.md, Levels.
    """
    require_task(task)
    if not hasattr(task, "accuracy"):
        raise expected("task", "a classification task, whose answers are right or wrong", type(task).__name__)
    axes = PredictorAxes.from_predictors(predictors, task=task, key=key)
    positions = jax.eval_shape(lambda k: task.sample(key=k), key).positions

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        hits = answers(Accuracy(), members, task, key=key, prompts=prompts, block=block)
        mean, error = mean_over_prompts(of_targets(_pad_positions(hits, positions), scored).swapaxes(0, 1))
        count = hits.shape[2]
        targets, places = None if scored is None else scored[:, -count:], [f"position {i}" for i in range(positions)]
        notes = [infinite_answers(rows, places[-count:], targets, "the largest logit") for rows in hits]
        return {"accuracy": mean, "accuracy_error": error, "warning": np.array(notes)}

    scored = sampled_targets(task, key=key, prompts=prompts, block=block)
    accuracies = axes.to_dataset(axes.measure(measure), {"position": np.arange(positions)}, prompts=prompts)
    return accuracies if scored is None else _with_targets(accuracies, scored.sum(0), np.ones(positions))


@warns("context accuracy")
def context_accuracy(predictors: Any, task: AbstractTask, *, key: PRNGKeyArray, prompts: int = 1024) -> xr.Dataset:
    r"""Accuracy and probability of the query's label, over all labels, among the context's, and outside of them.

    .. math:: \mathtt{accuracy\_among} = P\big(\operatorname{argmax}_{l \in C} f_l = l_q\big), \qquad
              \mathtt{probability\_among} = E\Big[1_{l_q \in C}\, e^{f_{l_q}} \Big/ \sum_{l \in C} e^{f_l}\Big]

    with C the labels of the context; ``_outside`` has the others. ``outside_answers`` is the fraction of answers that
    are not in C, and ``outside_mass`` the probability of these labels.

    Arguments are those of :func:`accuracy`. Each measure is a mean over
    the prompts that have such labels, with a standard error ``_error``, over the axes of the predictors.

    Source: [Singh24].
    """
    require_task(task)
    if not hasattr(jax.eval_shape(lambda k: task.sample(key=k), key), "label_vectors"):
        raise expected("task", "a task of items and labels", type(task).__name__)
    axes = PredictorAxes.from_predictors(predictors, task=task, key=key)

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        values = answers(ContextAccuracy(), members, task, key=key, prompts=prompts)
        notes = [infinite_answers(rows[:, :1], ["the last position"], what="the largest logit") for rows in values]
        values = np.where(np.isnan(values[..., :1]).any(axis=1, keepdims=True), np.nan, values)  # a NaN is no answer
        statistics = zip(("", "_error"), mean_and_error(values, axis=1), strict=True)
        row = {f"{name}{end}": part[:, i] for end, part in statistics for i, name in enumerate(AMONG)}
        return row | {"warning": np.array(notes)}

    return axes.to_dataset(axes.measure(measure), prompts=prompts)


def _with_targets(
    statistics: xr.Dataset, targets: Int[np.ndarray, " position"], weights: Float[np.ndarray, " position"]
) -> xr.Dataset:
    """With the number of prompts that have a target at each position, and no error of fewer than two."""
    enough = xr.DataArray(targets > 1, dims="position")
    for name in statistics.data_vars:
        if str(name).endswith("_error"):
            of_position = "position" in statistics[name].dims
            clear = enough if of_position else bool(enough.values[weights > 0].all())
            statistics[name] = statistics[name].where(clear)
    return statistics.assign(targets=("position", targets))


def _pad_positions(
    values: Float[np.ndarray, "member prompt answer"], positions: int
) -> Float[np.ndarray, "member prompt position"]:
    """Values over all positions, NaN before the answers of a predictor that answers the last position only."""
    missing = np.full((*values.shape[:2], positions - values.shape[2]), np.nan)
    return np.concatenate([missing, values], axis=2)


def _reference(against: Any, axes: PredictorAxes, task: AbstractTask, key: PRNGKeyArray) -> Ensemble:
    """The validated reference predictor."""
    if isinstance(against, str):
        return axes.select(against)
    if not callable(against) or isinstance(against, type):
        came = against.__name__ if isinstance(against, type) else type(against).__name__
        raise expected("against", "a predictor, or the name of one", came)
    return alone(validate_predictor(against, task, key=key, complaints=axes.warnings))


def _weighted_sum(
    values: Float[np.ndarray, "member prompt position"], weights: Float[np.ndarray, " position"]
) -> Float[np.ndarray, "member prompt"]:
    """Weighted sums over lengths; NaN at a length of nonzero weight makes the sum NaN."""
    return np.where(weights > 0, values, 0.0) @ weights


def counts_of(positions: int, counts: Sequence[float] | None) -> Float[np.ndarray, " position"]:
    """Weights of the lengths: ``counts``, or 1 each."""
    text = f"{positions} finite numbers of at least 0, one for each length, not all 0"
    weights = np.ones(positions) if counts is None else Domain(least=0, text=text).read("counts", counts)
    if weights.shape != (positions,) or not (np.isfinite(weights).all() and weights.min() >= 0 and weights.max() > 0):
        raise expected("counts", text, counts)
    return weights
