"""Scaling at every position by the mean and deviation of the examples before it, and nothing else.

The scale changes from position to position, so no single scaled prompt could be shown at all of them: one
that is scaled by its whole context tells its early positions about later examples. It is the predictor
that scales, and the prompt keeps its units.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from icllab.core.errors import expected, kind_of
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor, Predictor, answer_single, declared
from icllab.core.rounding import power_of_two


class Units(eqx.Module):
    """Means and standard deviations of the inputs and targets of some examples.

    A standard deviation of 0 stands for a column that is constant in these examples; see :meth:`removed`.
    """

    x_mean: Float[Array, " dim"]
    x_deviation: Float[Array, " dim"]
    y_mean: Float[Array, ""]
    y_deviation: Float[Array, ""]

    @classmethod
    def from_prompt(cls, prompt: RegressionPrompt, examples: int | Int[Array, ""]) -> "Units":
        """Moments of the first ``examples`` examples, divided by their number; zeros for no examples.

        ``examples`` may be traced. Entries after them are not looked at.
        """
        mask = jnp.arange(prompt.positions) < examples
        mean, deviation = _moments(jnp.concatenate([prompt.x, prompt.y[:, None]], axis=1), mask)
        return cls(mean[:-1], deviation[:-1], mean[-1], deviation[-1])

    def removed(self, prompt: RegressionPrompt) -> RegressionPrompt:
        """Scale a prompt to these units. A constant column becomes 0 everywhere, at the query too."""
        return RegressionPrompt(
            x=_divided(prompt.x - self.x_mean[None], self.x_deviation[None]),
            y=_divided(prompt.y - self.y_mean, self.y_deviation),
            mask=prompt.mask,
        )

    def restored(self, prediction: Float[Array, "..."]) -> Float[Array, "..."]:
        """Scale a prediction back to the units of the targets; the mean if all targets are equal."""
        return self.y_mean + self.y_deviation * prediction


class Standardised(AbstractPredictor):
    r"""A predictor that sees the prompt scaled by the examples before the query, and answers in the prompt's units.

    .. math:: \tilde x &= \frac{x - \bar x_i}{s_i}, \qquad \tilde y = \frac{y - \bar y_i}{t_i}, \\
              \hat y_{i+1} &= \bar y_i + t_i\, T(\tilde x_1, \tilde y_1, \dots, \tilde x_i, \tilde y_i, \tilde x_{i+1})

    with the means and standard deviations of the first i examples, divided by i. So the answer does not
    depend on the units or the zero of any column, and a linear predictor has an intercept. After no
    example the answer is 0; after one it is that example's target.

    A predictor of every position runs once per position. One that is not ``traceable`` and scales by itself,
    such as a scikit-learn pipeline, needs no scaling here.

    Attributes:
        predictor: Causal, on regression prompts; if it answers the last position only, so does this.

    Derived: docs/tables.md, Scaled with the context alone.
    """

    predictor: Predictor

    def __check_init__(self) -> None:
        if isinstance(self.predictor, type) or not callable(self.predictor):
            raise expected("predictor", "a function of a prompt", kind_of(self.predictor))

    @property
    def positions(self) -> Literal["every", "last"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of ``predictor``: "every" or "last"."""
        return declared(self.predictor, "positions")

    @property
    def traceable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of ``predictor``: True if it is traceable."""
        return declared(self.predictor, "traceable")

    @property
    def differentiable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of ``predictor``: True if it is differentiable."""
        return declared(self.predictor, "differentiable")

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " answered"]:
        """The answers in the units of ``prompt``."""

        def after(examples: int | Int[Array, ""]) -> Float[Array, " answered"]:
            units = Units.from_prompt(prompt, examples)
            return units.restored(jnp.asarray(answer_single(self.predictor, units.removed(prompt)), prompt.y.dtype))

        if self.positions == "last":
            return after(prompt.length)
        if self.traceable:
            return jax.vmap(lambda i: after(i)[i])(jnp.arange(prompt.positions))
        return jnp.stack([after(i)[i] for i in range(prompt.positions)])


def _moments(
    columns: Float[Array, "position column"], mask: Float[Array, " position"] | Array
) -> tuple[Float[Array, " column"], Float[Array, " column"]]:
    """Mean and standard deviation of every column over the visible rows."""
    rows = mask[:, None]
    count = jnp.maximum(jnp.sum(mask), 1).astype(columns.dtype)
    mean = jnp.sum(jnp.where(rows, columns, 0), axis=0) / count
    differences = jnp.where(rows, columns - mean[None], 0)
    unit = power_of_two(jnp.max(jnp.abs(differences), axis=0))  # squares neither overflow nor vanish
    variance = jnp.sum((differences / unit[None]) ** 2, axis=0) / count
    # Compared, not subtracted: the mean of equal numbers may differ from them by rounding.
    highest = jnp.max(jnp.where(rows, columns, -jnp.inf), axis=0)
    lowest = jnp.min(jnp.where(rows, columns, jnp.inf), axis=0)
    varies = (highest > lowest) & (variance > 0)
    return mean, jnp.where(varies, jnp.sqrt(jnp.where(varies, variance, 1)), 0) * unit


def _divided(values: Float[Array, "*rest"], deviation: Float[Array, "*#rest"]) -> Float[Array, "*rest"]:
    """Values divided by their deviation, or 0 if the deviation is 0."""
    varies, unit = deviation > 0, power_of_two(deviation)  # 1 over a large deviation may vanish, 1 over its unit not
    return (values / unit) * jnp.where(varies, 1 / jnp.where(varies, deviation / unit, 1), 0)
