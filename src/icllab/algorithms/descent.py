r"""Steps of gradient descent on the previous examples, from zero: plain, preconditioned, and GD++.

All descend the squared error of the i examples before a position,

.. math:: F_i(w) = c_i\sum_{j<i}(w^\top x_j - y_j)^2, \qquad
          c_i = \underbrace{\tfrac12}_{\text{half}}\;\underbrace{\tfrac1{\max(i, 1)}}_{\text{normalised}},

and papers disagree on both factors: they are fields. A parameter that all steps share has no axis for layers, one of
its own for each step has a leading one; both are leaves, so that ``fit`` learns a step size. Every prefix is a run of
its own: a step costs O(length dim^2) per prompt, one of GD++ O(length dim^3).
"""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.algorithms.least_squares import LinearPredictor, number, require_finite
from icllab.core.errors import expected, require_flag, require_integer
from icllab.core.prompt import RegressionPrompt

Rate = Float[Array, ""] | Float[Array, " layer"]
Matrix = Float[Array, "dim dim"] | Float[Array, "layer dim dim"]


class Descent(LinearPredictor):
    """Base class of the algorithms of this module, with the number of steps and the objective.

    Attributes:
        layers: Number of steps L, which is the number of layers of the attention that takes them (static).
        dim: Input dimension (static).
        normalised: Whether the objective is divided by the number of examples seen (static).
        half: Whether it has the factor 1/2 (static).

    Raises:
        InputError: A parameter is neither one nor as many as layers; or, when called, inputs have another dimension.
    """

    layers: int = eqx.field(static=True, kw_only=True)
    dim: int = eqx.field(static=True, kw_only=True)
    normalised: bool = eqx.field(static=True, kw_only=True)
    half: bool = eqx.field(static=True, kw_only=True)

    def __check_init__(self) -> None:
        self._require_sizes()
        for name in ("normalised", "half"):
            require_flag(name, getattr(self, name))

    def _require_sizes(self) -> None:
        for name in ("layers", "dim"):
            require_integer(name, getattr(self, name))

    def _require_shape(self, name: str, requirement: str, *sizes: int) -> None:
        self._require_sizes()
        shapes, value = (sizes, (self.layers, *sizes)), getattr(self, name)
        require_finite(name, value, requirement)
        if isinstance(value, jax.Array) and value.shape not in shapes:
            raise expected(name, f"{requirement}, or one for each layer: shape {shapes[0]} or {shapes[1]}", value.shape)

    @abc.abstractmethod
    def descend(self, covariance: Float[Array, "dim dim"], moment: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The weights after all steps, given :math:`S` and :math:`m` in the gradient :math:`Sw - m`."""

    @abc.abstractmethod
    def matrices(self, dtype: Any) -> tuple[Float[Array, "layer dim dim"], Float[Array, "layer dim dim"]]:
        """The preconditioner A and the contraction B of every layer; B is zero except for GD++."""

    def weights(self, prompt: RegressionPrompt) -> Float[Array, "position dim"]:
        """The weights after all steps, for every prefix."""
        if prompt.dim != self.dim:
            raise expected("prompt", f"inputs of dimension {self.dim}", prompt.dim)
        x = prompt.x

        def position(sums: tuple[Array, Array, Array], example: tuple[Array, Array]) -> tuple[tuple, Array]:
            (covariance, moment, count), (u, y) = sums, example
            scale = jnp.full_like(count, 1.0 if self.half else 2.0)
            scale = scale / jnp.maximum(count, 1) if self.normalised else scale
            weights = self.descend(scale * covariance, scale * moment)
            return (covariance + u[:, None] * u[None, :], moment + y * u, count + 1), weights

        start = (jnp.zeros((self.dim, self.dim), x.dtype), jnp.zeros_like(x[0]), jnp.zeros((), x.dtype))
        return jax.lax.scan(position, start, (x, prompt.y))[1]


class GradientDescent(Descent):
    r"""L steps of gradient descent from zero.

    .. math:: w \leftarrow w - \eta_l\,\nabla F_i(w), \qquad l = 1, \dots, L

    With ``normalised`` and ``half`` the gradient is :math:`\frac1i\sum_{j<i}(w^\top x_j - y_j)\,x_j`.

    Attributes:
        rate: :math:`\eta`, one number for all steps or one for each, [layer]; a leaf.

    Source: [vonOswald23], [Ahn23].
    """

    rate: Rate = eqx.field(converter=partial(number, "rate"))

    def __check_init__(self) -> None:
        self._require_shape("rate", "one number")

    def descend(self, covariance: Float[Array, "dim dim"], moment: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Weights after L steps from zero."""
        rates = per_layer(self.rate, self.layers, 0, moment.dtype)
        return steps(lambda w, rate: w - rate * (covariance @ w - moment), jnp.zeros_like(moment), rates, self.layers)

    def matrices(self, dtype: Any) -> tuple[Float[Array, "layer dim dim"], Float[Array, "layer dim dim"]]:
        """Multiples of the identity for A, and zeros for B."""
        a = _multiples(per_layer(self.rate, self.layers, 0, dtype), self.dim)
        return a, jnp.zeros_like(a)


class PreconditionedDescent(Descent):
    r"""L steps of gradient descent from zero, with gradients multiplied by a matrix that need not be symmetric.

    .. math:: w \leftarrow w - A_l\,\nabla F_i(w), \qquad l = 1, \dots, L

    Attributes:
        preconditioner: A, one matrix for all steps or one for each, [layer, dim, dim]; a leaf.

    Source: [Ahn23].
    """

    preconditioner: Matrix = eqx.field(converter=partial(number, "preconditioner"))

    def __check_init__(self) -> None:
        self._require_shape("preconditioner", "one matrix [dim, dim]", self.dim, self.dim)

    def descend(self, covariance: Float[Array, "dim dim"], moment: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Weights after L steps from zero."""
        matrices, _ = self.matrices(moment.dtype)
        return steps(lambda w, a: w - a @ (covariance @ w - moment), jnp.zeros_like(moment), matrices, self.layers)

    def matrices(self, dtype: Any) -> tuple[Float[Array, "layer dim dim"], Float[Array, "layer dim dim"]]:
        """The matrices A, and zeros for B."""
        a = per_layer(self.preconditioner, self.layers, 2, dtype)
        return a, jnp.zeros_like(a)


class GradientDescentPlusPlus(Descent):
    r"""GD++: gradient descent in which every step also changes the inputs.

    .. math::
        w \leftarrow w - H^\top A_l H\,\nabla F_i(w), \qquad
        H \leftarrow (I - B_l\,HS_iH^\top A_l^\top)\,H, \qquad H = I \text{ at first}

    with S the matrix of the gradient :math:`S_iw - m_i`: both right sides have the H of before. The step is one on the
    changed inputs :math:`Hx`, while they become :math:`(I - B_l\,HS_iH^\top A_l^\top)Hx`: preconditioning that depends
    on the data. The last contraction :math:`B_L` has no effect. With :math:`B = 0` it is
    :class:`PreconditionedDescent`.

    Attributes:
        preconditioner: A, one matrix for all steps or one for each, [layer, dim, dim]; a leaf.
        contraction: B, likewise.

    Source: [vonOswald23], [Ahn23].
    Derived: docs/constructions.md, GD++.
    """

    preconditioner: Matrix = eqx.field(converter=partial(number, "preconditioner"))
    contraction: Matrix = eqx.field(converter=partial(number, "contraction"))

    def __check_init__(self) -> None:
        for name in ("preconditioner", "contraction"):
            self._require_shape(name, "one matrix [dim, dim]", self.dim, self.dim)

    @classmethod
    def scalar(
        cls, rate: object, contraction: object, *, layers: int, dim: int, normalised: bool, half: bool
    ) -> "GradientDescentPlusPlus":
        """GD++ with :math:`A_l = a_l I` and :math:`B_l = b_l I`, one number for all layers or one for each.

        Source: [vonOswald23].
        """
        require_integer("dim", dim)
        scalars = {"rate": rate, "contraction": contraction}
        a, b = (_multiples(number(name, value), dim) for name, value in scalars.items())
        return cls(a, b, layers=layers, dim=dim, normalised=normalised, half=half)

    def descend(self, covariance: Float[Array, "dim dim"], moment: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Weights after L steps from zero."""

        def step(state: tuple[Array, Array], matrices: tuple[Array, Array]) -> tuple[Array, Array]:
            (w, h), (a, b) = state, matrices
            next_w = w - h.T @ (a @ (h @ (covariance @ w - moment)))
            return next_w, h - b @ (h @ covariance @ h.T) @ a.T @ h

        start = (jnp.zeros_like(moment), jnp.eye(self.dim, dtype=moment.dtype))
        return steps(step, start, self.matrices(moment.dtype), self.layers)[0]

    def matrices(self, dtype: Any) -> tuple[Float[Array, "layer dim dim"], Float[Array, "layer dim dim"]]:
        """The matrices A and B."""
        a, b = (per_layer(p, self.layers, 2, dtype) for p in (self.preconditioner, self.contraction))
        return a, b


class NormalisedDescent(LinearPredictor):
    r"""L steps of gradient descent from zero on the exponential loss of labels :math:`\pm1`, divided by that loss.

    .. math:: w \leftarrow w - \eta_l\,\frac{\nabla F_i(w)}{F_i(w)}
              = w + \eta_l\sum_{j<i}p_j\,y_jx_j, \qquad
              F_i(w) = \sum_{j<i}e^{-y_jw^\top x_j}, \qquad p_j \propto e^{-y_jw^\top x_j}

    The answer :math:`w^\top x_i` is a logit of the label 1. On n examples with a largest margin :math:`\gamma>0`

    .. math:: \min_j\frac{y_jw^\top x_j}{|w|} \ge \gamma - \frac{\ln n + 1/2}{\eta\gamma L}
              \qquad (\eta\max_j|x_j|^2 \le 1)

    Attributes:
        rate: :math:`\eta`, one number for all steps or one for each, [layer]; a leaf.
        layers: L (static).
        dim: Input dimension (static).

    Source: [ZhangCao26].
    Derived: docs/constructions.md, Descent on the exponential loss.
    """

    rate: Rate = eqx.field(converter=partial(number, "rate"))
    layers: int = eqx.field(static=True, kw_only=True)
    dim: int = eqx.field(static=True, kw_only=True)

    def __check_init__(self) -> None:
        for name in ("layers", "dim"):
            require_integer(name, getattr(self, name))
        require_finite("rate", self.rate, "one number, or one for each layer")
        if isinstance(self.rate, jax.Array) and self.rate.shape not in ((), (self.layers,)):
            raise expected("rate", f"shape () or {(self.layers,)}", self.rate.shape)

    def weights(self, prompt: RegressionPrompt) -> Float[Array, "position dim"]:
        """The weights after all steps, for every prefix."""
        if prompt.dim != self.dim:
            raise expected("prompt", f"inputs of dimension {self.dim}", prompt.dim)
        signed = prompt.y[:, None] * prompt.x
        seen = jnp.tril(jnp.ones((prompt.positions,) * 2, bool), -1)  # the last label is seen by no position
        signed = jnp.where(seen.any(0)[:, None], signed, 0)

        def step(w: Array, rate: Array) -> Array:  # [position, dim]
            scores = jnp.where(seen, -(w @ signed.T), jnp.finfo(w.dtype).min)
            return w + rate * (jnp.where(seen, jax.nn.softmax(scores, axis=1), 0) @ signed)

        return steps(step, jnp.zeros_like(prompt.x), per_layer(self.rate, self.layers, 0, signed.dtype), self.layers)


def per_layer(parameter: Float[Array, "*shape"], layers: int, axes: int, dtype: Any) -> Float[Array, "layer *rest"]:
    """A parameter with a layer axis, which is added if the parameter has ``axes`` axes and all layers share it."""
    parameter = parameter.astype(dtype)
    return jnp.broadcast_to(parameter, (layers, *parameter.shape)) if parameter.ndim == axes else parameter


def steps(step: Callable[[Any, Any], Any], start: Any, parameters: Any, layers: int) -> Any:
    """Apply ``step(state, parameters of a layer)`` layer by layer; up to six layers are unrolled."""
    return jax.lax.scan(lambda state, layer: (step(state, layer), None), start, parameters, unroll=min(layers, 6))[0]


def _multiples(values: Float[Array, "*shape"], dim: int) -> Array:
    """Multiply each number by the identity."""
    full = jnp.broadcast_to(values[..., None, None], (*values.shape, dim, dim))
    return full * jnp.broadcast_to(jnp.eye(dim, dtype=values.dtype), full.shape)
