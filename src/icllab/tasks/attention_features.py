r"""Sufficient statistics of a context for one linear-attention head, their distribution and their moments.

.. math:: h = \Big[\frac{d}{\ell} \sum_{i \le \ell} y_i x_i \,;\; \frac{1}{\ell} \sum_{i \le \ell} y_i^2\Big]
          \in \mathbb{R}^{d+1}

A head with weights :math:`\Gamma` answers a query ``x`` with :math:`x^\top \Gamma h`. With Gaussian inputs the
distribution of ``h`` is known given the task vector, so a context of any length is drawn in O(d) and its first and
second moments are exact.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_key
from icllab.core.prompt import RegressionPrompt
from icllab.tasks.linear_regression import LinearRegression
from icllab.tasks.regression_distributions import (
    AbstractWeights,
    Covariance,
    GaussianInputs,
    GaussianWeights,
    WeightPool,
    matrix,
    root_times,
)

_PROPOSALS = 8


class FeatureSample(eqx.Module):
    """The features of a context, the query that follows it, and the query's label."""

    query: Float[Array, " dim"]
    features: Float[Array, " feature"]
    label: Float[Array, ""]


def features(x: Float[Array, "example dim"], y: Float[Array, " example"]) -> Float[Array, " feature"]:
    """The features of a context of explicit examples; zeros for an empty context."""
    length, dim = x.shape
    if length == 0:
        return jnp.zeros(dim + 1, x.dtype)
    return jnp.append(dim / length * (y @ x), y @ y / length)


def prefix_features(prompt: RegressionPrompt) -> Float[Array, "position feature"]:
    """Features of the examples before every position, in O(length dim); row ``i`` uses the first ``i`` examples.

    Each prefix is normalised by its own length; the empty one has zeros.
    """
    x, y = prompt.x, prompt.y
    terms = jnp.concatenate([x.shape[1] * y[:, None] * x, (y * y)[:, None]], axis=1)
    sums = jnp.cumsum(terms[:-1], axis=0)
    means = sums / jnp.arange(1, prompt.positions, dtype=x.dtype)[:, None]
    return jnp.concatenate([jnp.zeros((1, means.shape[1]), means.dtype), means])


def gaussian_covariance(task: LinearRegression) -> Covariance:
    """The input covariance of a task with Gaussian inputs; raise for other inputs."""
    if not isinstance(task.inputs, GaussianInputs):
        raise expected(
            "inputs", "GaussianInputs (the distribution of the features is not known for other inputs)", task.inputs
        )
    return task.inputs.covariance


def sample_features(task: LinearRegression, *, key: PRNGKeyArray) -> FeatureSample:
    r"""Draw ``(query, features, label)`` from their exact distribution, without drawing the context.

    With :math:`v = \Sigma^{1/2} w`, :math:`s^2 = \rho + |v|^2` and :math:`Y^2 = \sum_i y_i^2 = s^2 \chi^2_\ell`:

    .. math:: \sum_i y_i x_i = \Sigma^{1/2} \Big( \frac{Y^2}{s^2} v + Y z \Big), \qquad
              z = g - \frac{v^\top g}{s^2 + s \sqrt{\rho}}\, v, \quad g \sim N(0, I)

    O(d) per context for scalar and diagonal covariances; a full one costs its root.

    Raises:
        InputError: The inputs are not Gaussian.

    Derived: docs/asymptotics.md, The distribution of the features.
    """
    require_key(key)
    return features_of_length(task, jnp.asarray(task.length, task.noise_variance.dtype), key=key)


def features_of_length(task: LinearRegression, length: Float[Array, ""], *, key: PRNGKeyArray) -> FeatureSample:
    """Draw as :func:`sample_features` does, for a context of ``length`` examples instead of the task's own.

    A length that is data: what is compiled for one serves them all.
    """
    covariance, dim = gaussian_covariance(task), task.dim
    # Two random streams only: compiling one costs more than drawing from it.
    of_w, of_rest = jax.random.split(key)
    v = root_times(covariance, task.weights.sample(dim, key=of_w))
    normals = jax.random.normal(of_rest, (2 * dim + 1 + 3 * _PROPOSALS,), v.dtype)
    g, u, noise = normals[:dim], normals[dim : 2 * dim], normals[2 * dim]
    rho = task.noise_variance.astype(v.dtype)
    s2 = rho + v @ v
    mass = s2 * _chi_square(length, normals[2 * dim + 1 :].reshape(3, _PROPOSALS))
    across = _nonzero(s2 + jnp.sqrt(s2 * rho))
    total = root_times(covariance, v * (mass / _nonzero(s2)) + jnp.sqrt(mass) * (g - v * (v @ g / across)))
    return FeatureSample(
        query=root_times(covariance, u),
        features=jnp.append(dim / length * total, mass / length),
        label=u @ v + jnp.sqrt(rho) * noise,
    )


def _chi_square(freedom: Float[Array, ""], normals: Float[Array, "3 proposal"]) -> Float[Array, ""]:
    r"""A chi-square number from standard normals, by the rejection method of Marsaglia and Tsang (2000)."""
    # Each proposal is accepted with probability at least 0.95, so that all eight are rejected (and the first kept all
    # the same) with probability below 1e-10. The uniform number U of the method enters by its logarithm,
    # -log U = (a^2 + b^2)/2. One degree of freedom, for which the method is not made, is a square.
    x, a, b = normals
    scale = jnp.maximum(freedom, 2) / 2 - 1 / 3
    v = (1 + x / jnp.sqrt(9 * scale)) ** 3
    positive = v > 0
    log_v = jnp.log(jnp.where(positive, v, jnp.ones_like(v)))
    accepted = positive & (-(a**2 + b**2) / 2 < x**2 / 2 + scale * (1 - v + log_v))
    return jnp.where(freedom == 1, x[0] ** 2, 2 * scale * v[jnp.argmax(accepted)])


def _nonzero(value: Float[Array, ""]) -> Float[Array, ""]:
    """``value`` with zeros replaced by ones, to divide numbers that are zero at the same places."""
    return jnp.where(value == 0, jnp.ones_like(value), value)


class FeatureMoments(eqx.Module):
    r"""First and second moments of ``(h, w)`` and of the query, NumPy float64 on the host.

    Attributes:
        query: :math:`\Sigma = E\,x x^\top`.
        task: :math:`E\,w w^\top`.
        cross: :math:`E\,h w^\top`.
        features: :math:`E\,h h^\top`.
        noise_variance: :math:`\rho`.
    """

    query: Float[np.ndarray, "dim dim"]
    task: Float[np.ndarray, "dim dim"]
    cross: Float[np.ndarray, "feature dim"]
    features: Float[np.ndarray, "feature feature"]
    noise_variance: float

    def error(self, gamma: Float[np.ndarray, "dim feature"]) -> float:
        r"""The population error of the head :math:`\Gamma`, including the noise of the query's label.

        .. math:: E (y - x^\top \Gamma h)^2 = \rho + \mathrm{tr}\,\Sigma E[w w^\top]
                  - 2\, \mathrm{tr}\,\Sigma \Gamma E[h w^\top] + \mathrm{tr}\,\Sigma \Gamma E[h h^\top] \Gamma^\top

        Derived: docs/asymptotics.md, The population error.
        """
        product = self.query @ gamma
        quadratic = np.sum(product * (gamma @ self.features - 2 * self.cross.T))
        return float(self.noise_variance + np.sum(self.query * self.task) + quadratic)


def feature_moments(
    task: LinearRegression,
    *,
    weights: AbstractWeights | Float[Array | np.ndarray, "task dim"] | None = None,
    length: int | None = None,
) -> FeatureMoments:
    r"""Exact moments of the features of a context of ``length`` examples. Not traceable: NumPy, float64.

    Given ``w``, with :math:`v = \Sigma^{1/2} w` and :math:`s^2 = \rho + |v|^2`:

    .. math:: E[h_1] &= d \Sigma w, \qquad E[h_2] = s^2 \\
              E[h_1 h_1^\top] &= d^2 \big( \tfrac{s^2}{\ell} \Sigma + (1 + \tfrac1\ell) \Sigma w w^\top \Sigma \big) \\
              E[h_1 h_2] &= d s^2 (1 + \tfrac2\ell) \Sigma w, \qquad E[h_2^2] = s^4 (1 + \tfrac2\ell)

    averaged over Gaussian tasks :math:`w \sim N(0, C)` with :math:`E s^2 = \rho + \mathrm{tr}\,\Sigma C` and
    :math:`E s^4 = (E s^2)^2 + 2\,\mathrm{tr}\,\Sigma C \Sigma C`, or over a finite pool.

    Args:
        task: Gives input covariance, noise and, unless overridden, distribution of tasks and length.
        weights: Another distribution of task vectors, or an explicit list of them, equally likely.
        length: Another context length; features are normalised by it. Of an empty context they are zero.

    Derived: docs/asymptotics.md, The moments of the features.
    """
    dim = task.dim
    sigma = matrix(np.asarray(gaussian_covariance(task), np.float64), dim)
    length = task.length if length is None else length
    if length < 0:
        raise expected("length", "an integer of at least 0", length)
    rho = float(task.noise_variance)
    weights = task.weights if weights is None else weights
    if isinstance(weights, GaussianWeights):
        second = matrix(np.asarray(weights.covariance, np.float64), dim)
        product = sigma @ second
        mean_s2 = rho + np.trace(product)
        mean_s4 = mean_s2**2 + 2 * np.sum(product * product.T)
        mean_s2_w = np.zeros(dim)
    else:
        pool = np.asarray(weights.weights if isinstance(weights, WeightPool) else weights, np.float64)
        if pool.ndim != 2 or pool.shape[1] != dim or not len(pool):
            raise expected("weights", f"a distribution of task vectors, or an array [task, {dim}]", pool.shape)
        s2 = rho + np.sum((pool @ sigma) * pool, axis=1)
        second = pool.T @ pool / len(pool)
        mean_s2, mean_s4, mean_s2_w = s2.mean(), np.mean(s2**2), s2 @ pool / len(pool)
    cross, outer = np.zeros((dim + 1, dim)), np.zeros((dim + 1, dim + 1))
    if length:
        cross[:dim], cross[dim] = dim * sigma @ second, mean_s2_w
        outer[:dim, :dim] = dim**2 * (mean_s2 / length * sigma + (1 + 1 / length) * sigma @ second @ sigma)
        outer[:dim, dim] = outer[dim, :dim] = dim * (1 + 2 / length) * sigma @ mean_s2_w
        outer[dim, dim] = (1 + 2 / length) * mean_s4
    return FeatureMoments(sigma, second, cross, outer, rho)
