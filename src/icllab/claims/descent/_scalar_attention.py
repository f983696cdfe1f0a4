r"""Attention of which only step sizes and one temperature are trained, with any of four weightings.

.. math:: u_j \leftarrow u_j - \eta_l \sum_{i \le n} u_i\, h(x_i, x_j), \qquad l = 1, \dots, L, \qquad \hat y = -u_q,

from :math:`u = (y_1, \dots, y_n, 0)`: the construction of
:class:`~icllab.algorithms.functional.FunctionalDescent`, read at the last position alone. The weighting is a number in
an array and not a static name, so that all of them are one compiled program.
"""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics.identification.candidates import FreeNumbers, fitted_rival

WEIGHTINGS = ("linear", "relu", "exponential", "softmax")


class ScalarAttention(AbstractPredictor):
    r"""The last answer of L steps with one of the weightings.

    Attributes:
        kind: Number of the weighting in ``WEIGHTINGS``.
        rates: :math:`\eta_l` over ``unit``.
        unit: A size of step that is right for the weighting; not trained.
        log_temperature: :math:`\ln T`, of all layers.
        heated: Whether the temperature is used, 0 or 1; with 0 it is :math:`T = 1` and has no gradient.
    """

    positions: ClassVar[Literal["every", "last"]] = "last"

    kind: Int[Array, ""]
    rates: Float[Array, " layer"]
    unit: Float[Array, ""]
    log_temperature: Float[Array, ""]
    heated: Float[Array, ""]

    @property
    def temperature(self) -> Float[Array, ""]:
        """T of all layers."""
        return jnp.exp(self.heated * self.log_temperature)

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " answered"]:
        """The prediction at the last position."""
        weights = weighting(self.kind, prompt.x, self.temperature)
        rates = self.unit * self.rates
        slots = prompt.y.at[-1].set(0.0)
        for i in range(len(self.rates)):
            slots = slots - rates[i] * (slots[:-1] @ weights[:-1])
        return -slots[-1:]


def weighting(
    kind: Int[Array, ""], inputs: Float[Array, "position dim"], temperature: Float[Array, ""]
) -> Float[Array, "position position"]:
    """h of all pairs, row: key, column: query; softmax over all keys, the last among them."""
    scores = inputs @ inputs.T / temperature
    plain = (lambda s: s, jax.nn.relu, jnp.exp, lambda s: jax.nn.softmax(s, axis=0))
    return jax.lax.switch(kind, plain, scores)


def started(name: str, heated: bool, layers: int, prompts: RegressionPrompt) -> ScalarAttention:
    """Where the training of one weighting starts: rates from one over its largest eigenvalue to ten times that.

    Equal rates would stay equal: the answer does not change when two of them are exchanged, if the temperature is one.
    """
    kind, dtype = jnp.asarray(WEIGHTINGS.index(name), jnp.int32), prompts.x.dtype
    few = np.asarray(_weightings(kind, prompts.x[:32]), float)
    largest = np.mean([np.abs(np.linalg.eigvals(matrix[:-1, :-1])).max() for matrix in few])
    return ScalarAttention(
        kind=kind,
        rates=jnp.asarray(np.geomspace(1.0, 10.0, layers), dtype),
        unit=jnp.asarray(1 / largest, dtype),
        log_temperature=jnp.zeros((), dtype),
        heated=jnp.asarray(heated, dtype),
    )


def trained(start: ScalarAttention, prompts: RegressionPrompt) -> ScalarAttention:
    """The rates, and the temperature of what is heated, of least squared error at the last position of the prompts.

    Found by Gauss and Newton's method from three starts; rates stay positive.
    """
    paths = ["rates", "log_temperature"] if float(start.heated) else ["rates"]
    position = prompts.x.shape[1] - 1
    targets = np.asarray(prompts.y[:, -1:], float)
    found: Any = fitted_rival(start, FreeNumbers.of("attention", start, paths), prompts, targets, (position,))
    return found


@jax.jit
def _weightings(
    kind: Int[Array, ""], inputs: Float[Array, "prompt position dim"]
) -> Float[Array, "prompt position position"]:
    return jax.vmap(lambda x: weighting(kind, x, jnp.ones((), x.dtype)))(inputs)


@eqx.filter_jit
def squared_errors(predictor: Any, prompts: RegressionPrompt) -> Float[Array, " prompt"]:
    """Of the last answers."""
    return jax.lax.map(lambda prompt: (predictor(prompt)[-1] - prompt.y[-1]) ** 2, prompts, batch_size=256)
