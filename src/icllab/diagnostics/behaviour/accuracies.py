r"""The accuracy of predictors on a classification task."""

from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor
from icllab.diagnostics.behaviour.answers import Question, answers, mean_over_prompts
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.training.ensembles import Ensemble


class Accuracy(Question):
    """Correctness of the answer at every position that the predictor answers."""

    def __call__(self, predictor: Predictor, task: Any, prompt: Prompt) -> Float[Array, " answer"]:
        """1 if the answer is right, 0 if it is wrong, NaN if the largest logit is not finite."""
        return task.accuracy(predictor(prompt), prompt)


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
        gives no answer, and where the largest logit is not finite.

    Raises:
        InputError: The task is not a classification, or the number of logits differs from the number of classes.

    Derived: docs/item-label.md, Levels.
    """
    if not hasattr(task, "accuracy"):
        raise expected("task", "a classification task, whose answers are right or wrong", type(task).__name__)
    axes = PredictorAxes.from_predictors(predictors, task=task, key=key)
    positions = jax.eval_shape(lambda k: task.sample(key=k), key).positions

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        hits = answers(Accuracy(), members, task, key=key, prompts=prompts, block=block)
        missing = np.full((*hits.shape[:2], positions - hits.shape[2]), np.nan)
        mean, error = mean_over_prompts(np.concatenate([missing, hits], axis=2).swapaxes(0, 1))
        return {"accuracy": mean, "accuracy_error": error}

    return axes.to_dataset(axes.measure(measure), {"position": np.arange(positions)}, prompts=prompts)
