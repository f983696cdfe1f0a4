r"""Response of a predictor to a query: its answer, and the derivative with respect to the query.

.. math:: f_i = f(x_1, y_1, \dots, x_i, y_i;\; x_{i+1}), \qquad g_i = \frac{\partial f_i}{\partial x_{i+1}}

The comparison of two predictors uses both. Their scale is set by baselines: answers that do not combine the examples
and the query.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.algorithms.least_squares import LinearPredictor
from icllab.core.errors import expected
from icllab.core.prompt import RegressionPrompt, TokenPrompt, scored_positions
from icllab.core.protocols import AbstractTask, Predictor, declared
from icllab.diagnostics.behaviour.answers import Question, answers_to
from icllab.diagnostics.validate_predictor import OnHost
from icllab.models.torch_derivatives import with_autograd
from icllab.training.ensembles import Ensemble, alone
from icllab.training.streams import Positions, chosen_positions

HOST = "JAX cannot differentiate the predictor"
# Smallest fraction of a mean square that is not rounding, in either precision.
_NOTHING = 1e-10


class Responses(NamedTuple):
    """Answers to prompts, with derivatives with respect to the query if the predictor has them."""

    values: Float[np.ndarray, "*member prompt position"]
    gradients: Float[np.ndarray, "*member prompt position dim"] | None
    reason: str = ""  # for which there are no derivatives

    def member(self, index: int) -> "Responses":
        """Responses of one member of an ensemble."""
        return Responses(self.values[index], None if self.gradients is None else self.gradients[index], self.reason)


class ResponseQuestion(Question):
    """Answers at given positions, then their derivatives with respect to the queries at these positions."""

    positions: tuple[int, ...] = eqx.field(static=True)
    gradients: bool = eqx.field(static=True)  # whether derivatives are taken

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        """Answers and derivatives as one vector."""
        values, gradients = self.evaluate(predictor, prompt)
        return values if gradients is None else jnp.concatenate([values, gradients.reshape(-1)])

    def evaluate(
        self, predictor: Predictor, prompt: RegressionPrompt
    ) -> tuple[Float[Array, " asked"], Float[Array, "asked dim"] | None]:
        """Answers, and their derivatives if ``gradients``."""

        def answer(x: Float[Array, "position dim"]) -> Float[Array, " asked"]:
            query_prompt = RegressionPrompt(x=x, y=prompt.y, mask=prompt.mask)
            if declared(predictor, "positions") == "last":
                # The answer at an earlier position is that to a prompt that ends at it.
                last = query_prompt.length
                predictions = [
                    predictor(query_prompt if p == last else query_prompt.alone(p, size=p + 1)) for p in self.positions
                ]
                return jnp.stack([_numbers(prediction)[-1] for prediction in predictions])
            return _numbers(predictor(query_prompt))[jnp.asarray(self.positions)]

        if not self.gradients:
            return answer(prompt.x), None
        values, pull = jax.vjp(answer, prompt.x)
        (of_inputs,) = jax.vmap(pull)(jnp.eye(len(self.positions), dtype=values.dtype))
        return values, of_inputs[jnp.arange(len(self.positions)), jnp.asarray(self.positions)]


class LinearResponseQuestion(Question):
    """The response of a predictor that is linear in the query, whose weights are the derivatives."""

    positions: tuple[int, ...] = eqx.field(static=True)

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, predictor: LinearPredictor, task: AbstractTask, prompt: Any
    ) -> Float[Array, " answer"]:
        """Answers and derivatives as one vector."""
        at = jnp.asarray(self.positions)
        weights = predictor.weights(prompt)[at]
        return jnp.concatenate([jnp.sum(prompt.x[at] * weights, axis=1), weights.reshape(-1)])


def compared_positions(task: AbstractTask, positions: Positions, key: PRNGKeyArray) -> tuple[int, ...]:
    """Positions of the comparison; raise unless the prompts are of regression or of token ids."""
    prompt = eqx.filter_eval_shape(lambda k: task.sample(key=k), key)
    if not isinstance(prompt, RegressionPrompt | TokenPrompt):
        raise expected("task", "one of regression prompts, or of token ids", type(prompt).__name__)
    return chosen_positions(positions, prompt.positions, prompt.positions)


def require_compared(prompts: Any, positions: tuple[int, ...]) -> None:
    """Raise unless every prompt has a target at each compared position."""
    scored = scored_positions(prompts)
    if scored is None:
        return
    missing = ~np.asarray(scored)[:, list(positions)]
    if missing.any():
        position = positions[int(missing.any(axis=0).argmax())]
        came = f"{position}, which {int(missing.any(axis=1).sum())} of {len(missing)} prompts do not have"
        raise expected("positions", "positions that all prompts have", came, "give those of the shortest prompt")


def responses(
    predictor: Predictor | Ensemble,
    task: AbstractTask,
    prompts: RegressionPrompt,
    *,
    positions: tuple[int, ...],
    block: int,
) -> Responses:
    """Responses to stacked prompts; those of an ensemble have a leading axis of members.

    Traceable and differentiable predictors have derivatives.
    """
    network = predictor.stacked if isinstance(predictor, Ensemble) else predictor
    function, reason = _differentiable(network, ResponseQuestion(positions, True), task, prompts)
    if function is not network:
        network, predictor = function, alone(function) if isinstance(predictor, Ensemble) else function
    gradients = not reason
    # A subclass that overrides the answer is differentiated.
    linear = gradients and isinstance(network, LinearPredictor) and type(network).__call__ is LinearPredictor.__call__
    question = LinearResponseQuestion(positions) if linear else ResponseQuestion(positions, gradients)
    numbers = answers_to(question, predictor, task, prompts, block=block)
    if not gradients:
        return Responses(numbers, None, reason)
    first = len(positions)
    return Responses(numbers[..., :first], numbers[..., first:].reshape(*numbers.shape[:-1], first, -1))


def _differentiable(
    network: Any, question: ResponseQuestion, task: AbstractTask, prompts: RegressionPrompt
) -> tuple[Any, str]:
    """The network as a function that JAX differentiates, or the network and the reason why there is none."""
    inner = network.function if isinstance(network, OnHost) else network
    try:
        function = with_autograd(inner)
        if function is inner:
            return network, "" if declared(network, "traceable") and declared(network, "differentiable") else HOST
        first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], prompts) for i in range(2))
        values, gradients = question.evaluate(function, first)
        others, _ = question.evaluate(function, RegressionPrompt(second.x, first.y, first.mask))
        if np.any(np.asarray(gradients)) or np.array_equal(values, others):
            return function, ""
        return network, "autograd finds no dependence on the inputs, as beneath torch.no_grad()"
    except Exception as error:
        return network, (str(error).splitlines() or [""])[0]


class Baselines(NamedTuple):
    r"""Baselines of a predictor's answers and gradients, fitted on separate prompts.

    .. math:: t = c_0 + c_1^\top x + c_2\,\bar y, \qquad \nabla_xt = c

    with least squares for the answers, and the mean gradient for the gradients. Neither combines the examples and the
    query, as an algorithm that learns in context must.
    """

    coefficients: Float[np.ndarray, " feature"]  # c_0, c_1, c_2
    gradient: Float[np.ndarray, " dim"] | None

    @classmethod
    def from_responses(
        cls, responses: Responses, features: Float[np.ndarray, "prompt position feature"]
    ) -> "Baselines":
        """Fit the baselines to responses, with all positions together."""
        rows = features.reshape(-1, features.shape[-1])
        # Answers that are not finite have no coefficients, and no candidate explains them.
        usable = np.isfinite(responses.values).all()
        coefficients = np.linalg.lstsq(rows, responses.values.ravel(), rcond=None)[0] if usable else rows[0] * np.nan
        return cls(coefficients, None if responses.gradients is None else responses.gradients.mean((0, 1)))

    def residuals(
        self, responses: Responses, features: Float[np.ndarray, "prompt position feature"]
    ) -> tuple[Float[np.ndarray, " prompt"], Float[np.ndarray, " prompt"] | None]:
        """Squared residuals of answers and of gradients on each prompt; 0 if they are rounding."""
        with np.errstate(over="ignore", invalid="ignore"):
            of_values = ((responses.values - features @ self.coefficients) ** 2).mean(1)
            values = _unless_rounding(of_values, (responses.values**2).mean())
            if responses.gradients is None or self.gradient is None:
                return values, None
            of_gradients = ((responses.gradients - self.gradient) ** 2).sum(2).mean(1)
            return values, _unless_rounding(of_gradients, (responses.gradients**2).sum(2).mean())


def baseline_features(
    prompts: RegressionPrompt, positions: tuple[int, ...]
) -> Float[np.ndarray, "prompt position feature"]:
    """Features of the baselines: a constant, the query, and the mean of the labels before it."""
    x, y, at = np.asarray(prompts.x, float), np.asarray(prompts.y, float), np.asarray(positions)
    before = np.concatenate([np.zeros_like(y[:, :1]), np.cumsum(y, axis=1)], axis=1)[:, at]
    means = (before / np.maximum(at, 1))[..., None]
    return np.concatenate([np.ones_like(means), x[:, at], means], axis=-1)


def _numbers(prediction: Array) -> Float[Array, " answered"]:
    if prediction.ndim != 1:
        raise expected("predictor", "one number for each position", list(prediction.shape))
    return prediction


def _unless_rounding(squares: np.ndarray, size: np.floating) -> np.ndarray:
    return np.zeros_like(squares) if squares.mean() <= _NOTHING * size else squares
