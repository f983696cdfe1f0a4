"""Least squares in context, plain, with a ridge or an L1 penalty: a linear map fitted to every prefix of the prompt."""

import abc
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.algorithms.recursions import least_squares_weights, ridge_weights
from icllab.core.covariances import require_covariance
from icllab.core.domains import NON_NEGATIVE_OR_INF, POSITIVE, Domain
from icllab.core.errors import expected, kind_of
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.core.rounding import unit_of_first
from icllab.tasks.regression import real

_EVENTS = 16  # most events of a path, for each coordinate


def number(name: str, value: object) -> Array:
    """Convert numbers that may be swept to a floating-point array; integers are converted, other values raise."""
    array = real(name, value)
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(float)


def require_finite(name: str, value: object, requirement: str) -> None:
    """Raise unless all numbers of an array are finite; a traced array passes."""
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and not np.isfinite(value).all():
        raise expected(name, f"{requirement}, finite", "NaN or infinity")


class LinearPredictor(AbstractPredictor):
    r"""Predict :math:`x_i^\top w_i` at position ``i``, with :math:`w_i` fitted to the examples before it."""

    @abc.abstractmethod
    def weights(self, prompt: RegressionPrompt) -> Float[Array, "position dim"]:
        """The weights fitted to the examples before every position; zero before the first example."""

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The prediction at every position; zero before the first example."""
        require_regression(prompt)
        with jax.default_matmul_precision("float32"):  # an accelerator's default has ten bits
            predictor, x = self, prompt.x
            unit = unit_of_first(x)
            if (equivalent := self.in_unit(unit)) is not None:
                predictor, x = equivalent, x / unit
            return jnp.sum(x * predictor.weights(eqx.tree_at(lambda p: p.x, prompt, x)), axis=1)

    def in_unit(self, unit: Float[Array, ""]) -> "LinearPredictor | None":
        """The predictor with the same answers on inputs divided by ``unit``; None if no formula is known for it."""
        del unit


def require_regression(prompt: Any, dim: int | None = None) -> None:
    """Raise unless a prompt has examples x and y, with inputs of ``dim`` numbers if ``dim`` is given."""
    if not (hasattr(prompt, "x") and hasattr(prompt, "y")):
        hint = "task.sample(key=key) draws one if task is a regression"
        raise expected("prompt", "a prompt of regression, with x and y", kind_of(prompt), hint)
    if dim is not None and prompt.x.shape[-1] != dim:
        raise expected("prompt", f"inputs of {dim} numbers", prompt.x.shape[-1])


class LeastSquares(LinearPredictor):
    r"""Ordinary least squares; the solution of least norm while the examples do not determine it.

    .. math:: w_i = X_i^+ y_i = \lim_{\lambda \to 0^+} (X_i^\top X_i + \lambda I)^{-1} X_i^\top y_i

    O(length dim^2) per prompt: one rank-one update for each example, of any rank. The largest error over the largest
    prediction, measured as for :class:`Ridge`, was 3e-14 in float64 and 5e-6 in float32.

    Derived: docs/rivals.md, Least squares of any rank.
    """

    def in_unit(self, unit: Float[Array, ""]) -> "LeastSquares":
        """The predictor itself, because its answers do not depend on the unit of the inputs."""
        return self

    def weights(self, prompt: RegressionPrompt) -> Float[Array, "position dim"]:
        """The solution of least norm for every prefix."""
        return least_squares_weights(prompt.x, prompt.y)


class Ridge(LinearPredictor):
    r"""Ridge regression on the previous examples.

    .. math:: w_i = (X_i^\top X_i + \lambda I)^{-1} X_i^\top y_i

    Nothing is divided by the number of examples. With :math:`\lambda` the noise variance it is the Bayes
    predictor of tasks :math:`w \sim N(0, I)`; at :math:`\lambda = 0` it is :class:`LeastSquares`.
    O(length dim^2) per prompt.

    Against a solve for every prefix, at 32 dimensions, 128 examples and condition numbers up to 1000, the largest
    error over the largest prediction was 4e-13 in float64 at :math:`\lambda = 10^{-6}`; in float32 it was 5e-7 at
    :math:`\lambda = 0.25` and, like the unit of rounding over :math:`\sqrt\lambda`, 1e-4 at :math:`10^{-6}`.

    Attributes:
        ridge: :math:`\lambda \ge 0`; a leaf.

    Derived: docs/rivals.md, One update for each example.
    """

    ridge: Float[Array, ""] = eqx.field(converter=partial(number, "ridge"))

    def __check_init__(self) -> None:
        NON_NEGATIVE_OR_INF.require_leaf("ridge", self.ridge)

    def in_unit(self, unit: Float[Array, ""]) -> "Ridge":
        """The same predictor with the ridge divided by the square of the unit."""
        return eqx.tree_at(lambda r: r.ridge, self, self.ridge.astype(unit.dtype) / unit / unit)

    def weights(self, prompt: RegressionPrompt) -> Float[Array, "position dim"]:
        """The ridge estimate for every prefix."""
        return ridge_weights(prompt.x, prompt.y, self.ridge.astype(prompt.x.dtype))


class PrincipalComponentRegression(LinearPredictor):
    r"""Least squares along given directions of the inputs; of least norm while the examples do not determine it.

    .. math:: w_i = E\,(X_iE)^+ y_i

    What the inputs have along other directions is noise to it.

    Attributes:
        directions: E, orthonormal columns such as the first principal components of the inputs; a leaf.
    """

    directions: Float[Array, "dim component"] = eqx.field(converter=partial(number, "directions"))

    def __check_init__(self) -> None:
        if isinstance(self.directions, jax.Array | np.ndarray) and self.directions.ndim != 2:
            raise expected("directions", "an array [dim, component]", f"shape {self.directions.shape}")

    @classmethod
    def from_covariance(cls, covariance: Any, components: int) -> "PrincipalComponentRegression":
        """Use the eigenvectors of the largest eigenvalues of a covariance [dim, dim] as directions."""
        matrix = np.asarray(covariance, float)
        require_covariance("covariance", matrix)
        if matrix.ndim != 2:
            raise expected("covariance", "a matrix", f"shape {matrix.shape}")
        Domain(int, least=1, most=len(matrix)).require("components", components)
        return cls(jnp.asarray(np.linalg.eigh(matrix)[1][:, ::-1][:, :components], float))

    def in_unit(self, unit: Float[Array, ""]) -> "PrincipalComponentRegression":
        """The predictor itself, because its answers do not depend on the unit of the inputs."""
        return self

    def weights(self, prompt: RegressionPrompt) -> Float[Array, "position dim"]:
        """The solution along the directions, for every prefix."""
        directions = self.directions.astype(prompt.x.dtype)
        return least_squares_weights(prompt.x @ directions, prompt.y) @ directions.T


class Lasso(LinearPredictor):
    r"""Least squares with an L1 penalty on the previous examples, without intercept.

    .. math:: w_i = \operatorname*{argmin}_w\; \frac{1}{2i} \sum_{j<i} (y_j - w^\top x_j)^2 + \alpha \lVert w \rVert_1

    scikit-learn's ``Lasso(alpha, fit_intercept=False)`` stops at a duality gap of 1e-4 of :math:`\lVert y \rVert^2`;
    this follows the path of solutions exactly, from the penalty at which w = 0. With the signs s of the nonzero
    coordinates S it is :math:`w_S(\lambda) = G_{SS}^{-1} (b_S - \lambda s)`, where :math:`G = X_i^\top X_i / i` and
    :math:`b = X_i^\top y_i / i`, until a coordinate of w reaches 0, or one of :math:`b - G w` reaches
    :math:`\pm\lambda`. Each such event costs a solve, O(dim^3). Rounding grows with the condition of :math:`G_{SS}`.

    Attributes:
        alpha: :math:`\alpha > 0`; a leaf. The paper's figures divide squared errors by the task's nonzero coordinates.

    Source: [Garg22].
    """

    alpha: Float[Array, ""] = eqx.field(converter=partial(number, "alpha"))

    def __check_init__(self) -> None:
        POSITIVE.require_leaf("alpha", self.alpha)

    def in_unit(self, unit: Float[Array, ""]) -> "Lasso":
        """The same predictor with the penalty divided by the unit."""
        return eqx.tree_at(lambda r: r.alpha, self, self.alpha.astype(unit.dtype) / unit)

    def weights(self, prompt: RegressionPrompt) -> Float[Array, "position dim"]:
        """The solution for every prefix."""
        x, y = prompt.x, prompt.y
        count = jnp.arange(len(y)).astype(x.dtype)
        seen = jnp.tri(len(y), k=-1, dtype=x.dtype) / jnp.maximum(count, 1)[:, None]
        moments = jnp.einsum("ij,jk,jl->ikl", seen, x, jnp.concatenate([x, y[:, None]], axis=1))
        gram, moment, alpha = moments[..., :-1], moments[..., -1], self.alpha.astype(x.dtype)
        signs = jax.vmap(_signs, (0, 0, None, 0))(*jax.lax.stop_gradient((gram, moment, alpha, count)))
        parts = jax.vmap(_parts)(signs, gram, moment)
        return parts[..., 0] - alpha * parts[..., 1]


@jax.jit
def _signs(
    gram: Float[Array, "dim dim"], moment: Float[Array, " dim"], alpha: Float[Array, ""], count: Float[Array, ""]
) -> Float[Array, " dim"]:
    """Signs of the w that minimises :math:`w^T G w / 2 - b^T w + alpha |w|_1`, for G of ``count`` examples."""
    dim = len(moment)
    index, sides = jnp.arange(dim), jnp.array([[1], [-1]], gram.dtype)
    more = 1 + 64 * jnp.finfo(gram.dtype).eps

    def event(state: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        """Lower the penalty to the next coordinate that joins or leaves, given the coordinate that did so last."""
        signs, penalty, last, side, events = state
        u, v = _parts(signs, gram, moment).T
        active, at_event = signs != 0, index == last
        free, slope = (moment - gram @ u)[None], (gram @ v)[None]
        joins = jnp.where(sides * (free + penalty * slope) > penalty * more, penalty, free / (sides - slope))
        full = jnp.sum(active.astype(gram.dtype)) >= count
        joins = jnp.where((active | full)[None] | (at_event[None] & (sides == side)), 0, joins)
        leaves = jnp.where(signs * (u - penalty * v) < 0, penalty, u / v)
        leaves = jnp.where(active & ~at_event, leaves, 0)
        penalties = jnp.concatenate([joins, leaves[None]]).reshape(-1)
        penalties = jnp.where(penalties <= penalty * more, penalties, 0)  # and NaN, of 0 / 0
        place = jnp.argmax(penalties)
        k, reached = place % dim, jnp.minimum(penalties[place], penalty)
        sign = jnp.array([1, -1, 0], gram.dtype)[place // dim]
        signs_after = jnp.where(reached > alpha, signs.at[k].set(sign), signs)
        return signs_after, reached, k, jnp.where(sign == 0, signs[k], sign), events + 1

    start = (jnp.zeros_like(moment), jnp.full_like(alpha, jnp.inf), index[0] - 1, jnp.zeros_like(alpha), index[0])
    return jax.lax.while_loop(lambda state: (state[1] > alpha) & (state[-1] < _EVENTS * dim), event, start)[0]


def _parts(
    signs: Float[Array, " dim"], gram: Float[Array, "dim dim"], moment: Float[Array, " dim"]
) -> Float[Array, "dim 2"]:
    r"""Columns u and v of :math:`w = u - \\lambda v`, the solution at penalty lambda if w has these signs."""
    active = signs != 0
    matrix = jnp.where(active[:, None] & active[None], gram, jnp.eye(len(signs), dtype=gram.dtype))
    return jnp.linalg.solve(matrix, jnp.stack([jnp.where(active, moment, 0), signs], axis=1))
