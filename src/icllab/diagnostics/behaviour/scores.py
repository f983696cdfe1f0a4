r"""Does a predictor learn in context? Two scores, each with its error.

One compares positions: how much lower the loss is late in a prompt than early. The other compares
contexts: the same query is answered with its context and without it.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor, declared
from icllab.diagnostics.behaviour.answers import Question, answers, means_and_errors
from icllab.diagnostics.cases import Cases
from icllab.training.ensembles import Ensemble


class EarlyLateAlone(Question):
    """Three losses of a prompt: at an early position, at a late one, and at the late one's query alone."""

    early: int = eqx.field(static=True)
    late: int = eqx.field(static=True)
    size: int = eqx.field(static=True, default=1)  # positions that the lone query takes

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Prompt) -> Float[Array, " answer"]:
        """``[early, late, alone]``."""

        def last(asked: Prompt) -> Float[Array, ""]:
            return task.loss(predictor(asked), asked)[-1]

        until = prompt.alone(self.late, size=self.late + 1)
        alone = last(prompt.alone(self.late, size=self.size))
        if declared(predictor, "positions") == "last":
            return jnp.stack([last(prompt.alone(self.early, size=self.early + 1)), last(until), alone])
        losses = task.loss(predictor(until), until)
        return jnp.stack([losses[self.early], losses[self.late], alone])


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
    r"""How much each predictor learns in context: by position, and by context taken away.

    .. math:: \mathtt{early\_minus\_late} &= L^{(e)} - L^{(l)} \\
              \mathtt{win\_rate} &= P\big(\mathrm{loss}(T(c, x), y) < \mathrm{loss}(T(x), y)\big)
              + \tfrac12 P\big(\mathrm{loss}(T(c, x), y) = \mathrm{loss}(T(x), y)\big) \\
              \mathtt{context\_benefit} &= E\,\big[\mathrm{loss}(T(x), y) - \mathrm{loss}(T(c, x), y)\big]

    for the early position e, the late one l, and the query ``x`` of position l with target ``y`` after the
    context ``c`` of l examples. All three are positive where a context helps; Olsson et al.'s score is
    ``-early_minus_late``. A predictor that ignores its context has ``win_rate`` 1/2 and ``context_benefit`` 0, exactly.

    Args:
        predictors: Predictor, or :mod:`several <icllab.diagnostics.cases>`. One that answers the last position only is
            given the prompt up to that position, and has all scores too.
        task: A task, as for :func:`~icllab.diagnostics.behaviour.lengths.per_length`; so are ``key``, ``prompts`` and
            ``block``.
        early: Early position e; by default a tenth of ``late``.
        late: Late position l; by default the last.
        size: Number of positions that the lone query takes: 1, or for token prompts the number of tokens of a question.

    Returns:
        ``early_minus_late``, ``win_rate`` and ``context_benefit`` over the axes of the predictors, each with
        an ``_error``: a standard error from differences within a prompt. That of ``win_rate`` is binomial at
        :math:`(N p + 1)/(N + 2)`, so that it is not 0 where all prompts agree. A score is NaN where the predictor has
        answered NaN.

    Raises:
        InputError: No predictor, fewer than two prompts, or positions that are not there.

    Source: [Olsson22], [SLT22].
    Derived: docs/lengths.md, Two scores of learning in context.
    """
    cases = Cases.of(predictors, task=task, key=key)
    length: int = jax.eval_shape(lambda k: task.sample(key=k), key).length
    later: int = length if late is None else late
    sooner: int = later // 10 if early is None else early
    if not 0 < later <= length:
        raise expected("late", f"a position from 1 to {length}, the last", later)
    if not 0 <= sooner < later:
        raise expected("early", f"a position from 0 to {later - 1}, before the late one", sooner)
    if not 1 <= size <= later:
        raise expected("size", f"an integer from 1 to {later}, so that some context is taken away", size)
    question = EarlyLateAlone(sooner, later, size)

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        found = answers(question, members, task, key=key, prompts=prompts, block=block)
        before, after, alone = np.moveaxis(found, 2, 0)
        benefits = alone - after
        # A tie counts a half; sign(NaN) is NaN, so that a prompt without an answer is no tie.
        wins = (1 + np.sign(benefits)) / 2
        samples = {"early_minus_late": before - after, "win_rate": wins, "context_benefit": benefits}
        scores = means_and_errors({name: values.T for name, values in samples.items()})
        smoothed = (scores["win_rate"] * prompts + 1) / (prompts + 2)
        return scores | {"win_rate_error": np.sqrt(smoothed * (1 - smoothed) / prompts)}

    return cases.dataset(cases.measured(measure), prompts=prompts, early=sooner, late=later, size=size)
