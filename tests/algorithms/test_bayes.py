"""Posterior means against brute force, their limits, and that nothing answers better."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import DiscreteMMSE, GaussianPosterior, LeastSquares, Ridge, bayes_optimal
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics import per_length
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, UniformInputs, WeightPool
from icllab.tasks.regression_distributions import AbstractWeights


def data(dim=4, length=12, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(length + 1, dim))
    return x, x @ rng.normal(size=dim) + noise * rng.normal(size=length + 1)


def prompt_of(x, y, dtype="float64"):
    return RegressionPrompt(jnp.asarray(x, dtype), jnp.asarray(y, dtype))


@eqx.filter_jit
def answers(predictor, prompt):
    return predictor(prompt)


@eqx.filter_jit
def weights(predictor, prompt):
    return predictor.weights(prompt)


def gaussian_by_hand(x, y, covariance, noise):
    """C X' (X C X' + noise)^+ y for every prefix."""
    rows = [np.zeros(x.shape[1])]
    for i in range(1, len(y)):
        gram = x[:i] @ covariance @ x[:i].T + noise * np.eye(i)
        rows.append(covariance @ x[:i].T @ np.linalg.solve(gram, y[:i]))
    return np.array(rows)


def pool_by_hand(x, y, pool, noise):
    """For every prefix, every task's likelihood from all its residuals."""
    answers = [x[0] @ pool.mean(0)]
    for i in range(1, len(y)):
        logarithms = -((y[:i] - pool @ x[:i].T) ** 2).sum(1) / (2 * noise)
        likelihood = np.exp(logarithms - logarithms.max())
        answers.append(x[i] @ (likelihood @ pool / likelihood.sum()))
    return np.array(answers)


FULL = np.array([[2.0, 0.5, 0, 0], [0.5, 1.0, 0.2, 0], [0, 0.2, 0.5, 0.1], [0, 0, 0.1, 1.5]])
SINGULAR = np.outer([1.0, 2.0, 0, 0], [1.0, 2.0, 0, 0]) + np.outer([0, 1.0, 0, 1.0], [0, 1.0, 0, 1.0])


@pytest.mark.parametrize(
    "covariance",
    [np.array(0.5), np.array([1.0, 0.1, 3.0, 0.0]), FULL, SINGULAR],
    ids=["scalar", "diagonal", "full", "singular"],
)
@pytest.mark.parametrize("noise", [1e-4, 0.5])
def test_a_gaussian_posterior_is_its_formula(covariance, noise):
    x, y = data()
    written_out = covariance if covariance.ndim == 2 else np.diag(np.broadcast_to(covariance, 4))
    with jax.enable_x64(True):
        predictor, prompt = GaussianPosterior(jnp.asarray(covariance), noise), prompt_of(x, y)
        found, prediction = weights(predictor, prompt), answers(predictor, prompt)
    exact = gaussian_by_hand(x, y, written_out, noise)
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(prediction, np.sum(x * exact, axis=1), rtol=1e-9, atol=1e-11)


def test_a_gaussian_posterior_has_ridge_and_least_squares_as_special_cases():
    x, y = data()
    with jax.enable_x64(True):
        prompt = prompt_of(x, y)
        ridge = answers(Ridge(0.25), prompt)
        for covariance in (2.0, 2 * np.eye(4)):
            posterior = answers(GaussianPosterior(covariance, 0.5), prompt)
            np.testing.assert_allclose(posterior, ridge, rtol=1e-12, atol=1e-14)
        without_noise = answers(GaussianPosterior(2.0, 0.0), prompt)
        np.testing.assert_allclose(without_noise, answers(LeastSquares(), prompt), rtol=1e-12, atol=1e-14)


def test_gradients_in_a_covariance_are_those_of_finite_differences():
    """Equal eigenvalues and singular ones included, where the symmetric root has no derivative."""
    x, y = data(length=3)
    rng = np.random.default_rng(1)
    change = rng.normal(size=(4, 4))
    change = change @ change.T
    with jax.enable_x64(True):

        @jax.jit
        @jax.value_and_grad
        def last(t, covariance):
            return GaussianPosterior(covariance + t * change, 0.1)(prompt_of(x, y))[-1]

        for covariance in (np.eye(4), FULL):
            (above, _), (_, slope), (below, _) = (last(t, covariance) for t in (1e-5, 0.0, -1e-5))
            np.testing.assert_allclose(slope, (above - below) / 2e-5, rtol=1e-7)
        total = eqx.filter_grad(lambda predictor: jnp.sum(predictor(prompt_of(x, y))))
        gradient = eqx.filter_jit(total)(GaussianPosterior(SINGULAR, 0.1))
    assert np.isfinite(gradient.covariance).all()


@pytest.mark.parametrize("tasks", [1, 7, 1024, 1300])
@pytest.mark.parametrize("noise", [1e-6, 0.05, 2.0])
def test_the_mean_over_a_pool_is_brute_force(tasks, noise):
    """Less than one block of tasks, just one, and some with a rest; a task of the pool and a fresh one."""
    pool = np.random.default_rng(5).normal(size=(tasks, 4))
    fresh_x, fresh_y = data(noise=np.sqrt(noise))
    for y in (fresh_y, fresh_x @ pool[0] + np.sqrt(noise) * np.random.default_rng(6).normal(size=13)):
        with jax.enable_x64(True):
            prediction = DiscreteMMSE(jnp.asarray(pool), noise)(prompt_of(fresh_x, y))
        np.testing.assert_allclose(prediction, pool_by_hand(fresh_x, y, pool, noise), rtol=1e-10, atol=1e-12)


def test_without_noise_the_nearest_tasks_answer():
    x, y = data(noise=0.5)
    pool = np.random.default_rng(7).normal(size=(50, 4))
    pool[3] = pool[11]  # a tie wherever they are nearest
    with jax.enable_x64(True):
        prediction = DiscreteMMSE(jnp.asarray(pool), 0.0)(prompt_of(x, y))
        small = DiscreteMMSE(jnp.asarray(pool), 1e-9)(prompt_of(x, y))
        tied = DiscreteMMSE(jnp.asarray(pool), 0.0)(prompt_of(x, x @ pool[3]))
    residuals = ((y[:-1, None] - x[:-1] @ pool.T) ** 2).cumsum(0)
    nearest = [x[i] @ pool[residuals[i - 1].argmin()] for i in range(1, len(y))]
    np.testing.assert_allclose(prediction[1:], nearest, rtol=1e-12)
    np.testing.assert_allclose(prediction[0], x[0] @ pool.mean(0), rtol=1e-12)
    np.testing.assert_allclose(small, prediction, rtol=1e-9)
    np.testing.assert_allclose(tied[1:], x[1:] @ pool[3], rtol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 1e-30, 1e-6, 0.3])
def test_a_large_pool_in_single_precision_is_finite_and_near_double_precision(noise):
    x, y = data(dim=8, length=16, noise=np.sqrt(noise))
    pool = np.random.default_rng(8).normal(size=(2**15, 8))
    y = x @ pool[17] + np.sqrt(noise) * np.random.default_rng(9).normal(size=17)
    x, y, pool = (part.astype(np.float32) for part in (x, y, pool))
    prediction = DiscreteMMSE(jnp.asarray(pool), noise)(prompt_of(x, y, "float32"))
    assert np.isfinite(prediction).all()
    if noise:
        exact = pool_by_hand(x.astype(float), y.astype(float), pool.astype(float), float(np.float32(max(noise, 1e-12))))
        np.testing.assert_allclose(prediction, exact, atol=2e-3 if noise < 0.1 else 2e-5)


@eqx.filter_jit
@eqx.filter_value_and_grad
def size_and_gradient(predictor, prompt):
    return jnp.sum(predictor(prompt) ** 2)


@pytest.mark.parametrize("noise", [0.0, 1e-6, 0.3])
def test_gradients_of_a_pool_are_finite_and_those_of_finite_differences(noise):
    x, y = data()
    pool = np.random.default_rng(10).normal(size=(700, 4))
    prompt = prompt_of(x, y, "float32")
    _, gradient = size_and_gradient(DiscreteMMSE(pool.astype("float32"), noise), prompt)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    if noise == 0.3:
        with jax.enable_x64(True):
            prompt = prompt_of(x, y)
            (above, _), (_, gradient), (below, _) = (
                size_and_gradient(DiscreteMMSE(pool, noise + change), prompt) for change in (1e-5, 0.0, -1e-5)
            )
            np.testing.assert_allclose(gradient.noise_variance, (above - below) / 2e-5, rtol=1e-6)


def test_a_pool_of_very_many_tasks_answers_as_their_law_does():
    """The mean over a pool is a Monte Carlo estimate of the posterior mean, with a known variance."""
    tasks = 2**17
    x, y = data(dim=2, length=4, noise=0.5)
    pool = np.random.default_rng(11).normal(size=(tasks, 2)).astype(np.float32)
    prediction = DiscreteMMSE(pool, 0.25)(prompt_of(x, y, "float32"))
    exact = np.sum(x * gaussian_by_hand(x, y, np.eye(2), 0.25), axis=1)
    values = np.asarray(pool, float)
    for i in range(5):
        likelihood = np.exp(-((y[:i] - values @ x[:i].T) ** 2).sum(1) / 0.5)
        weights = likelihood / likelihood.sum()
        error = np.sqrt(np.sum(weights**2 * (values @ x[i] - exact[i]) ** 2))
        assert error < 0.02
        assert abs(prediction[i] - exact[i]) < 4 * error


LAWS = {
    "isotropic": lambda key: (GaussianInputs(1.0), GaussianWeights(1.0)),
    "diagonal": lambda key: (GaussianInputs(jnp.array([1.0, 0.2, 3.0])), GaussianWeights(jnp.array([2.0, 1.0, 0.1]))),
    "full": lambda key: (GaussianInputs(jnp.asarray(np.eye(3) + 0.5)), GaussianWeights(jnp.asarray(np.eye(3) - 0.3))),
    "uniform inputs": lambda key: (UniformInputs(1.0), GaussianWeights(1.0)),
    "pool": lambda key: (GaussianInputs(1.0), WeightPool.init(GaussianWeights(1.0), 6, 3, key=key)),
}


FURTHER = [
    pytest.param(law, noise, marks=pytest.mark.slow)
    for law, noise in (("isotropic", 0.3), ("full", 0.0), ("diagonal", 0.3), ("uniform inputs", 0.3), ("pool", 0.3))
]


@pytest.mark.parametrize(("law", "noise"), [("full", 0.3), ("pool", 0.0), *FURTHER])
def test_no_other_predictor_has_a_smaller_loss(law, noise, getkey):
    """At any position, beyond three standard errors of the difference; and some are clearly worse."""
    inputs, weights = LAWS[law](getkey())
    task = LinearRegression(3, 5, inputs, weights, noise)
    rivals = {
        "best": bayes_optimal(task),
        "ridge": Ridge(2.0),
        "another prior": GaussianPosterior(jnp.array([0.2, 1.0, 5.0]), 0.5),
        "another pool": DiscreteMMSE(np.random.default_rng(12).normal(size=(5, 3)), 0.3),
    }
    losses = per_length(rivals, task, key=getkey(), prompts=2048, against="best")
    above, error = losses.difference.values[1:], losses.difference_error.values[1:]
    assert np.all(above > -3.5 * error - 1e-6)
    assert np.sum(above > 3 * error) > 9


def test_the_loss_of_the_best_is_the_posterior_variance(getkey):
    """Known in closed form for Gaussian inputs in one dimension after no example: noise + E x^2 E w^2."""
    task = LinearRegression(1, 2, GaussianInputs(2.0), GaussianWeights(3.0), 0.5)
    losses = per_length({"best": bayes_optimal(task)}, task, key=getkey(), prompts=4096)
    assert abs(losses.loss.values[0, 0] - 6.5) < 3 * losses.standard_error.values[0, 0]
    assert losses.standard_error.values[0, 0] < 0.4


def test_what_is_best_is_said_or_refused(getkey):
    task = LinearRegression.from_scaling(dim=3, alpha=2.0, kappa=2.0, rho=0.1, key=getkey())
    best = bayes_optimal(task)
    assert isinstance(best, DiscreteMMSE)
    np.testing.assert_array_equal(best.pool, task.weights.weights)
    assert float(best.noise_variance) == float(task.noise_variance)
    assert isinstance(bayes_optimal(task.fresh()), GaussianPosterior)

    class Sparse(AbstractWeights):
        def sample(self, dim, *, key):
            return jnp.zeros(dim)

    other = LinearRegression(3, 6, task.inputs, Sparse(), 0.1)
    with pytest.raises(InputError) as caught:
        bayes_optimal(other)
    assert str(caught.value) == (
        "task.weights: expected GaussianWeights or a WeightPool, got 'Sparse'; their posterior means are known"
    )

    class Heteroscedastic(LinearRegression):
        pass

    with pytest.raises(InputError, match=r"^task: expected a LinearRegression .*, got 'Heteroscedastic'$"):
        bayes_optimal(Heteroscedastic(3, 6, task.inputs, task.weights, 0.1))


def test_what_is_no_law_is_refused():
    with pytest.raises(InputError, match=r"^noise_variance: expected a number >= 0, got -1.0$"):
        GaussianPosterior(1.0, -1.0)
    with pytest.raises(InputError, match=r"^covariance: expected numbers >= 0, got \[1.0, -1.0\]; it is a variance"):
        GaussianPosterior(jnp.array([1.0, -1.0]), 1.0)
    with pytest.raises(InputError, match=r"^noise_variance: expected a number >= 0, got -1.0$"):
        DiscreteMMSE(jnp.ones((2, 3)), -1.0)
    with pytest.raises(InputError, match=r"^pool: expected task vectors \[task, dim\], at least one, got \(0, 3\)$"):
        DiscreteMMSE(jnp.ones((0, 3)), 1.0)
