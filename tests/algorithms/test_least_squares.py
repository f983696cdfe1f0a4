"""Ridge and least squares as predictors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import LeastSquares, PrincipalComponentRegression, Ridge
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import LinearRegression, Standardised


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


EXTREMES = {"float32": 20, "float64": 160}  # decimal exponents at which squares leave the range


@pytest.mark.parametrize("predictor", [LeastSquares(), Standardised(LeastSquares())], ids=["plain", "standardised"])
def test_the_unit_of_the_inputs_does_not_matter(predictor, precision):
    """Powers of two change no bit; other units, up to those whose squares overflow or vanish, round alone."""
    rng, answers = np.random.default_rng(0), jax.jit(lambda prompt: predictor(prompt))
    x, y = rng.normal(size=(9, 3)), rng.normal(size=9)
    x[0] = 0  # which has no unit
    most, epsilon = EXTREMES[precision], float(jnp.finfo(precision).eps)
    x, y = x.astype(precision), y.astype(precision)
    expected = np.asarray(answers(RegressionPrompt(jnp.asarray(x), jnp.asarray(y))))
    assert np.ptp(expected) > 0.1
    for exponent in (-3, 2, int(rng.integers(5, 60)), -int(rng.integers(5, 60))):
        scaled = RegressionPrompt(jnp.asarray(np.ldexp(x, exponent)), jnp.asarray(y))
        np.testing.assert_array_equal(answers(scaled), expected)
    for exponent in (-most, most, int(rng.integers(1, most))):
        scaled = RegressionPrompt(jnp.asarray((x * 10.0**exponent).astype(precision)), jnp.asarray(y))
        np.testing.assert_allclose(answers(scaled), expected, rtol=1000 * epsilon, atol=1000 * epsilon)


def test_a_ridge_is_in_the_unit_of_squared_inputs(precision):
    """Inputs times 2^k with a ridge times 4^k give the same answers; a ridge far below large inputs has no effect."""
    rng, answers = np.random.default_rng(1), jax.jit(lambda prompt, ridge: Ridge(ridge)(prompt))
    x, y = (rng.normal(size=size).astype(precision) for size in ((9, 3), 9))

    def answered(factor, ridge):
        prompt = RegressionPrompt(jnp.asarray((x * factor).astype(precision)), jnp.asarray(y))
        return np.asarray(answers(prompt, jnp.asarray(ridge, precision)))

    expected = answered(1.0, 0.25)
    for exponent in (5, -7, 40, -40):
        np.testing.assert_array_equal(answered(2.0**exponent, 0.25 * 4.0**exponent), expected)
    epsilon, large = float(jnp.finfo(precision).eps), 10.0 ** EXTREMES[precision]
    np.testing.assert_allclose(answered(large, 1.0), answered(1.0, 0.0), rtol=1000 * epsilon, atol=1000 * epsilon)
    np.testing.assert_array_equal(answered(1 / large, 1.0), 0.0)


def test_a_later_input_of_another_unit_changes_no_earlier_answer(precision):
    x = np.random.default_rng(2).normal(size=(6, 2)).astype(precision)
    later = x.copy()
    later[4:] *= 10.0 ** EXTREMES[precision]
    before, after = (
        np.asarray(LeastSquares()(RegressionPrompt(jnp.asarray(part), jnp.ones(6, precision)))) for part in (x, later)
    )
    np.testing.assert_array_equal(after[:4], before[:4])
