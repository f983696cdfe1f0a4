r"""Gradient descent on functions, its limit for many steps, kernel ridge regression and Gaussian processes.

The answer is a function fitted to the examples before each position, :math:`f = \sum_j\alpha_jK(x_j, \cdot)`. Every
prefix is a fit of its own.
"""

from functools import partial
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from icllab.algorithms.descent import Rate, per_layer, steps
from icllab.algorithms.least_squares import number, require_finite
from icllab.algorithms.recursions import ridge_weights
from icllab.core.domains import NON_NEGATIVE_OR_INF, POSITIVE
from icllab.core.errors import expected, require_flag, require_integer
from icllab.core.kernels import SOFTMAX, Kernel, features_of, gram, kernel_warnings, repaired, require_kernel
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor


class KernelPredictor(AbstractPredictor):
    """Base class of the predictors with a kernel.

    Attributes:
        kernel: ``"linear"``, ``"relu"``, ``"exponential"``, or a symmetric function of two inputs (static); of
            :class:`FunctionalDescent` also ``"softmax"``.
        temperature: T, by whose root inputs are divided; a leaf.

    Raises:
        InputError: A name or a shape is wrong, or a ridge or noise variance is negative.
    """

    _symmetric: ClassVar[bool] = True
    _regulariser: ClassVar[str] = "noise_variance"

    kernel: Kernel = eqx.field(static=True, kw_only=True)
    temperature: Float[Array, ""] = eqx.field(converter=partial(number, "temperature"), kw_only=True)

    def __check_init__(self) -> None:
        POSITIVE.require_leaf("temperature", self.temperature)
        require_kernel("kernel", self.kernel, symmetric=self._symmetric)
        NON_NEGATIVE_OR_INF.require_leaf(self._regulariser, getattr(self, self._regulariser))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Caveats of the function used as a kernel."""
        return kernel_warnings(self.kernel)


class FunctionalDescent(KernelPredictor):
    r"""L steps of gradient descent on a function, from zero.

    .. math::
        f \leftarrow f + \eta_lc_i\Bigl[\sum_{j<i}\bigl(y_j - f(x_j) - \rho\alpha_j\bigr)K(x_j, \cdot)\Bigr],
        \qquad l = 1, \dots, L

    With :math:`\rho = 0` it is gradient descent on :math:`\frac12\sum_{j<i}(f(x_j) - y_j)^2` in the space of the
    kernel. With :math:`\rho > 0` it is Richardson's iteration for :math:`(K + \rho I)\alpha = y`. Both converge for
    :math:`0 < \eta c_i < 2/(\lambda_{\max}(K) + \rho)`, to :class:`KernelRidge`. :math:`c_i` is one over the number of
    examples (at least 1) with ``normalised``, else 1. O(L length^3) per prompt.

    With ``kernel="softmax"`` the step is that of an attention whose weights are a softmax over the keys, the query
    among them: :math:`K(x_j, x)` is :math:`e^{x_j^\top x/T}` over its sum over the inputs of the prefix. That is no
    kernel, and no gradient descent; ``warnings`` says so.

    Attributes:
        rate: :math:`\eta`, one number for all steps or one for each, [layer]; a leaf.
        noise_variance: :math:`\rho\ge0`; a leaf.
        layers: L (static).
        dim: Input dimension (static).
        normalised: Whether the objective is divided by the number of examples seen (static).

    Source: [Cheng24].
    Derived: docs/constructions.md, Gradient descent on functions; docs/constructions.md, Bayes under label noise.
    """

    _symmetric = False

    rate: Rate = eqx.field(converter=partial(number, "rate"))
    noise_variance: Float[Array, ""] = eqx.field(converter=partial(number, "noise_variance"), kw_only=True)
    layers: int = eqx.field(static=True, kw_only=True)
    dim: int = eqx.field(static=True, kw_only=True)
    normalised: bool = eqx.field(static=True, kw_only=True)

    def __check_init__(self) -> None:
        for name in ("layers", "dim"):
            require_integer(name, getattr(self, name))
        require_flag("normalised", self.normalised)
        require_finite("rate", self.rate, "one number, or one for each layer")
        if isinstance(self.rate, jax.Array) and self.rate.shape not in ((), (self.layers,)):
            requirement = f"one number, or one for each layer: shape () or {(self.layers,)}"
            raise expected("rate", requirement, self.rate.shape)

    def limit(self) -> "KernelRidge | SoftmaxLimit":
        """Limit of infinitely many small steps, if they converge.

        Raises:
            InputError: It is not known here: of a softmax with label noise.
        """
        if self.kernel == SOFTMAX:
            if isinstance(self.noise_variance, Tracer) or float(self.noise_variance) != 0:
                raise expected(
                    "noise_variance",
                    "0, because only the limit without noise is known for the softmax",
                    self.noise_variance,
                )
            return SoftmaxLimit(self.temperature)
        return KernelRidge(self.noise_variance, kernel=self.kernel, temperature=self.temperature)

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The prediction at every position; zero before the first example."""
        if prompt.dim != self.dim:
            raise expected("prompt", f"inputs of dimension {self.dim}", prompt.dim)
        with jax.default_matmul_precision("float32"):
            matrix = gram(self.kernel, self.temperature, prompt.x)
            share = 1 / _normalisers(matrix) if self.kernel == SOFTMAX else jnp.ones_like(matrix)
            count = jnp.arange(prompt.positions).astype(matrix.dtype)
            weights = (count[:, None] > count[None, :]).astype(matrix.dtype)
            if self.normalised:
                weights = weights / jnp.maximum(count, 1)[:, None]
            noise = self.noise_variance.astype(matrix.dtype)
            labels = jnp.broadcast_to(prompt.y, matrix.shape)

            def step(alpha: Array, rate: Array) -> Array:  # [position, example]
                return alpha + rate * weights * (labels - (alpha @ matrix) * share - noise * alpha)

            rates = per_layer(self.rate, self.layers, 0, matrix.dtype)
            alpha = steps(step, jnp.zeros_like(matrix), rates, self.layers)
            return jnp.sum(alpha * matrix.T, axis=1) * jnp.diagonal(share)


class KernelRidge(KernelPredictor):
    r"""Kernel ridge regression on the examples seen.

    .. math:: \hat y_i = k_i^\top (K_i + \lambda I)^{-1}y_{<i}, \qquad (K_i)_{jm} = K(x_j, x_m),\; (k_i)_j = K(x_j, x_i)

    Nothing is divided by the number of examples. At :math:`\lambda = 0` it is the limit :math:`\lambda\to0^+`, least
    squares of least norm in the space of the kernel: the limit of :class:`FunctionalDescent` without noise. Cholesky's
    factor of K has the features of every input in its rows, and the regression is :class:`Ridge` on them: O(length^3)
    per prompt, for all positions. A function that is no kernel is given the features of what is positive of it in the
    order of the prompt; ``warnings`` says so.

    Attributes:
        ridge: :math:`\lambda\ge0`; a leaf.

    Derived: docs/constructions.md, Bayes under label noise.
    """

    _regulariser = "ridge"

    ridge: Float[Array, ""] = eqx.field(converter=partial(number, "ridge"))

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The prediction at every position; zero before the first example."""
        with jax.default_matmul_precision("float32"):
            return _on_features(gram(self.kernel, self.temperature, prompt.x), prompt.y, self.ridge)


class KernelRichardson(KernelPredictor):
    r"""L steps of Richardson's iteration for kernel ridge regression, with the sums of the kernel's rows as divisors.

    .. math:: \alpha_j \leftarrow \alpha_j
              + \frac{y_j - (K_i\alpha)_j - \lambda\alpha_j}{d_j + \lambda}, \qquad d_j = \sum_{m<i}K(x_m, x_j)

    from zero, for the examples j < i and for the query j = i, whose label counts as 0 and which no example sees. The
    answer is :math:`-\lambda\alpha_i`. If the kernel is nonnegative and positive semi-definite, it tends to
    :class:`KernelRidge` at any ridge, without a step size. O(L length^3) per prompt.

    Attributes:
        ridge: :math:`\lambda>0`; a leaf.
        layers: L (static).

    Source: [Yan26].
    Derived: docs/constructions.md, Kernel ridge regression by softmax attention.
    """

    _regulariser = "ridge"

    ridge: Float[Array, ""] = eqx.field(converter=partial(number, "ridge"))
    layers: int = eqx.field(static=True, kw_only=True)

    def __check_init__(self) -> None:
        require_integer("layers", self.layers)
        POSITIVE.require_leaf("ridge", self.ridge)

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The prediction at every position; zero before the first example."""
        with jax.default_matmul_precision("float32"):
            matrix = gram(self.kernel, self.temperature, prompt.x)
            index, ridge = jnp.arange(prompt.positions), self.ridge.astype(matrix.dtype)
            seen = (index[:, None] > index[None, :]).astype(matrix.dtype)  # [position, example]
            labels = jnp.where(seen > 0, jnp.broadcast_to(prompt.y, matrix.shape), 0)
            share = (seen + jnp.eye(prompt.positions, dtype=matrix.dtype)) / (seen @ matrix + ridge)

            def step(alpha: Array, _: Array) -> Array:
                return alpha + share * (labels - (seen * alpha) @ matrix - ridge * alpha)

            alpha = steps(step, jnp.zeros_like(matrix), jnp.zeros(self.layers), self.layers)
            return -ridge * jnp.diagonal(alpha)


class GaussianProcess(KernelPredictor):
    r"""The posterior mean of a function drawn from a Gaussian process, from noisy values: Bayes-optimal for that
    distribution.

        .. math:: f\sim\mathcal{GP}(0, K), \quad y_j = f(x_j) + \varepsilon_j, \quad
                  \hat y_i = k_i^\top (K_i + \rho I)^{-1}y_{<i}

        It is :class:`KernelRidge` with the noise variance as ridge.

        Attributes:
            noise_variance: :math:`\rho\ge0`; a leaf.

        Derived: docs/constructions.md, Bayes under label noise.
    """

    noise_variance: Float[Array, ""] = eqx.field(converter=partial(number, "noise_variance"))

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The posterior mean at every position; zero before the first example."""
        with jax.default_matmul_precision("float32"):
            return _on_features(gram(self.kernel, self.temperature, prompt.x), prompt.y, self.noise_variance)


class RepairedProcess(KernelPredictor):
    r"""The posterior mean at the last position, with a covariance matrix that is made positive semidefinite.

    .. math:: \hat y = c^\top (C + \rho I)^{-1}y, \qquad
              \begin{pmatrix} C & c \\ c^\top & c_q \end{pmatrix} = |K|

    with :math:`|K|` the matrix absolute value of all pairs, the query among them. It is Bayes-optimal for a
    :class:`~icllab.tasks.function_regression.FunctionRegression` with ``repair``. Of a kernel, which has nothing to
    repair, it is :class:`GaussianProcess`. No earlier position is answered, for there the distribution depends on
    inputs that follow. Directions that rounding alone has in :math:`C + \rho I` are left out.

    Attributes:
        noise_variance: :math:`\rho\ge0`; a leaf.

    Derived: docs/constructions.md, What is not a kernel.
    """

    positions: ClassVar[Literal["every", "last"]] = "last"

    noise_variance: Float[Array, ""] = eqx.field(converter=partial(number, "noise_variance"))

    @property
    def warnings(self) -> tuple[str, ...]:
        """No warnings, because every repaired function is a kernel."""
        return ()

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " answered"]:
        """The prediction at the last position."""
        with jax.default_matmul_precision("float32"):
            matrix = repaired(gram(self.kernel, self.temperature, prompt.x))
            return _on_features(matrix, prompt.y, self.noise_variance)[-1:]


class SoftmaxLimit(AbstractPredictor):
    r"""The limit of many small steps of softmax attention whose keys and queries are the inputs.

    .. math:: \hat y_i = \frac1{D_i}\,\bigl(y_jD_j\bigr)_{j<i}^\top K_i^{-1}k_i, \qquad
              D_m = \sum_{j\le i}e^{x_j^\top x_m/T}

    with the exponential kernel. It is the posterior mean of that kernel's Gaussian process only where all :math:`D_m`
    are equal. One solve for each position, O(length^4) per prompt.

    Attributes:
        temperature: T; a leaf.

    Derived: docs/constructions.md, The limit of softmax attention.
    """

    temperature: Float[Array, ""] = eqx.field(converter=partial(number, "temperature"))

    def __check_init__(self) -> None:
        POSITIVE.require_leaf("temperature", self.temperature)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The caveat that a softmax is not a kernel."""
        return kernel_warnings(SOFTMAX)

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The prediction at every position; zero before the first example."""
        with jax.default_matmul_precision("float32"):
            matrix = gram("exponential", self.temperature, prompt.x)
            normalisers = _normalisers(matrix)
            i = jnp.arange(prompt.positions)
            identity = jnp.eye(prompt.positions, dtype=matrix.dtype)

            def answer(position: Array, normaliser: Array) -> Array:
                context = i < position
                among = jnp.where(context[:, None] & context[None, :], matrix, identity)
                of_query = jnp.where(context, matrix[:, position], 0)
                labels = jnp.where(context, prompt.y * normaliser, 0)
                return labels @ jnp.linalg.solve(among, of_query) / normaliser[position]

            return jax.vmap(answer)(i, normalisers)


def _on_features(
    matrix: Float[Array, "position position"], labels: Float[Array, " position"], ridge: Float[Array, ""]
) -> Float[Array, " position"]:
    """Ridge regression on the features of a kernel matrix, answered at every position."""
    features = features_of(matrix)
    weights = ridge_weights(features, labels, ridge.astype(features.dtype))
    return jnp.sum(features * weights, axis=1)


def _normalisers(matrix: Float[Array, "position position"]) -> Float[Array, "position position"]:
    """Row i, column m: the sum over inputs up to i of their weight at input m; 1 if m comes after i."""
    sums = jnp.cumsum(matrix, axis=0)
    return jnp.where(jnp.triu(jnp.ones(matrix.shape, bool), 1), jnp.ones_like(sums), sums)
