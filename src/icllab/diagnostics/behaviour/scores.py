r"""Scores of in-context learning, each with its error.

One score compares positions: the loss early in a prompt minus the loss late in it. The other scores compare contexts:
the same query is answered with its context and without it.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.domains import Domain
from icllab.core.errors import expected, require_integer
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor, declared, position_losses, require_task
from icllab.core.result_warnings import warns
from icllab.diagnostics.behaviour.answers import Question, answers, means_and_errors, sampled_targets
from icllab.diagnostics.behaviour.loss_warnings import LossUnits
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.training.ensembles import Ensemble


class EarlyLateAlone(Question):
    """Losses at an early position, at a late position, and at the late position's query without its context."""

    early: int = eqx.field(static=True)
    late: int = eqx.field(static=True)
    size: int = eqx.field(static=True, default=1)  # positions of the query without context

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Prompt) -> Float[Array, " answer"]:
        """``[early, late, late without context]``."""

        def last(part: Prompt) -> Float[Array, ""]:
            return position_losses(task, predictor(part), part)[-1]

        until = prompt.alone(self.late, size=self.late + 1)
        without_context = last(prompt.alone(self.late, size=self.size))
        if declared(predictor, "positions") == "last":
            return jnp.stack([last(prompt.alone(self.early, size=self.early + 1)), last(until), without_context])
        losses = position_losses(task, predictor(until), until)
        return jnp.stack([losses[self.early], losses[self.late], without_context])


@warns("benefit of context", "context_benefit", "context_benefit_error")
def icl_scores(
    predictors: Any,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    early: int | None = None,
    late: int | None = None,
    size: int = 1,
    prompts: int = 1024,
    block: int = 256,
) -> xr.Dataset:
    r"""Benefit of context to each predictor: over positions, and over removal of the context.

    .. math:: \mathtt{early\_minus\_late} &= L^{(e)} - L^{(l)} \\
              \mathtt{win\_rate} &= P\big(\mathrm{loss}(T(c, x), y) < \mathrm{loss}(T(x), y)\big)
              + \tfrac12 P\big(\mathrm{loss}(T(c, x), y) = \mathrm{loss}(T(x), y)\big) \\
              \mathtt{context\_benefit} &= E\,\big[\mathrm{loss}(T(x), y) - \mathrm{loss}(T(c, x), y)\big]

    for the early position e, the late one l, and the query ``x`` of position l with target ``y`` after the
    context ``c`` of l examples. Olsson et al.'s score is ``-early_minus_late``. A predictor that ignores its context
    has ``win_rate`` 1/2 and ``context_benefit`` 0, exactly.

    Args:
        predictors: Predictor, or :mod:`several <icllab.diagnostics.predictor_axes>`. A predictor that answers the last
            position only gets the prompt up to the position of each score.
        task: A task, as for :func:`~icllab.diagnostics.behaviour.lengths.per_length`.
        key: Key of the prompts.
        early: Early position e; by default a tenth of ``late``.
        late: Late position l; by default the last.
        size: Number of positions of the query without context: 1, or the number of tokens of a question.
        prompts: Number of prompts.
        block: Number of prompts in memory at a time.

    Returns:
        ``early_minus_late``, ``win_rate`` and ``context_benefit`` over the axes of the predictors, each with
        an ``_error``: a standard error from differences within a prompt. That of ``win_rate`` is binomial at
        :math:`(N p + 1)/(N + 2)`, so that it is not 0 if all prompts agree. A score is NaN if an answer is NaN. Of
        prompts with a mask, over the ``prompts`` that have a target at l.

    Raises:
        InputError: There is no predictor or fewer than two prompts, or a position is out of range.

    Source: [Olsson22], [SLT22].
    Derived: docs/lengths.md, Two scores of learning in context.
    """
    require_task(task)
    axes = PredictorAxes.from_predictors(predictors, task=task, key=key)
    length: int = jax.eval_shape(lambda k: task.sample(key=k), key).length
    late_position: int = length if late is None else late
    require_integer("prompts", prompts, least=2)
    Domain(int, 1, most=length, text=f"a position from 1 to {length}, the last").require("late", late_position)
    early_position: int = late_position // 10 if early is None else early
    text = f"a position from 0 to {late_position - 1}, before the late one"
    Domain(int, 0, most=late_position - 1, text=text).require("early", early_position)
    text = f"an integer from 1 to {late_position}, so that some context is taken away"
    Domain(int, 1, most=late_position, text=text).require("size", size)
    question = EarlyLateAlone(early_position, late_position, size)

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        losses = answers(question, members, task, key=key, prompts=prompts, block=block)
        losses = losses if scored is None else losses[:, scored[:, late_position]]
        notes = units.warnings(members, losses, places)
        before, after, without_context = np.moveaxis(losses, 2, 0)
        benefits = without_context - after
        # A tie counts a half; sign(NaN) is NaN, so that a prompt without an answer does not count as a tie.
        wins = (1 + np.sign(benefits)) / 2
        samples = {"early_minus_late": before - after, "win_rate": wins, "context_benefit": benefits}
        scores = means_and_errors({name: values.T for name, values in samples.items()})
        smoothed_rate = (scores["win_rate"] * count + 1) / (count + 2)
        win_rate_error = np.sqrt(smoothed_rate * (1 - smoothed_rate) / count)
        return scores | {"win_rate_error": win_rate_error, "warning": np.array(notes)}

    places = [
        f"early position {early_position}",
        f"position {late_position}",
        f"position {late_position} without its context",
    ]
    units = LossUnits.of_task(task, key=key, prompts=prompts, block=block)
    scored = sampled_targets(task, key=key, prompts=prompts, block=block)
    count = prompts if scored is None else int(scored[:, late_position].sum())
    if count < 2:
        raise expected("late", "a position at which two prompts have a target", late_position)
    return axes.to_dataset(axes.measure(measure), prompts=count, early=early_position, late=late_position, size=size)
