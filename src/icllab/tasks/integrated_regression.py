r"""Linear regression in context, integrated over everything except the sample covariance of the examples.

Gradient descent, preconditioned or not, and the linear attention that runs it answer a query with

.. math:: \hat y = x_q^\top R(S)\,m, \qquad S = \frac1n\sum_ix_ix_i^\top, \quad m = \frac1n\sum_iy_ix_i :

their answer is linear in the labels. Given S, the mean of the squared error over task vector, label noise and query is
then a closed form in the matrix :math:`R(S)`, and only S is left to be drawn. What is minimised is the same; the
gradient of a batch has the same mean and less variance. It is another stream of data, in which a prompt is a matrix.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected, require_instance, require_key
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask
from icllab.tasks.linear_regression import LinearRegression
from icllab.tasks.regression_distributions import (
    AbstractWeights,
    Covariance,
    GaussianInputs,
    GaussianWeights,
    WeightPool,
)
from icllab.tasks.sample_covariances import sample_covariance


class CovariancePrompt(Prompt):
    """The sample covariance of a prompt's examples, from which the prediction is made.

    A predictor answers with its label map :math:`R(S)`, [1, dim, dim], at the last position, the query after all
    examples. Other positions are not to be answered: the examples cannot be told apart any more.

    Attributes:
        covariance: :math:`S`.
        examples: n (static).
    """

    covariance: Float[Array, "dim dim"]
    examples: int = eqx.field(static=True)

    @property
    def positions(self) -> int:
        """Number of positions: one for each example, and one for the query."""
        return self.examples + 1

    @property
    def dim(self) -> int:
        """Input dimension."""
        return self.covariance.shape[-1]

    def replaced_after(self, position: int, replacement: Prompt) -> "CovariancePrompt":
        """Return the prompt, whose last position has nothing after it; raise at other positions."""
        return self.alone(position, size=position + 1)

    def alone(self, position: int, *, size: int = 1) -> "CovariancePrompt":
        """Return the whole prompt; raise for a part of it, because examples cannot be separated."""
        if position != self.length or size != self.positions:
            requirement = f"the whole prompt, position {self.length} and size {self.positions}"
            raise expected("position", requirement, f"position {position} and size {size}")
        return self


class IntegratedRegression(AbstractTask):
    r"""A linear regression that draws only sample covariances; the loss is the mean over everything else.

    .. math::
        \mathbb E\bigl[(y_q - \hat y)^2 \mid S\bigr] = \rho + \mathrm{tr}\,\Sigma\,(I - RS)\,W\,(I - RS)^\top
        + \frac\rho n\,\mathrm{tr}\,\Sigma\,RSR^\top, \qquad
        \Sigma = \mathbb E\,x_qx_q^\top, \quad W = \mathbb E\,ww^\top

    exactly, for any distribution of inputs, and of task vectors whose second moment is W: a pool's is that of the pool.
    Covariances of Gaussian inputs are drawn without the inputs, :mod:`icllab.tasks.sample_covariances`.

    Attributes:
        task: The regression with all its distributions.

    Derived: docs/training.md, Prompts that are integrated out.
    """

    task: LinearRegression

    def __check_init__(self) -> None:
        require_instance("task", self.task, LinearRegression, "a LinearRegression")

    @property
    def length(self) -> int:
        """Examples before the query, n."""
        return self.task.length

    def sample(self, *, key: PRNGKeyArray) -> CovariancePrompt:
        """The sample covariance of one prompt's examples."""
        require_key(key)
        inputs, dim, length = self.task.inputs, self.task.dim, self.length
        if isinstance(inputs, GaussianInputs):
            return CovariancePrompt(sample_covariance(inputs.covariance, dim, length, key=key), length)
        x = inputs.sample_many(length, dim, key=key)
        with jax.default_matmul_precision("float32"):
            return CovariancePrompt(x.T @ x / jnp.asarray(length, x.dtype), length)

    def loss(self, prediction: Array, prompt: CovariancePrompt) -> Float[Array, " 1"]:
        """The expected squared error, no factor 1/2, of the predictor whose label map is ``prediction``.

        Raises:
            InputError: There is not one matrix of the task's dimension.
        """
        if prediction.shape != (1, self.task.dim, self.task.dim):
            hint = "a label map for the last position"
            raise expected("prediction", str((1, self.task.dim, self.task.dim)), prediction.shape, hint)
        label_map, s = prediction[0], prompt.covariance
        with jax.default_matmul_precision("float32"):
            image = label_map @ s
            left = jnp.eye(self.task.dim, dtype=image.dtype) - image
            sigma = _input_covariance(self.task).astype(image.dtype)
            tasks = _second_moment(self.task.weights).astype(image.dtype)
            error = jnp.sum(_times(sigma, left) * _times(tasks, left.T).T)
            noise = self.task.noise_variance.astype(image.dtype)
            per_example = noise / jnp.asarray(self.length, image.dtype)
            return (noise + error + per_example * jnp.sum(_times(sigma, image) * label_map))[None]


def _input_covariance(task: LinearRegression) -> Covariance:
    """The query's covariance, in the shape of a Gaussian's covariance if multiplying by it is then cheap."""
    return task.inputs.covariance if isinstance(task.inputs, GaussianInputs) else task.inputs.second_moment(task.dim)


def _second_moment(weights: AbstractWeights) -> Covariance:
    if isinstance(weights, GaussianWeights):
        return weights.covariance
    if isinstance(weights, WeightPool):
        pool = weights.weights
        return pool.T @ pool / jnp.asarray(pool.shape[0], pool.dtype)
    raise expected("weights", "GaussianWeights or a WeightPool", type(weights).__name__)


def _times(covariance: Covariance, matrix: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """Product of a covariance of any shape and a matrix."""
    return covariance @ matrix if covariance.ndim == 2 else covariance.reshape(-1, 1) * matrix
