"""The lasso against its optimality conditions, soft thresholds, and scikit-learn run to the end."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusals import assert_refused

import icllab as icl
from icllab.algorithms import FromSklearn, Lasso
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import GaussianInputs, LinearRegression, SparseWeights

linear_model = pytest.importorskip("sklearn.linear_model")


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def prompt_of(x, y):
    return RegressionPrompt(jnp.asarray(x, "float64"), jnp.asarray(y, "float64"))


def drawn(seed, positions=15, dim=6, noise=0.3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(positions, dim))
    return x, x[:, :2] @ rng.normal(size=2) + noise * rng.normal(size=positions)


predicted = eqx.filter_jit(lambda predictor, prompt: predictor(prompt))
weights_of = jax.jit(lambda alpha, prompt: Lasso(alpha).weights(prompt))


@pytest.mark.parametrize("alpha", [1.0, 0.1, 0.01, 0.0001])
@pytest.mark.parametrize("correlated", [False, True])
def test_every_prefix_solves_the_optimality_conditions(float64, alpha, correlated):
    """|X^T (y - Xw)| / i <= alpha everywhere, and = alpha sign(w) where w is not 0: these have one solution."""
    for seed in range(8):
        x, y = drawn(seed)
        if correlated:
            x = x + 2 * x[:, :1]
        weights = np.asarray(weights_of(alpha, prompt_of(x, y)))
        np.testing.assert_array_equal(weights[0], 0)
        for i in range(1, len(y)):
            slope = x[:i].T @ (y[:i] - x[:i] @ weights[i]) / i
            active = weights[i] != 0
            assert np.abs(slope).max() <= alpha * (1 + 1e-9) + 1e-11
            np.testing.assert_allclose(slope[active], alpha * np.sign(weights[i][active]), atol=1e-10)


@pytest.mark.parametrize("alpha", [1.0, 0.1, 0.01])
def test_scikit_learn_run_to_the_end_agrees(float64, alpha):
    prompt = prompt_of(*drawn(11))
    theirs = FromSklearn(linear_model.Lasso(alpha, fit_intercept=False, max_iter=10**6, tol=1e-14))
    np.testing.assert_allclose(predicted(Lasso(alpha), prompt), theirs(prompt), atol=1e-9)


def test_orthogonal_inputs_have_soft_thresholds(float64):
    """After 4 examples X^T X / i = I, and w = soft(X^T y / i, alpha)."""
    x = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1], [0, 0, 0, 0]])
    moment = np.array([0.7, -0.2, 0.05, -1.0])
    weights = weights_of(0.1, prompt_of(x, np.append(x[:4] @ moment, 0)))
    np.testing.assert_allclose(weights[4], [0.6, -0.1, 0.0, -0.9], atol=1e-12)


def test_a_penalty_above_the_largest_moment_leaves_nothing(float64):
    x, y = drawn(3)
    largest = np.abs(x[:-1].T @ y[:-1]).max() / (len(y) - 1)
    np.testing.assert_array_equal(weights_of(largest * 1.0001, prompt_of(x, y))[-1], 0)
    assert np.count_nonzero(weights_of(largest * 0.9999, prompt_of(x, y))[-1]) == 1


def test_constant_and_equal_columns_have_finite_answers(float64):
    x, y = drawn(5)
    x[:, 2], x[:, 3] = 0, x[:, 0]
    answers = np.asarray(predicted(Lasso(0.1), prompt_of(x, y)))
    reduced = np.asarray(predicted(Lasso(0.1), prompt_of(x[:, [0, 1, 4, 5]], y)))
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(answers, reduced, atol=1e-6)


def test_the_derivative_in_alpha_is_that_of_differences(float64):
    prompt = prompt_of(*drawn(7))
    predict = jax.jit(lambda alpha: Lasso(alpha)(prompt))
    gradient = jax.jit(jax.jacfwd(lambda alpha: Lasso(alpha)(prompt)))(0.1)
    np.testing.assert_allclose(gradient, (predict(0.1 + 1e-6) - predict(0.1 - 1e-6)) / 2e-6, atol=1e-6)


def test_fit_learns_the_penalty():
    task = LinearRegression(6, 8, GaussianInputs(1.0), SparseWeights(1), 0.5)
    run = icl.fit(Lasso(1.5), task, steps=40, batch=32, key=jax.random.key(0), optimizer=optax.adam(0.05))
    assert 0.1 < float(run.members.stacked.alpha[0]) < 1.0


@pytest.mark.parametrize(("alpha", "came"), [(0.0, "0.0"), (-1.0, "-1.0"), (np.nan, "nan"), (np.ones(2), "[1.0, 1.0]")])
def test_a_penalty_is_one_positive_number(alpha, came):
    assert_refused(lambda: Lasso(alpha), f"alpha: expected a finite number > 0, got {came}")


def test_rounding_lets_no_more_coordinates_in_than_there_are_examples():
    """In float32 at a tiny penalty: the moments of what is interpolated are rounding, and G would be singular."""
    x = np.random.default_rng(0).normal(size=(64, 9, 12)).astype(np.float32)
    y = x[:, :, 0] - 2 * x[:, :, 1]
    predict = jax.jit(jax.vmap(lambda x, y: Lasso(1e-6).weights(RegressionPrompt(x, y))))
    weights = np.asarray(predict(jnp.asarray(x), jnp.asarray(y)))
    assert np.isfinite(weights).all()
    assert np.all(np.count_nonzero(weights, axis=2) <= np.arange(9))
