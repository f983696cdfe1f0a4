r"""Weight of one of two predictors in the mixture nearest to a network: memorising against generalising."""

from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_key
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractTask, Predictor, declared, require_task
from icllab.core.result_warnings import warns
from icllab.diagnostics.behaviour.answers import Question, answers, mean_over_prompts
from icllab.diagnostics.predictor_axes import PredictorAxes
from icllab.diagnostics.validate_predictor import validate_predictor
from icllab.training.ensembles import Ensemble


class _Answers(Question):
    """Answers of a predictor at all positions with at least one example, as one vector; probabilities for tokens."""

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        answer = predictor(prompt)
        if isinstance(prompt, TokenPrompt):
            answer = jax.nn.softmax(answer, axis=-1)
        first = 1 if declared(predictor, "positions") == "every" else 0
        return answer[first:].reshape(-1)


@warns("mixture weight", "mixture_weight", "mixture_weight_error")
def mixture_weight(
    predictors: Any,
    first: Predictor,
    second: Predictor,
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    prompts: int = 1024,
) -> xr.Dataset:
    r"""Weight of ``first`` in the mixture of two predictors that is nearest to a network, with all distances.

    .. math:: p = \frac{\langle T - G,\; M - G\rangle}{\lVert M - G\rVert^2}
                = \frac12\Bigl(1 - \frac{\lVert T-M\rVert^2 - \lVert T-G\rVert^2}{\lVert M-G\rVert^2}\Bigr)

    with the network T, the first predictor M and the second G. Means are over prompts and over the positions with at
    least one example. With dMMSE first and ridge second it is the relative distance between memorising (1) and
    generalising (0). A network that is far from both has a p too: the distances say so.

    Args:
        predictors: Network, or :mod:`several <icllab.diagnostics.predictor_axes>`.
        first: Predictor M.
        second: Predictor G.
        task: Task that samples the prompts.
        key: Key of the prompts.
        prompts: Number of prompts, at least 2.

    Returns:
        Over the axes of the networks: ``mixture_weight`` p; ``distance_to_first`` :math:`\lVert T-M\rVert^2`;
        ``distance_to_second`` :math:`\lVert T-G\rVert^2`; ``distance_between`` :math:`\lVert M-G\rVert^2`, in squared
        units of an answer; ``log_odds`` :math:`\ln\frac p{1-p}`, NaN unless p is inside (0, 1); each with an
        ``_error`` over prompts.

    Raises:
        InputError: The predictors answer different positions, or M and G are the same function.

    Source: [Wurgaft25].
    Derived: docs/memorising-generalising.md, The weight of the memorising predictor.
    """
    require_task(task)
    require_key(key)
    axes = PredictorAxes.from_predictors(predictors, "predictors", task=task, key=key)
    ends = validate_predictor({"first": first, "second": second}, task, key=key, complaints=axes.warnings)

    def answered(predictor: Any) -> np.ndarray:
        return answers(_Answers(), predictor, task, key=key, prompts=prompts)

    memorising, generalising = answered(ends["first"]), answered(ends["second"])

    def measure(members: Ensemble) -> dict[str, np.ndarray]:
        network = answered(members)
        if network.shape[1:] != memorising.shape or memorising.shape != generalising.shape:
            shapes = [list(array.shape[-1:]) for array in (network, memorising, generalising)]
            raise expected("predictors", "answers at the same positions as both ends", shapes)
        rows = [_weights(part, memorising, generalising) for part in network]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    return axes.to_dataset(axes.measure(measure), prompts=prompts)


def _weights(network: np.ndarray, first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
    """The variables of one network, from answers [prompt, answer] of the three predictors."""
    between = np.mean((first - second) ** 2, axis=1)
    if not between.mean() > 0:
        raise expected("first", "a predictor that differs from the second", "one with the same answers")
    projection = np.mean((network - second) * (first - second), axis=1)
    weight = projection.mean() / between.mean()
    error = np.std(projection - weight * between, ddof=1) / np.sqrt(len(between)) / between.mean()
    inside = 0 < weight < 1
    values = {"mixture_weight": weight, "mixture_weight_error": error}
    distances = {
        "distance_to_first": np.mean((network - first) ** 2, axis=1),
        "distance_to_second": np.mean((network - second) ** 2, axis=1),
        "distance_between": between,
    }
    for name, samples in distances.items():
        values[name], values[f"{name}_error"] = mean_over_prompts(samples)
    values["log_odds"] = np.log(weight / (1 - weight)) if inside else np.nan
    values["log_odds_error"] = error / (weight * (1 - weight)) if inside else np.nan
    return {name: np.asarray(value, float) for name, value in values.items()}
