r"""The loss as a function of how many examples have been seen, its sum and its mean."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float, PRNGKeyArray

from icllab.core.errors import expected, unknown
from icllab.core.protocols import AbstractTask, Predictor
from icllab.diagnostics.behaviour.answers import EveryPosition, answers, mean_and_error


def per_length(
    predictors: Mapping[str, Predictor],
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    prompts: int = 1024,
    block: int = 256,
    against: str | None = None,
    counts: Sequence[float] | None = None,
) -> xr.Dataset:
    r"""Mean loss of each predictor after 0, 1, ..., ℓ examples, with its standard error.

    .. math:: L^{(i)} = E\, \mathrm{loss}\big(T(x_1, y_1, \dots, x_i, y_i, x_{i+1}),\; y_{i+1}\big), \qquad
              L = \sum_{i=0}^{\ell} L^{(i)}

    All predictors answer the same prompts, so the difference of two has a smaller error than the errors of
    the two suggest; ``against`` gives it. The errors of sum and mean are those of sums over the positions
    of one prompt, which are not independent.

    Args:
        predictors: name -> any ``predictor(prompt) -> prediction``. One that answers the last position
            only has NaN elsewhere; one that is not ``traceable`` is called prompt by prompt.
        task: Samples the prompts and owns the loss.
        key: Of the prompts.
        prompts: How many; at least 2.
        block: How many are held in memory at once.
        against: Name of one of the predictors, which all are compared with.
        counts: How often each length counts; None: once. The sum is then :math:`\sum_i v_i L^{(i)}`, and the mean that
            over :math:`\sum_i v_i`.

    Returns:
        ``loss`` and ``standard_error`` over ``(predictor, position)``; ``loss_sum`` and ``loss_mean`` over
        ``predictor``, each with an ``_error``, NaN unless every position that counts is answered. With ``against`` also
        ``difference`` over ``(predictor, position)`` and ``difference_mean`` over ``predictor``: the
        loss minus that of ``against``, prompt by prompt, each with an ``_error``.

    Raises:
        InputError: No predictor, fewer than two prompts, an unknown name in ``against``, or counts that are not one
            number of at least 0 for each position.

    Derived: docs/lengths.md, From prompts to a loss per length.
    """
    if not predictors:
        raise expected("predictors", "at least one, by name", dict(predictors))
    if against is not None and against not in predictors:
        raise unknown("predictor", against, predictors)
    positions = jax.eval_shape(lambda k: task.sample(key=k), key).positions

    def losses(predictor: Predictor) -> Float[np.ndarray, "prompt position"]:
        answered = answers(EveryPosition(), predictor, task, key=key, prompts=prompts, block=block)
        # Every position, or the last: the task's loss has refused all else.
        unanswered = np.full((prompts, positions - answered.shape[1]), np.nan)
        return np.concatenate([unanswered, answered], axis=1)

    often = counts_of(positions, counts)
    times = often.sum()
    reference = None if against is None else losses(predictors[against])
    rows = []
    for name, predictor in predictors.items():
        own = reference if name == against and reference is not None else losses(predictor)
        row = {"loss": own, "loss_sum": _counted(own, often), "loss_mean": _counted(own, often) / times}
        if reference is not None:
            apart = own - reference
            row |= {"difference": apart, "difference_mean": _counted(apart, often) / times}
        rows.append({quantity: mean_and_error(samples) for quantity, samples in row.items()})
    variables = {}
    for quantity in rows[0]:
        dims = ("predictor", "position") if rows[0][quantity][0].ndim else ("predictor",)
        error = "standard_error" if quantity == "loss" else f"{quantity}_error"
        variables[quantity], variables[error] = (
            (dims, np.stack(part)) for part in zip(*(r[quantity] for r in rows), strict=True)
        )
    return xr.Dataset(
        variables,
        coords={"predictor": list(predictors), "position": np.arange(positions)},
        attrs={"prompts": prompts} | ({} if against is None else {"against": against}),
    )


def _counted(values: Float[np.ndarray, "prompt position"], often: np.ndarray) -> Float[np.ndarray, " prompt"]:
    """Sums over the lengths that count; what is not answered makes a sum NaN, unless it does not count."""
    return np.where(often > 0, values, 0.0) @ often


def counts_of(positions: int, counts: Sequence[float] | None) -> Float[np.ndarray, " position"]:
    """How often each of so many lengths counts, once where nothing else is said."""
    often = np.ones(positions) if counts is None else np.asarray(counts, np.float64)
    if often.shape != (positions,) or not (np.isfinite(often).all() and often.min() >= 0 and often.max() > 0):
        raise expected("counts", f"{positions} finite numbers of at least 0, one for each length, not all 0", counts)
    return often
