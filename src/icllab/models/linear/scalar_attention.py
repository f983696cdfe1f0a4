r"""Attention with only step sizes and one temperature as trained parameters, with any of four weightings.

.. math:: u_j \leftarrow u_j - \eta_l \sum_{i \le n} u_i\, h(x_i, x_j), \qquad l = 1, \dots, L, \qquad \hat y = -u_q,

from :math:`u = (y_1, \dots, y_n, 0)`: the construction of
:class:`~icllab.algorithms.functional.FunctionalDescent`, read at the last position alone.
"""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from icllab.core.domains import POSITIVE, Domain
from icllab.core.errors import expected
from icllab.core.kernels import ELEMENTWISE, NAMES, require_kernel
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.models.interventions.recording import Recorder


class ScalarAttention(AbstractModel):
    r"""The last answer of L steps with one of the weightings.

    The weighting is a number in an array and not a static name, so that all of them are one compiled program.
    Activations: ``pattern`` (h of all pairs), ``layer0``, ... (u after each layer), ``prediction``.

    Attributes:
        kind: Number of the weighting in :data:`~icllab.core.kernels.NAMES`.
        rates: :math:`\eta_l` over ``unit``.
        unit: A size of step that is right for the weighting; not trained.
        log_temperature: :math:`\ln T`, the same in all layers.
        uses_temperature: 1, or 0 for :math:`T = 1` without a gradient.

    Source: [Cheng24].
    """

    positions: ClassVar[Literal["every", "last"]] = "last"

    kind: Int[Array, ""]
    rates: Float[Array, " layer"]
    unit: Float[Array, ""]
    log_temperature: Float[Array, ""]
    uses_temperature: Float[Array, ""]

    @classmethod
    def from_rates(
        cls, weighting: str, rates: Float[Array, " layer"], *, unit: float = 1.0, temperature: float | None = 1.0
    ) -> "ScalarAttention":
        """Build the attention with a weighting of this name; all numbers have the type of ``rates``.

        With ``temperature=None`` it is 1, and not trained. An unknown name raises an ``InputError``.
        """
        require_kernel("weighting", weighting, function=False)
        if not isinstance(rates, jax.Array | np.ndarray) or rates.ndim != 1:
            actual = rates.shape if isinstance(rates, jax.Array | np.ndarray) else type(rates).__name__
            raise expected("rates", "an array of one number for each layer", actual)
        POSITIVE.require_scalar("unit", unit)
        if temperature is not None:
            requirement = "a finite number > 0, or None for 1"
            Domain(above=0, text=requirement).require_scalar("temperature", temperature)
        return cls(
            kind=jnp.asarray(NAMES.index(weighting), jnp.int32),
            rates=rates,
            unit=jnp.asarray(unit, rates.dtype),
            log_temperature=jnp.log(jnp.asarray(1.0 if temperature is None else temperature, rates.dtype)),
            uses_temperature=jnp.asarray(temperature is not None, rates.dtype),
        )

    @property
    def temperature(self) -> Float[Array, ""]:
        """T of all layers."""
        return jnp.exp(self.uses_temperature * self.log_temperature)

    def pattern(self, inputs: Float[Array, "position dim"]) -> Float[Array, "position position"]:
        """h of all pairs, keys as rows and queries as columns; the softmax is over all keys, including the last."""
        scores = inputs @ inputs.T / self.temperature
        functions = (*ELEMENTWISE.values(), lambda scores: jax.nn.softmax(scores, axis=0))
        return jax.lax.switch(self.kind, functions, scores)

    def trace(self, prompt: RegressionPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record = Recorder(edit)
        weights = record("pattern", self.pattern(prompt.x))
        rates = self.unit * self.rates
        slots = prompt.y.at[-1].set(0.0)
        for i in range(len(self.rates)):
            slots = record(f"layer{i}", slots - rates[i] * (slots[:-1] @ weights[:-1]))
        return Trace(record("prediction", -slots[-1:]), record.activations)
