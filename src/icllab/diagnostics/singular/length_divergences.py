r"""Divergences from the truth by context length, of tasks whose truth is known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.protocols import AbstractTask, Predictor
from icllab.diagnostics.behaviour.lengths import counts_of, per_length
from icllab.tasks.sequences import AbstractSequences


def divergences(
    predictors: Any,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    truth: str | Predictor | None = None,
    counts: Sequence[float] | None = None,
    prompts: int = 1024,
    block: int = 256,
) -> xr.Dataset:
    r"""Divergence of predictors from the truth, for every context length.

    .. math:: K^{(l)} = L^{(l)} - H^{(l)}
                      = E\,\mathrm{KL}\bigl(q(\cdot \mid t_1\cdots t_l)\,\|\,p(\cdot \mid t_1\cdots t_l)\bigr)

    .. math:: \sum_{l=1}^{C-1} K^{(l)}
              = E_{t_1}\mathrm{KL}\bigl(q(t_2\cdots t_C \mid t_1)\,\|\,p(t_2\cdots t_C \mid t_1)\bigr)

    The sum over the lengths of a window is the divergence of the whole window, given its first token, which nobody is
    asked for. Position i of the result is l = i + 1 tokens seen.

    Args:
        predictors: Any of the kinds that :func:`~icllab.diagnostics.behaviour.lengths.per_length` takes; so are
            the others.
        task: Task of sequences whose entropies are known, or any where the truth is given.
        truth: Predictor that knows the distribution, or its name among the predictors. The losses of the others are
            then taken above its own window by window, with far smaller errors, and a window's sum over lengths is the
            log ratio of its probabilities.

    Returns:
        What ``per_length`` returns, with ``divergence`` and its ``_error`` over the axes of the predictors and
        ``position``, ``divergence_sum`` and ``divergence_mean`` over those of the predictors, each with its ``_error``,
        and without a ``truth`` also ``entropy`` over ``position``.

    Raises:
        InputError: Neither a truth is named nor are the task's entropies known, or as ``per_length``.

    Derived: docs/learning-machine.md, A window as a sum over its lengths.
    """
    if truth is None and not isinstance(task, AbstractSequences):
        raise expected(
            "truth", "the name of a predictor that knows the distribution, unless the task has entropies", truth
        )
    losses = per_length(predictors, task, key=key, prompts=prompts, block=block, against=truth, counts=counts)
    times_counted = counts_of(losses.sizes["position"], counts)
    times = float(times_counted.sum())
    if truth is not None:
        ends = ("", "_error", "_mean", "_mean_error")
        losses = losses.assign({f"divergence{end}": losses[f"difference{end}"] for end in ends})
    else:
        assert isinstance(task, AbstractSequences)
        least = np.asarray(task.entropies())
        losses = losses.assign(entropy=("position", least))
        losses = losses.assign(divergence=losses["loss"] - losses["entropy"], divergence_error=losses["standard_error"])
        mean = float(least @ times_counted / times)
        losses = losses.assign(
            divergence_mean=losses["loss_mean"] - mean, divergence_mean_error=losses["loss_mean_error"]
        )
    return losses.assign({f"divergence_sum{end}": times * losses[f"divergence_mean{end}"] for end in ("", "_error")})
