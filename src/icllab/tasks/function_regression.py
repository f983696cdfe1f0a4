r"""Regression of a random function in context: labels are values of a Gaussian process with a given kernel.

.. math:: f \sim \mathcal{GP}(0, K), \qquad y_i = f(x_i) + \varepsilon_i, \quad \varepsilon_i \sim N(0, \rho),
          \qquad i = 1, \dots, \ell + 1

With the linear kernel it is :class:`~icllab.tasks.linear_regression.LinearRegression` with :math:`w \sim N(0, I/T)`.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.domains import NON_NEGATIVE, Domain
from icllab.core.errors import expected, require_flag, require_key
from icllab.core.kernels import Kernel, features_of, gram, repaired, require_kernel
from icllab.core.prompt import RegressionPrompt
from icllab.tasks.regression import AbstractRegression, number, require_sizes
from icllab.tasks.regression_distributions import AbstractInputs, require_inputs


class FunctionRegression(AbstractRegression):
    r"""Prompts ``(x_i, y_i)`` of a function drawn from a Gaussian process; the loss is the squared error.

    The labels of a prompt are jointly normal given its inputs,

    .. math:: y \sim N(0, K + \rho I), \qquad K_{ij} = K(x_i/\sqrt T,\; x_j/\sqrt T),

    and the best answer at every position is :class:`~icllab.algorithms.functional.GaussianProcess` with the same
    kernel, temperature and noise. They are drawn through the features that Cholesky's algorithm finds, O(length^3);
    where K is singular, labels are off by the root of rounding.

    A function that is not positive semi-definite is the covariance of nothing. ``repair`` puts the matrix absolute
    value :math:`|K|` in the place of :math:`K`, for all positions of the prompt together. Then the distribution of the
    first labels depends on how many inputs follow, and the best answer at the last position is
    :class:`~icllab.algorithms.functional.RepairedProcess`.

    Attributes:
        dim: Input dimension d (static).
        length: Examples before the query, ℓ (static); a prompt has ``length + 1`` positions.
        inputs: Distribution of ``x``: ``SphereInputs``, ``GaussianInputs`` or ``UniformInputs``.
        kernel: ``"linear"``, ``"exponential"``, ``"relu"`` (with ``repair`` only), or a function of two inputs, such as
            :func:`~icllab.core.kernels.arc_cosine` (static).
        temperature: T > 0, by whose root inputs are divided; a leaf.
        noise_variance: :math:`\rho \ge 0`, also of the query's own label; a leaf.
        repair: Whether K is made positive by the matrix absolute value (static).

    Source: the distribution of labels on the sphere [Cheng24].
    Derived: docs/constructions.md, Bayes under label noise; docs/constructions.md, What is not a kernel.
    """

    dim: int = eqx.field(static=True)
    length: int = eqx.field(static=True)
    inputs: AbstractInputs
    kernel: Kernel = eqx.field(static=True, kw_only=True)
    temperature: Float[Array, ""] = eqx.field(converter=partial(number, "temperature"), kw_only=True)
    noise_variance: Float[Array, ""] = eqx.field(converter=partial(number, "noise_variance"), kw_only=True)
    repair: bool = eqx.field(static=True, kw_only=True, default=False)

    def __check_init__(self) -> None:
        require_sizes(self, "dim", "length")
        require_inputs(self.inputs)
        require_kernel("kernel", self.kernel, symmetric=True)
        require_flag("repair", self.repair)
        if self.kernel == "relu" and not self.repair:
            hint = "repair=True takes the matrix absolute value; arc_cosine is a similar kernel"
            raise expected("kernel", "a positive semi-definite kernel", "relu", hint)
        tiny = np.finfo(float).tiny
        Domain(least=tiny, text="a finite number > 0").require_leaf("temperature", self.temperature)
        NON_NEGATIVE.require_leaf("noise_variance", self.noise_variance)

    def covariance(self, x: Float[Array, "position dim"]) -> Float[Array, "position position"]:
        """Covariance of the function's values at these inputs, without noise; a repair acts on all inputs together."""
        matrix = gram(self.kernel, self.temperature, x)
        return repaired(matrix) if self.repair else matrix

    def sample(self, *, key: PRNGKeyArray) -> RegressionPrompt:
        """One prompt of ``length + 1`` positions."""
        require_key(key)
        of_x, of_function, of_noise = jax.random.split(key, 3)
        positions = self.length + 1
        x = self.inputs.sample_many(positions, self.dim, key=of_x)
        with jax.default_matmul_precision("float32"):
            values = features_of(self.covariance(x)) @ jax.random.normal(of_function, (positions,), x.dtype)
        noise = jnp.sqrt(self.noise_variance.astype(x.dtype)) * jax.random.normal(of_noise, (positions,), x.dtype)
        return RegressionPrompt(x=x, y=values + noise)
