"""The population error of a fitted head against its mean squared error on contexts sampled in full."""

import jax
import numpy as np
import pytest

from icllab.models import reduced
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, WeightPool

DIM, LENGTH, KEY = 6, 12, jax.random.key(9)
CONTEXTS = 100_000


def simulated(model, task):
    """Mean squared error at every position over explicit contexts, and its standard error."""

    @jax.jit
    def losses(keys):
        return jax.vmap(lambda k: (lambda prompt: task.loss(model(prompt), prompt))(task.sample(key=k)))(keys)

    values = np.asarray(losses(jax.random.split(jax.random.key(1), CONTEXTS)), np.float64)
    return values.mean(0), values.std(0) / np.sqrt(CONTEXTS)


def isotropic():
    return LinearRegression.from_scaling(dim=DIM, alpha=LENGTH / DIM, kappa=1.0, rho=0.2, key=KEY)


def anisotropic():
    """Full covariances of inputs and of tasks that do not commute, and a pool."""
    skew = 0.2 + np.diag(np.linspace(0.1, 1.0, DIM))
    other = np.diag(np.linspace(2.0, 0.5, DIM)) - 0.05
    pool = WeightPool.init(GaussianWeights(other), 6, DIM, key=KEY)
    return LinearRegression(DIM, LENGTH, GaussianInputs(skew), pool, 0.3)


@pytest.mark.parametrize(
    ("build", "kind"), [pytest.param(isotropic, "icl", marks=pytest.mark.slow), (anisotropic, "idg")]
)
def test_it_is_the_mean_over_sampled_contexts(build, kind):
    """Within 3.5 standard errors, each below 2% of the error, at the last position and at shorter lengths."""
    task = build()
    model = reduced.fit(task, prompts=100, ridge=0.01, key=KEY)
    fresh = task.fresh() if kind == "icl" else task
    mean, error = simulated(model, fresh)
    exact = model.icl_error() if kind == "icl" else model.idg_error()
    assert error[-1] < 0.02 * exact
    assert abs(mean[-1] - exact) < 3.5 * error[-1]
    for length in (0, 1, 4):
        exact = model.population_error(fresh, length=length)
        assert error[length] < 0.02 * exact
        assert abs(mean[length] - exact) < 3.5 * error[length]


def test_another_law_of_tasks_and_another_task():
    """Tested on tasks of another covariance, on inputs of another, and with other noise."""
    model = reduced.fit(isotropic(), prompts=100, ridge=0.01, key=KEY)
    law = GaussianWeights(np.linspace(0.2, 3.0, DIM))
    other = LinearRegression(DIM, LENGTH, GaussianInputs(np.linspace(0.05, 0.4, DIM)), law, 0.5)
    mean, error = simulated(model, other)
    assert error[-1] < 0.02 * mean[-1]
    assert abs(mean[-1] - model.population_error(other)) < 3.5 * error[-1]
    assert model.population_error(other) == model.population_error(
        LinearRegression(DIM, LENGTH, other.inputs, GaussianWeights(1.0), 0.5), weights=law
    )
