"""Ridge and least squares as predictors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import LeastSquares, PrincipalComponentRegression, Ridge
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import LinearRegression


@pytest.fixture
def prompt(getkey):
    with jax.enable_x64(True):
        x = jax.random.normal(getkey(), (20, 5), "float64")
        yield RegressionPrompt(x, x @ jnp.arange(5.0) + jax.random.normal(getkey(), (20,), "float64"))


def test_ridge_is_its_formula_at_every_position(prompt):
    prediction = Ridge(0.7)(prompt)
    x, y = np.asarray(prompt.x), np.asarray(prompt.y)
    for i in range(prompt.positions):
        weights = np.linalg.solve(x[:i].T @ x[:i] + 0.7 * np.eye(5), x[:i].T @ y[:i])
        np.testing.assert_allclose(prediction[i], x[i] @ weights, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(Ridge(0.7).weights(prompt)[i], weights, rtol=1e-10, atol=1e-13)
    assert prediction[0] == 0


def test_a_predictor_with_a_known_number_can_be_made_while_another_program_is_traced(prompt):
    ridge = jnp.asarray(0.7)
    np.testing.assert_allclose(jax.jit(lambda p: Ridge(ridge)(p))(prompt), Ridge(ridge)(prompt), rtol=1e-12)


def test_least_squares_is_the_pseudo_inverse_at_every_position(prompt):
    prediction, x, y = LeastSquares()(prompt), np.asarray(prompt.x), np.asarray(prompt.y)
    for i in range(1, prompt.positions):
        np.testing.assert_allclose(prediction[i], x[i] @ np.linalg.pinv(x[:i]) @ y[:i], rtol=1e-10)


def test_ridge_tends_to_least_squares_linearly_in_the_ridge(prompt):
    """Below the dimension and above it; each tenfold smaller ridge leaves a tenth of the difference."""
    exact = LeastSquares()(prompt)
    differences = [np.abs(Ridge(ridge)(prompt) - exact)[1:] for ridge in (1e-6, 1e-7)]
    np.testing.assert_allclose(differences[0] / differences[1], 10, rtol=1e-3)
    np.testing.assert_array_equal(Ridge(0)(prompt), exact)


def test_without_noise_as_many_examples_as_dimensions_are_enough(getkey):
    with jax.enable_x64(True):
        task = LinearRegression.convention("garg", dim=6, length=9)
        prompt = task.sample(key=getkey())
        error = np.abs(LeastSquares()(prompt) - prompt.y)
    assert error[6:].max() < 1e-10
    assert error[:6].min() > 1e-4


@pytest.mark.parametrize(
    ("ridge", "said"),
    [
        (-0.1, "a number >= 0, got -0.1"),
        (float("nan"), "a number >= 0, got nan"),
        ("1", "real numbers, got '1'"),
        (True, "real numbers, got 'numbers of type bool'"),
        (None, "real numbers, got 'NoneType'"),
        (np.ones(2), "a number >= 0, got [1.0, 1.0]; jax.vmap makes"),
    ],
)
def test_a_ridge_that_is_none_is_refused(ridge, said):
    with pytest.raises(InputError) as caught:
        Ridge(ridge)
    assert str(caught.value).startswith(f"ridge: expected {said}")


def test_an_integer_ridge_is_a_number():
    assert Ridge(1).ridge.dtype == jnp.float32


def test_principal_component_regression_is_least_squares_on_the_components_of_every_prefix(prompt):
    """Below as many examples as components and above; all components are least squares itself."""
    x, y, covariance = np.asarray(prompt.x), np.asarray(prompt.y), np.diag([0.1, 3.0, 0.2, 2.0, 0.3])
    prediction = PrincipalComponentRegression.from_covariance(covariance, 2)(prompt)
    for i in range(1, prompt.positions):
        weights = np.linalg.pinv(x[:i][:, [1, 3]]) @ y[:i]
        np.testing.assert_allclose(prediction[i], x[i][[1, 3]] @ weights, rtol=1e-9)
    whole = PrincipalComponentRegression.from_covariance(covariance, 5)(prompt)
    np.testing.assert_allclose(whole, LeastSquares()(prompt), rtol=1e-8, atol=1e-8)
    with pytest.raises(InputError, match="components: expected an integer from 1 to 5, got 6"):
        PrincipalComponentRegression.from_covariance(covariance, 6)
    with pytest.raises(InputError, match="directions: expected an array"):
        PrincipalComponentRegression(jnp.ones(3))
