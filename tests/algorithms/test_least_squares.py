"""Ridge and least squares as predictors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import GaussianPosterior, LeastSquares, PrincipalComponentRegression, Ridge
from icllab.algorithms.least_squares import Lasso
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import LinearRegression
from icllab.tasks.scaling import Standardised


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
        (np.ones(2), "a number >= 0, got [1.0, 1.0]; use jax.vmap to make"),
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


REGRESSORS = {
    "least squares": (LeastSquares(), 0),
    "standardised": (Standardised(LeastSquares()), 0),
    "components": (PrincipalComponentRegression(np.eye(3)[:, :2]), 0),
    "interpolating ridge": (Ridge(0.0), 0),
    "lasso": (lambda prompt, unit: Lasso(0.1 * unit)(prompt), 1),
    "ridge": (lambda prompt, unit: Ridge(0.5 * unit * unit)(prompt), 2),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", REGRESSORS)
def test_answers_do_not_depend_on_the_unit_of_the_inputs(name, dtype):
    """Inputs times a power of two have the same answers to the bit, up to the ends of the exponents' range."""
    predictor, degree = REGRESSORS[name]
    limits = np.finfo(dtype)
    generator = np.random.default_rng()
    with jax.enable_x64(dtype == "float64"):
        x = generator.normal(size=(9, 3)).round(2).astype(dtype)
        y = generator.normal(size=9).astype(dtype)

        @jax.jit
        def answers(x, unit):
            prompt = RegressionPrompt(x, jnp.asarray(y))
            return predictor(prompt, unit) if degree else predictor(prompt)

        one = answers(jnp.asarray(x), jnp.asarray(1.0, dtype))
        # A penalty and the inputs are numbers themselves; the smallest input is .01.
        most = (limits.maxexp - 8) // max(degree, 1)
        for power in [*generator.integers(14 - most, most, size=4), most, 14 - most]:
            unit = np.ldexp(np.ones((), dtype), power)
            np.testing.assert_array_equal(answers(jnp.asarray(x * unit), jnp.asarray(unit)), one, err_msg=str(power))


@pytest.mark.parametrize("power", [20, 30, 60, 110])
def test_a_ridge_that_rounding_hides_is_none(power):
    """In float32, beside a direct solution in float64: large inputs make any ridge small."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(12, 4)).astype("float32"), generator.normal(size=12).astype("float32")
    scaled = x * np.float32(2.0**power)
    answers = Ridge(1.0)(RegressionPrompt(jnp.asarray(scaled), jnp.asarray(y)))
    for i in range(1, 12):
        exact = x[i].astype(float) @ np.linalg.pinv(x[:i].astype(float)) @ y[:i]
        np.testing.assert_allclose(answers[i], exact, rtol=1e-3, atol=1e-5)


def test_the_unit_is_that_of_the_first_example():
    """Later inputs, however large, do not move earlier answers by a bit."""
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(8, 3)).astype("float32"), jnp.asarray(generator.normal(size=8).astype("float32"))
    for predictor in (LeastSquares(), Standardised(LeastSquares()), Ridge(0.3)):
        before = predictor(RegressionPrompt(jnp.asarray(x), y))
        later = x.copy()
        later[5:] *= np.float32(1e25)
        after = predictor(RegressionPrompt(jnp.asarray(later), y))
        np.testing.assert_array_equal(before[:5], after[:5])
    zeros = np.concatenate([np.zeros((2, 3), "float32"), x * np.float32(1e-25)])
    labels = jnp.concatenate([jnp.zeros(2), y])
    later = LeastSquares()(RegressionPrompt(jnp.asarray(zeros), labels))[2:]
    np.testing.assert_allclose(later, LeastSquares()(RegressionPrompt(jnp.asarray(x), y)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("power", [-100, -64, 64, 100])
def test_weights_and_posterior_means_are_right_in_any_unit(power):
    """The predictions of other classes and the input gradients come from the weights."""
    generator, unit = np.random.default_rng(2), np.float32(2.0**power)
    x, y = generator.normal(size=(9, 3)).astype("float32"), jnp.asarray(generator.normal(size=9).astype("float32"))
    prompt = RegressionPrompt(jnp.asarray(x * unit), y)
    reference = np.stack([np.linalg.pinv(x[:i].astype(float)) @ np.asarray(y)[:i] for i in range(1, 9)])
    for predictor in (LeastSquares(), Ridge(0.0), GaussianPosterior(1.0, 0.0)):
        np.testing.assert_allclose(predictor.weights(prompt)[1:] * unit, reference, rtol=1e-3, atol=1e-4)
