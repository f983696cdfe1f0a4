r"""Warnings of mean losses: numbers that are not finite, means that few prompts carry, and answers in other units.

All are about one predictor, and compare with the loss of a predictor that knows nothing: it answers zero, or the mean
target. Before the first label every honest predictor of regression has about that loss, and whoever brings a network
must match the scales of the task.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from icllab.core.errors import require_integer
from icllab.core.prompt import RegressionPrompt, scored_positions
from icllab.core.protocols import AbstractTask, Predictor, declared
from icllab.diagnostics.behaviour.answers import Question, answers_to, mean_over_prompts, sample_prompts
from icllab.training.ensembles import Ensemble

FIRST = "position 0"
_LISTED = 3
_NOISE = 3.0  # times the relative error of squares of normal numbers
_NEGLIGIBLE, _FAR, _ABSURD = 1e-3, 1e3, 1e6  # losses relative to that of a predictor that knows nothing
_FACTOR, _ERRORS = 2.0, 5.0  # between a loss at position 0 and that of a predictor that knows nothing
_CORRELATION = 0.2  # of answers and targets of a network that has learned
_FEWEST, _PROMPTS = 20, 1024  # prompts of that test


def infinite_answers(
    values: Float[np.ndarray, "prompt place"],
    places: Sequence[str],
    scored: Bool[np.ndarray, "prompt place"] | None = None,
    what: str = "the loss",
) -> str:
    """Sentence that names the positions with a target but without a finite value; empty if there are none."""
    bad = ~np.isfinite(values) if scored is None else ~np.isfinite(values) & scored
    if not bad.any():
        return ""
    prompts = int(bad.any(axis=1).sum())
    return (
        f"{what} is not finite at {_listed(places, np.asarray(bad.any(axis=0)))}, of {prompts} of {len(values)} prompts"
    )


def loss_warnings(
    losses: Float[np.ndarray, "prompt place"],
    places: Sequence[str],
    *,
    scored: Bool[np.ndarray, "prompt place"] | None = None,
    scale: float | None,
) -> list[str]:
    r"""Sentences on mean losses of one predictor that say little.

    A mean :math:`\bar l` of N losses with the standard error e is warned of if

    .. math:: e > \max\Bigl(\tfrac12,\; 3\sqrt{2/N}\Bigr)\,\bar l,

    where :math:`\sqrt{2/N}` is the relative error of a mean of squares of normal numbers. Few prompts alone are no
    reason, unless the mean is above a thousand times ``scale``, the loss of a predictor that knows nothing. A mean
    below a thousandth of the scale is no reason either: it may be rounding. A mean above a million times the scale is
    warned of too.

    Args:
        losses: Losses of all prompts.
        places: Where they are, in words.
        scored: Whether there is a target; None: everywhere.
        scale: Loss of a predictor that knows nothing; None: the largest mean, and nothing is too large.
    """
    sentences = [infinite_answers(losses, places, scored)]
    usable = np.isfinite(losses) if scored is None else np.isfinite(losses) | ~scored
    mask = np.ones_like(usable) if scored is None else scored
    counts = np.where(usable.all(axis=0), mask.sum(axis=0), 0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        values = np.where(mask & (counts > 1), losses, 0.0)
        means = values.sum(axis=0) / counts
        errors = np.sqrt((np.where(mask, values - means, 0.0) ** 2).sum(axis=0) / (counts - 1) / counts)
        unit = max(float(np.nanmax(means, initial=0.0)), _NEGLIGIBLE) if scale is None else scale
        limits = np.where(means > _FAR * unit, 0.5, np.maximum(0.5, _NOISE * np.sqrt(2 / counts)))
        noisy = (errors > limits * means) & (means > _NEGLIGIBLE * unit)
        absurd = means > _ABSURD * unit
    if noisy.any():
        where = _listed(places, noisy)
        sentences.append(f"the standard error exceeds half of the mean loss at {where}: a few prompts carry it")
    if absurd.any():
        worst = int(np.argmax(np.where(absurd, means, 0)))
        size = f"{means[worst]:.2g}, and that of answering the mean target is {unit:.2g}"
        sentences.append(f"the mean loss at {places[worst]} is {size}")
    return [sentence for sentence in sentences if sentence]


class LossUnits(NamedTuple):
    """The first prompts of a measurement, and what a predictor that knows nothing loses on them.

    Attributes:
        task: The task.
        prompts: The prompts, at most 1024, stacked.
        ignorant: Losses at position 0 of a predictor that knows nothing; None unless the task is a regression. It
            answers zero or the mean target, whichever has the larger mean loss: a table's target may be far from zero,
            and no predictor that has seen no label knows how far.
    """

    task: AbstractTask
    prompts: Any
    ignorant: Float[np.ndarray, " prompt"] | None

    @classmethod
    def of_prompts(cls, task: AbstractTask, prompts: Any) -> "LossUnits":
        """Units on stacked prompts."""
        prompts = jax.tree.map(lambda leaf: leaf[:_PROMPTS], prompts)
        if not isinstance(prompts, RegressionPrompt):
            return cls(task, prompts, None)
        mean = jnp.mean(prompts.y[:, 0])
        try:
            candidates = [np.asarray(_first_losses(task, answer, prompts), float) for answer in (mean, 0 * mean)]
        except Exception:  # a task of the user's own, whose predictions are no numbers
            return cls(task, prompts, None)
        return cls(task, prompts, max(candidates, key=np.mean))

    @classmethod
    def of_task(cls, task: AbstractTask, *, key: PRNGKeyArray, prompts: int, block: int) -> "LossUnits":
        """Units on the prompts that :func:`~icllab.diagnostics.behaviour.answers.answers` uses under the same key."""
        require_integer("prompts", prompts, least=2)
        require_integer("block", block)
        first = sample_prompts(task, key=key, prompts=prompts, block=min(block, prompts), first=_PROMPTS)
        return cls.of_prompts(task, first)

    def warnings(
        self,
        predictors: Ensemble,
        losses: Float[np.ndarray, "member prompt place"],
        places: Sequence[str],
        scored: Bool[np.ndarray, "prompt place"] | None = None,
    ) -> list[str]:
        """All sentences on the losses of each member, as one text."""
        scale = None if self.ignorant is None else float(self.ignorant.mean())
        texts = [loss_warnings(rows, places, scored=scored, scale=scale) for rows in losses]
        if places[0] == FIRST:
            count = len(jax.tree.leaves(self.prompts)[0])
            texts = [
                [*rows, unit]
                for rows, unit in zip(texts, self.mismatches(predictors, losses[:, :count, 0]), strict=True)
            ]
        return ["; ".join(filter(None, rows)) for rows in texts]

    def mismatches(
        self, predictors: Ensemble, losses: Float[np.ndarray, "member prompt"] | None = None, *, block: int = 256
    ) -> list[str]:
        r"""A sentence for each member of an ensemble whose answers seem to have other units than the targets, or "".

        Before the first label a predictor knows nothing of the task. It is asked for its units if its loss is more than
        twice that of a predictor that knows nothing, by more than five standard errors of the difference of at least
        twenty prompts, and

        - its late answers are correlated with the targets, :math:`r > 0.2` and :math:`\sqrt{n - 3}\,
          \operatorname{artanh} r > 5`: it has learned, and an untrained network, whose answers may have any size, has
          not; or
        - its late answers do not depend on the labels before them.

        Args:
            predictors: Predictors of every position; there are no sentences for others.
            losses: Losses at position 0; None: they are measured.
            block: Number of prompts held in memory at once.
        """
        nothing = [""] * predictors.size
        if (
            self.ignorant is None
            or len(self.ignorant) < _FEWEST
            or declared(predictors.stacked, "positions") != "every"
        ):
            return nothing
        if losses is None:
            losses = answers_to(_FirstLoss(), predictors, self.task, self.prompts, block=block)[..., 0]
        with np.errstate(over="ignore", invalid="ignore"):
            ratios = losses.mean(axis=1) / max(float(self.ignorant.mean()), np.finfo(float).tiny)
            excess, errors = mean_over_prompts((losses - self.ignorant).T)
            suspects = (ratios > _FACTOR) & (excess > _ERRORS * errors)
        if not suspects.any():
            return nothing
        scored, targets = scored_positions(self.prompts), np.asarray(self.prompts.y, float)
        late = targets.shape[1] - 1 if scored is None else int(np.asarray(scored).sum(axis=1).min()) - 1
        ends = answers_to(_Ends(late), predictors, self.task, self.prompts, block=block)
        sentences = []
        for is_suspect, ratio, (first, last, flipped) in zip(suspects, ratios, np.moveaxis(ends, -1, 1), strict=True):
            other_units = is_suspect and (np.array_equal(last, flipped) or _correlated(last, targets[:, late]))
            sizes = f"answers of size {_size(first)} to targets of size {_size(targets[:, 0])}"
            text = f"the loss before the first label is {ratio:.3g} times that of knowing nothing, with {sizes}: units?"
            sentences.append(text if other_units else "")
        return sentences


@eqx.filter_jit
def _first_losses(task: AbstractTask, answer: Float[Array, ""], prompts: RegressionPrompt) -> Float[Array, " prompt"]:
    return jax.vmap(lambda prompt: task.loss(jnp.full_like(prompt.y, answer), prompt)[0])(prompts)


class _Ends(Question):
    """Answers at position 0, and at a late position to the prompt and to one with other labels before it."""

    late: int = eqx.field(static=True)

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        answers, flipped = predictor(prompt), predictor(RegressionPrompt(prompt.x, 1 - prompt.y, prompt.mask))
        return jnp.stack([answers[0], answers[self.late], flipped[self.late]])


class _FirstLoss(Question):
    """The loss at position 0."""

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        return task.loss(predictor(prompt), prompt)[:1]


def _correlated(answers: Float[np.ndarray, " prompt"], targets: Float[np.ndarray, " prompt"]) -> bool:
    if not (np.isfinite(answers).all() and answers.std() > 0 and targets.std() > 0 and len(answers) > 3):
        return False
    r = float(np.corrcoef(answers, targets)[0, 1])
    return r > _CORRELATION and math.atanh(min(r, 1 - 1e-12)) * math.sqrt(len(answers) - 3) > _ERRORS


def _listed(places: Sequence[str], chosen: Bool[np.ndarray, " place"]) -> str:
    names = [places[i] for i in np.flatnonzero(chosen).tolist()]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    numbers = [name.removeprefix("position ") for name in names]
    if len(names) > 1 and "".join(numbers).isdigit():
        return f"positions {', '.join(numbers[:_LISTED])}{more}"
    return ", ".join(names[:_LISTED]) + more


def _size(values: np.ndarray) -> str:
    return f"{np.sqrt(np.mean(values**2)):.2g}"
