"""Bayes predictors: the posterior mean under Gaussian tasks, or under a pool of tasks."""

from functools import partial
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icllab.algorithms.functional import GaussianProcess, RepairedProcess
from icllab.algorithms.least_squares import LinearPredictor, number, require_regression
from icllab.algorithms.recursions import ridge_weights
from icllab.core.domains import FINITE, NON_NEGATIVE_OR_INF, Domain
from icllab.core.errors import expected
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor, AbstractTask
from icllab.tasks.function_regression import FunctionRegression
from icllab.tasks.linear_regression import LinearRegression
from icllab.tasks.regression_distributions import Covariance, GaussianWeights, WeightPool

_VARIANCES = Domain(least=0, infinite=True, text="numbers >= 0", hint="it is a variance, not a standard deviation")
_BLOCK = 512  # tasks of a pool that are held at once: what stays in the cache for some prompts at a time
_PoolSums: TypeAlias = tuple[Array, Array, Array]  # least residual, mass and mass times prediction, at every position


class GaussianPosterior(LinearPredictor):
    r"""The posterior mean of :math:`w \sim N(0, C)` given the previous examples: Bayes-optimal for that distribution.

    .. math:: w_i = C X_i^\top (X_i C X_i^\top + \rho I)^{-1} y_i

    Ridge regression in the coordinates in which :math:`C` is the identity, O(length dim^2) per prompt (a full
    covariance adds its Cholesky factor, O(dim^3); a singular one is allowed). Without noise it is the limit
    :math:`\rho \to 0^+`: the interpolator of least :math:`w^\top C^+ w`.

    Attributes:
        covariance: C, as a scalar, a diagonal or a matrix; a leaf.
        noise_variance: :math:`\rho \ge 0`, a variance; a leaf.

    Derived: docs/rivals.md, The posterior of a Gaussian distribution.
    """

    covariance: Covariance = eqx.field(converter=partial(number, "covariance"))
    noise_variance: Float[Array, ""] = eqx.field(converter=partial(number, "noise_variance"))

    def __check_init__(self) -> None:
        NON_NEGATIVE_OR_INF.require_leaf("noise_variance", self.noise_variance)
        if isinstance(self.covariance, jax.Array) and self.covariance.ndim < 2:
            _VARIANCES.require_leaf("covariance", self.covariance, axes=1)
        elif isinstance(self.covariance, jax.Array) and self.covariance.shape != 2 * self.covariance.shape[:1]:
            raise expected("covariance", "a scalar, a diagonal or a matrix [dim, dim]", self.covariance.shape)
        else:
            FINITE.require_leaf("covariance", self.covariance, axes=2)

    def weights(self, prompt: RegressionPrompt) -> Float[Array, "position dim"]:
        """The posterior mean of the task vector at every position."""
        require_regression(prompt, self.covariance.shape[0] if self.covariance.size > 1 else None)
        x, covariance = prompt.x, self.covariance.astype(prompt.x.dtype)
        noise = self.noise_variance.astype(x.dtype)
        if covariance.ndim == 2:
            root = _lower_root(covariance)
            return ridge_weights(x @ root, prompt.y, noise) @ root.T
        root = jnp.broadcast_to(_root(covariance), (1, x.shape[1]))
        return ridge_weights(x * root, prompt.y, noise) * root


def _root(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Square roots, with derivative zero at zero."""
    positive = values > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, values, jnp.ones_like(values))), jnp.zeros_like(values))


def _lower_root(covariance: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """L with L Lᵀ = C by Cholesky's algorithm; a pivot within rounding error gives a column of zeros."""
    # The symmetric root would do as well, but its derivative does not exist where eigenvalues coincide.
    dim = covariance.shape[0]
    least = dim * jnp.finfo(covariance.dtype).eps * jnp.max(jnp.diag(covariance))

    def step(left: Array, column: Array) -> tuple[Array, Array]:
        pivot = left[column, column]
        sound = pivot > least
        column_of_root = left[:, column] / jnp.sqrt(jnp.where(sound, pivot, jnp.ones_like(pivot)))
        factor = jnp.where(sound, column_of_root, jnp.zeros_like(column_of_root))
        return left - factor[:, None] * factor[None, :], factor

    return jax.lax.scan(step, covariance, jnp.arange(dim))[1].T


class DiscreteMMSE(AbstractPredictor):
    r"""The posterior mean over a finite pool of equally likely tasks (dMMSE): Bayes-optimal for that pool.

    .. math:: \hat y_i = \sum_j p_{ij}\, x_i^\top w_j, \qquad
              p_{ij} \propto \exp\Bigl( -\frac1{2\rho} \sum_{m < i} (y_m - x_m^\top w_j)^2 \Bigr)

    All positions in one pass over the pool, O(length tasks dim) per prompt: the products :math:`x_i^\top w_j` are
    computed once and serve as residuals and as predictions. A block of tasks is held at a time, its
    exponentials taken relative to the best task so far. At :math:`\rho = 0` it is the limit
    :math:`\rho \to 0^+`: the mean over the tasks of least squared residual. With no example seen it answers
    with the mean of the pool.

    Attributes:
        pool: Task vectors; a leaf.
        noise_variance: :math:`\rho \ge 0`, a variance; a leaf. Below the square root of the smallest normal
            number it counts as zero.

    Source: [Raventos23].
    Derived: docs/rivals.md, A pool in one pass.
    """

    pool: Float[Array, "task dim"] = eqx.field(converter=partial(number, "pool"))
    noise_variance: Float[Array, ""] = eqx.field(converter=partial(number, "noise_variance"))

    def __check_init__(self) -> None:
        if isinstance(self.pool, jax.Array) and (self.pool.ndim != 2 or 0 in self.pool.shape):
            raise expected("pool", "task vectors [task, dim], at least one", self.pool.shape)
        NON_NEGATIVE_OR_INF.require_leaf("noise_variance", self.noise_variance)

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The posterior mean at every position."""
        require_regression(prompt, self.pool.shape[1])
        x, y = prompt.x, prompt.y
        with jax.default_matmul_precision("float32"):
            return _posterior_answers(x, y, self.pool.astype(x.dtype), self.noise_variance.astype(x.dtype))


@jax.jit
def _posterior_answers(
    x: Float[Array, "position dim"],
    y: Float[Array, " position"],
    pool: Float[Array, "task dim"],
    noise: Float[Array, ""],
) -> Float[Array, " position"]:
    noisy = noise > jnp.finfo(x.dtype).tiny ** 0.5
    rate = 0.5 / jnp.where(noisy, noise, jnp.ones_like(noise))

    def likelihood(excess: Array) -> Array:
        """Likelihood relative to the best task; the sum of squared residuals is larger by ``excess``."""
        return jnp.where(noisy, jnp.exp(-rate * excess), (excess <= 0).astype(excess.dtype))

    @jax.checkpoint
    def add(sums: _PoolSums, block: Array) -> tuple[_PoolSums, None]:
        least, mass, moment = sums
        answers = x @ block.T
        squares = (y[:-1, None] - answers[:-1]) ** 2
        # Unrolled: a cumulative sum would cost more than all the exponentials.
        total, before = jax.lax.scan(lambda t, s: (t + s, t), jnp.zeros_like(answers[0]), squares, unroll=16)
        residuals = jnp.concatenate([before, total[None]])
        best = jax.lax.stop_gradient(jnp.minimum(least, residuals.min(axis=1)))
        decay, likely = likelihood(least - best), likelihood(residuals - best[:, None])
        moment = decay * moment + jnp.sum(likely * answers, axis=1)
        return (best, decay * mass + jnp.sum(likely, axis=1), moment), None

    zero = jnp.zeros_like(y)
    sums = (jnp.full_like(y, jnp.finfo(x.dtype).max), zero, zero)
    whole = len(pool) - len(pool) % _BLOCK
    if whole:
        sums, _ = jax.lax.scan(add, sums, pool[:whole].reshape(-1, _BLOCK, pool.shape[1]))
    if whole < len(pool):
        sums, _ = add(sums, pool[whole:])
    _, mass, moment = sums
    return moment / mass


def bayes_optimal(task: AbstractTask) -> LinearPredictor | DiscreteMMSE | GaussianProcess | RepairedProcess:
    """The predictor with the least expected loss on prompts of ``task``: its posterior mean, at every position.

    =========================================  =========================================================
    distribution                                        predictor
    =========================================  =========================================================
    ``LinearRegression``, ``GaussianWeights``  :class:`GaussianPosterior` with its covariance and noise
    ``LinearRegression``, ``WeightPool``       :class:`DiscreteMMSE` with its tasks and noise
    ``FunctionRegression``                     :class:`~icllab.algorithms.functional.GaussianProcess` with its kernel
    the same with ``repair``                   :class:`~icllab.algorithms.functional.RepairedProcess`, which
                                               answers the last position only
    =========================================  =========================================================

    The distribution of the inputs does not matter: they are independent of the task vector, or of the function. A task
    whose posterior is not known in closed form here raises an ``InputError``.

    Derived: docs/rivals.md, What the best predictor is; docs/constructions.md, Bayes under label noise.
    """
    if type(task) is FunctionRegression:
        predictor = RepairedProcess if task.repair else GaussianProcess
        return predictor(task.noise_variance, kernel=task.kernel, temperature=task.temperature)
    if type(task) is not LinearRegression:
        requirement = "a LinearRegression or a FunctionRegression (icllab has no Bayes predictor of other tasks)"
        raise expected("task", requirement, type(task).__name__)
    if isinstance(task.weights, GaussianWeights):
        return GaussianPosterior(task.weights.covariance, task.noise_variance)
    if isinstance(task.weights, WeightPool):
        return DiscreteMMSE(task.weights.weights, task.noise_variance)
    law = type(task.weights).__name__
    raise expected("task.weights", "GaussianWeights or a WeightPool", law, "their posterior means are known")
