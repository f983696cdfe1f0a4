r"""The loss as a function of how many examples have been seen, its sum and its mean."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float, PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.protocols import AbstractTask, Predictor
from icllab.diagnostics.behaviour.answers import EveryPosition, answers, means_and_errors
from icllab.diagnostics.cases import Cases
from icllab.diagnostics.tried import tried
from icllab.training.ensembles import Ensemble, alone


def per_length(
    predictors: Any,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    prompts: int = 1024,
    block: int = 256,
    against: str | Predictor | None = None,
    counts: Sequence[float] | None = None,
) -> xr.Dataset:
    r"""Mean loss of each predictor after 0, 1, ..., ℓ examples, with its standard error.

    .. math:: L^{(i)} = E\, \mathrm{loss}\big(T(x_1, y_1, \dots, x_i, y_i, x_{i+1}),\; y_{i+1}\big), \qquad
              L = \sum_{i=0}^{\ell} L^{(i)}

    All predictors answer the same prompts, so the difference of two has a smaller error than the errors of
    the two suggest; ``against`` gives it. The errors of sum and mean are those of sums over the positions
    of one prompt, which are not independent.

    Args:
        predictors: Predictor, or :mod:`several <icllab.diagnostics.cases>`. One that answers the last position only
            has NaN elsewhere; one that is not ``traceable`` is called prompt by prompt.
        task: Task that samples the prompts and owns the loss.
        key: Key of the prompts.
        prompts: Number of prompts, at least 2.
        block: Number of prompts held in memory at once.
        against: Predictor which all are compared with, or the name of one of them.
        counts: How often each length counts; None: once. The sum is then :math:`\sum_i v_i L^{(i)}`, and the mean that
            over :math:`\sum_i v_i`.

    Returns:
        Over the axes of the predictors (``predictor``, ``member``, ``step``, or none): ``loss`` and
        ``standard_error`` over ``position``; ``loss_sum`` and ``loss_mean``, each with an ``_error``, NaN unless every
        position that counts is answered. With ``against`` also ``difference`` over ``position`` and
        ``difference_mean``: the loss minus that of ``against``, prompt by prompt, each with an ``_error``.

    Raises:
        InputError: No predictor, fewer than two prompts, an unknown name in ``against``, or counts that are not one
            number of at least 0 for each position.

    Derived: docs/lengths.md, From prompts to a loss per length.
    """
    cases = Cases.of(predictors, task=task, key=key)
    positions = jax.eval_shape(lambda k: task.sample(key=k), key).positions

    def losses(members: Ensemble) -> Float[np.ndarray, "member prompt position"]:
        answered = answers(EveryPosition(), members, task, key=key, prompts=prompts, block=block)
        # Every position, or the last: the task's loss has refused all else.
        unanswered = np.full((*answered.shape[:2], positions - answered.shape[2]), np.nan)
        return np.concatenate([unanswered, answered], axis=2)

    often = counts_of(positions, counts)
    times = often.sum()
    compared = None if against is None else _compared(against, cases, task, key)
    reference = None if compared is None else losses(compared)

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        own = reference if members is compared and reference is not None else losses(members)
        row = {"loss": own, "loss_sum": _counted(own, often), "loss_mean": _counted(own, often) / times}
        if reference is not None:
            apart = own - reference
            row |= {"difference": apart, "difference_mean": _counted(apart, often) / times}
        found = means_and_errors({quantity: samples.swapaxes(0, 1) for quantity, samples in row.items()})
        return {"standard_error" if name == "loss_error" else name: values for name, values in found.items()}

    found = cases.dataset(cases.measured(measure), {"position": np.arange(positions)}, prompts=prompts)
    if against is None:
        return found
    named = against if isinstance(against, str) else getattr(against, "__name__", type(against).__name__)
    return found.assign_attrs(against=named)


def _compared(against: Any, cases: Cases, task: AbstractTask, key: PRNGKeyArray) -> Ensemble:
    """The predictor that all are compared with, as it can be called."""
    if isinstance(against, str):
        return cases.named(against)
    if not callable(against) or isinstance(against, type):
        came = against.__name__ if isinstance(against, type) else type(against).__name__
        raise expected("against", "a predictor, or the name of one", came)
    return alone(tried(against, task, key=key))


def _counted(
    values: Float[np.ndarray, "member prompt position"], often: Float[np.ndarray, " position"]
) -> Float[np.ndarray, "member prompt"]:
    """Sums over the lengths that count; what is not answered makes a sum NaN, unless it does not count."""
    return np.where(often > 0, values, 0.0) @ often


def counts_of(positions: int, counts: Sequence[float] | None) -> Float[np.ndarray, " position"]:
    """How often each length counts: once, unless ``counts`` says otherwise."""
    often = np.ones(positions) if counts is None else np.asarray(counts, np.float64)
    if often.shape != (positions,) or not (np.isfinite(often).all() and often.min() >= 0 and often.max() > 0):
        raise expected("counts", f"{positions} finite numbers of at least 0, one for each length, not all 0", counts)
    return often
