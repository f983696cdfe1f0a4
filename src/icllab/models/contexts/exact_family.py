r"""Models whose answer to a context equals the answer of the same model with other weights.

A context c maps the weights w to :math:`f_c(w)` where the model with the context answers every query as the model of
weights :math:`f_c(w)` does without one,

.. math:: T_w(c, x) = T_{f_c(w)}(x) \quad \text{for every } x.

For most models such a map has to be sought; here it is a formula. Linear attention alone cannot be an example: its
answer without a context is 0. It needs a direct term.

Derived: docs/contexts-to-weights.md, Models whose map is a formula.
"""

import abc
from numbers import Real

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.domains import FINITE
from icllab.core.errors import expected, require_flag, require_integer, require_key
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractModel, Edit, Trace
from icllab.models.interventions.recording import Recorder
from icllab.models.networks.dense import require_spread


class ExactFamily(AbstractModel):
    """A model of regression prompts whose map :math:`f_c` has a closed form."""

    @abc.abstractmethod
    def mapped(self, prompt: RegressionPrompt) -> "ExactFamily":
        """:math:`f_c(w)`: the model with the weights to which the examples before the last query are equivalent."""


class FastWeights(ExactFamily):
    r"""Linear attention of rank at most k with a direct term: slow weights b, and fast weights written by a context.

    .. math:: \hat y = x \cdot (b + B A h_c), \qquad
              h_c = \sum_{i \in c} y_i x_i \;\text{ or }\; \frac1n \sum_{i \in c} y_i x_i

    Without a context it answers :math:`x \cdot b`, so that :math:`f_c(A, B, b) = (A, B, b + B A h_c)` for every input
    distribution. With the sum, :math:`f_{c_1 c_2} = f_{c_2} \circ f_{c_1}`; with the mean this fails, since each of
    the two contexts would be divided by its own length.

    Activations, each for every position: ``context`` (:math:`h_c` of the examples before it), ``hidden`` (A h),
    ``fast`` (B A h), ``weights`` (b + B A h), ``prediction``.

    Attributes:
        down: A.
        up: B.
        slow: b.
        normalised: Whether :math:`h_c` is a mean (0 without examples) or a sum.

    Derived: docs/contexts-to-weights.md, Models whose map is a formula.
    """

    down: Float[Array, "hidden dim"]
    up: Float[Array, "dim hidden"]
    slow: Float[Array, " dim"]
    normalised: bool = eqx.field(static=True, kw_only=True)

    @classmethod
    def init(cls, *, dim: int, hidden: int, std: float, normalised: bool, key: PRNGKeyArray) -> "FastWeights":
        """Draw all weights from a normal distribution with standard deviation ``std``."""
        require_integer("dim", dim)
        require_integer("hidden", hidden)
        require_spread("std", std, default=False)
        require_flag("normalised", normalised)
        require_key(key)
        of_down, of_up, of_slow = jax.random.split(key, 3)
        down = std * jax.random.normal(of_down, (hidden, dim))
        up = std * jax.random.normal(of_up, (dim, hidden))
        return cls(down, up, std * jax.random.normal(of_slow, (dim,)), normalised=normalised)

    def context(self, prompt: RegressionPrompt) -> Float[Array, "position dim"]:
        """:math:`h_c` for the examples before every position."""
        return _before(prompt.y[:, None] * prompt.x, normalised=self.normalised)

    def trace(self, prompt: RegressionPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record = Recorder(edit)
        hidden = record("hidden", record("context", self.context(prompt)) @ self.down.T)
        fast = record("fast", hidden @ self.up.T)
        weights = record("weights", self.slow[None] + fast)
        return Trace(record("prediction", jnp.sum(prompt.x * weights, axis=1)), record.activations)

    def mapped(self, prompt: RegressionPrompt) -> "FastWeights":
        """:math:`(A, B, b + B A h_c)`, where c is the examples before the last query."""
        fast = self.up @ (self.down @ self.context(prompt)[-1])
        return eqx.tree_at(lambda model: model.slow, self, self.slow + fast)

    def jacobian(self, prompt: RegressionPrompt) -> Float[Array, "dim parameter"]:
        r"""The derivative of the direct term of :math:`f_c` in A, B (by rows) and b, in this order.

        .. math:: \frac{\partial (b + B A h)}{\partial (A, B, b)}
                  = \big[\, B \otimes h^\top,\;\; I \otimes (A h)^\top,\;\; I \,\big]

        The other two components of :math:`f_c` are the identity on A and on B. Without the last block its rank is
        :math:`d` where :math:`A h \ne 0`, and else the rank of B (0 for :math:`h = 0`).
        """
        h, identity = self.context(prompt)[-1], jnp.eye(len(self.slow), dtype=self.slow.dtype)
        return jnp.concatenate(
            [jnp.kron(self.up, h[None]), jnp.kron(identity, (self.down @ h)[None]), identity], axis=1
        )


class GradientStep(ExactFamily):
    r"""Regression with weights that take one gradient step on the context.

    .. math:: \hat y = x \cdot \Big( w_0 + \frac{\eta}{n} \sum_{i \in c} (y_i - w_0 \cdot x_i)\, x_i \Big)

    Here :math:`f_c(w_0) - w_0` is the step of size :math:`\eta` on the loss
    :math:`\ell_c(w) = \frac{1}{2n} \sum_{i \in c} (y_i - w \cdot x_i)^2`: its cosine with :math:`-\nabla \ell_c(w_0)`
    is 1, and the best step along it leaves nothing.

    Activations: ``residuals`` (:math:`y_i - w_0 \cdot x_i`); for every position ``step`` (of the examples before it),
    ``weights`` and ``prediction``.

    Attributes:
        start: :math:`w_0`.
        rate: :math:`\eta`.

    Source: the step, as what a layer of linear attention computes [vonOswald23].
    """

    start: Float[Array, " dim"]
    rate: Float[Array, ""]

    def __check_init__(self) -> None:
        if isinstance(self.start, list | tuple | str | Real) or np.ndim(self.start) != 1:
            raise expected("start", "an array of one number for each dimension", type(self.start).__name__)
        FINITE.require_scalar("rate", self.rate)

    def trace(self, prompt: RegressionPrompt, edit: Edit | None = None) -> Trace:
        """Predict, and record the named activations."""
        record = Recorder(edit)
        residuals = record("residuals", prompt.y - prompt.x @ self.start)
        step = record("step", self.rate * _before(residuals[:, None] * prompt.x, normalised=True))
        weights = record("weights", self.start[None] + step)
        return Trace(record("prediction", jnp.sum(prompt.x * weights, axis=1)), record.activations)

    def mapped(self, prompt: RegressionPrompt) -> "GradientStep":
        """The model whose start is the result of the step on the examples before the last query."""
        return eqx.tree_at(lambda model: model.start, self, self.trace(prompt).activations["weights"][-1])


def _before(terms: Float[Array, "position dim"], *, normalised: bool) -> Float[Array, "position dim"]:
    """Sum or mean of the rows before each row."""
    sums = jnp.cumsum(jnp.concatenate([jnp.zeros_like(terms[:1]), terms[:-1]]), axis=0)
    count = jnp.maximum(jnp.arange(len(terms)), 1).astype(terms.dtype)
    return sums / count[:, None] if normalised else sums
