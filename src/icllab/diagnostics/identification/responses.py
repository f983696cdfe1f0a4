r"""How a predictor responds to a query: its answer, and the answer's derivative with respect to the query.

.. math:: f_i = f(x_1, y_1, \dots, x_i, y_i;\; x_{i+1}), \qquad g_i = \frac{\partial f_i}{\partial x_{i+1}}

Two predictors are compared by both. What both are measured against are the baselines: answers that do not use the
examples and the query together.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.algorithms.least_squares import LinearPredictor
from icllab.core.errors import expected
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractTask, Predictor, declared
from icllab.diagnostics.behaviour.answers import Question, answers_to
from icllab.training.ensembles import Ensemble
from icllab.training.streams import Positions, chosen_positions

# Of the mean square: less than this is rounding, in either precision.
_NOTHING = 1e-10


class Responses(NamedTuple):
    """What a predictor answers on prompts, with derivatives with respect to the query if it has them."""

    values: Float[np.ndarray, "*member prompt position"]
    gradients: Float[np.ndarray, "*member prompt position dim"] | None

    def member(self, index: int) -> "Responses":
        """Those of one member of an ensemble."""
        return Responses(self.values[index], None if self.gradients is None else self.gradients[index])


class Response(Question):
    """Answers at some positions, counted from 0, then their derivatives with respect to the queries there."""

    positions: tuple[int, ...] = eqx.field(static=True)
    gradients: bool = eqx.field(static=True)  # whether derivatives are taken

    def __call__(self, predictor: Predictor, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        """All answers, and all derivatives in a row."""
        values, gradients = self.of(predictor, prompt)
        return values if gradients is None else jnp.concatenate([values, gradients.reshape(-1)])

    def of(
        self, predictor: Predictor, prompt: RegressionPrompt
    ) -> tuple[Float[Array, " asked"], Float[Array, "asked dim"] | None]:
        """The answers, and their derivatives if they are asked for."""

        def answer(x: Float[Array, "position dim"]) -> Float[Array, " asked"]:
            asked = RegressionPrompt(x=x, y=prompt.y)
            if declared(predictor, "positions") == "last":
                # Asked at an earlier position by a prompt that ends there.
                last = asked.length
                each = [predictor(asked if p == last else asked.alone(p, size=p + 1)) for p in self.positions]
                return jnp.stack([_numbers(found)[-1] for found in each])
            return _numbers(predictor(asked))[jnp.asarray(self.positions)]

        if not self.gradients:
            return answer(prompt.x), None
        values, pull = jax.vjp(answer, prompt.x)
        (of_inputs,) = jax.vmap(pull)(jnp.eye(len(self.positions), dtype=values.dtype))
        return values, of_inputs[jnp.arange(len(self.positions)), jnp.asarray(self.positions)]


class LinearResponse(Question):
    """The same of a predictor that is linear in the query, whose weights are the derivatives."""

    positions: tuple[int, ...] = eqx.field(static=True)

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, predictor: LinearPredictor, task: AbstractTask, prompt: Any
    ) -> Float[Array, " answer"]:
        """All answers, and all derivatives in a row."""
        at = jnp.asarray(self.positions)
        weights = predictor.weights(prompt)[at]
        return jnp.concatenate([jnp.sum(prompt.x[at] * weights, axis=1), weights.reshape(-1)])


def asked_positions(task: AbstractTask, positions: Positions, key: PRNGKeyArray) -> tuple[int, ...]:
    """Which positions are compared; tasks of other prompts than those of regression are refused."""
    prompt = eqx.filter_eval_shape(lambda k: task.sample(key=k), key)
    if not isinstance(prompt, RegressionPrompt):
        raise expected("task", "one of regression prompts", type(prompt).__name__)
    return chosen_positions(positions, prompt.positions, prompt.positions)


def responses(
    predictor: Predictor | Ensemble,
    task: AbstractTask,
    prompts: RegressionPrompt,
    *,
    positions: tuple[int, ...],
    block: int,
) -> Responses:
    """The responses to prompts stacked on a leading axis, of an ensemble with an axis of members before it.

    Derivatives are taken of predictors that are traceable and differentiable.
    """
    one = predictor.stacked if isinstance(predictor, Ensemble) else predictor
    gradients = bool(declared(one, "traceable") and declared(one, "differentiable"))
    # One that answers otherwise than with its weights is differentiated as others are.
    linear = gradients and isinstance(one, LinearPredictor) and type(one).__call__ is LinearPredictor.__call__
    question = LinearResponse(positions) if linear else Response(positions, gradients)
    found = answers_to(question, predictor, task, prompts, block=block)
    if not gradients:
        return Responses(found, None)
    first = len(positions)
    return Responses(found[..., :first], found[..., first:].reshape(*found.shape[:-1], first, -1))


class Baselines(NamedTuple):
    r"""What of a predictor's answers the baselines explain, fitted on prompts of their own.

    .. math:: t = c_0 + c_1^\top x + c_2\,\bar y, \qquad \nabla_xt = c

    with least squares for the answers, and the mean gradient for the gradients. Neither uses the examples and the query
    together, as an algorithm that learns in context has to.
    """

    coefficients: Float[np.ndarray, " feature"]  # c_0, c_1, c_2
    gradient: Float[np.ndarray, " dim"] | None

    @classmethod
    def fitted(cls, seen: Responses, features: Float[np.ndarray, "prompt position feature"]) -> "Baselines":
        """The best on these prompts, all positions together."""
        rows = features.reshape(-1, features.shape[-1])
        # A network whose answers are no numbers has no coefficients, and no candidate explains them.
        usable = np.isfinite(seen.values).all()
        found = np.linalg.lstsq(rows, seen.values.ravel(), rcond=None)[0] if usable else rows[0] * np.nan
        return cls(found, None if seen.gradients is None else seen.gradients.mean((0, 1)))

    def left(
        self, seen: Responses, features: Float[np.ndarray, "prompt position feature"]
    ) -> tuple[Float[np.ndarray, " prompt"], Float[np.ndarray, " prompt"] | None]:
        """The squares of what they leave of answers and of gradients, on each prompt; 0 where that is rounding."""
        with np.errstate(over="ignore", invalid="ignore"):
            of_values = ((seen.values - features @ self.coefficients) ** 2).mean(1)
            values = _unless_rounding(of_values, (seen.values**2).mean())
            if seen.gradients is None or self.gradient is None:
                return values, None
            of_gradients = ((seen.gradients - self.gradient) ** 2).sum(2).mean(1)
            return values, _unless_rounding(of_gradients, (seen.gradients**2).sum(2).mean())


def baseline_features(
    prompts: RegressionPrompt, positions: tuple[int, ...]
) -> Float[np.ndarray, "prompt position feature"]:
    """What the baselines see of each prompt: a constant, the query, and the mean of the labels before it."""
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
