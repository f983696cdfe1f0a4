"""Every prefix against a run of its own, in words that the module does not use; and the objective's two factors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import GradientDescent, GradientDescentPlusPlus, LeastSquares, PreconditionedDescent
from icllab.algorithms.descent import per_layer
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt

DIM, LENGTH, LAYERS = 3, 5, 3
SHAPE = {"layers": LAYERS, "dim": DIM, "normalised": True, "half": True}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def prompt(getkey):
    return RegressionPrompt(
        x=jax.random.normal(getkey(), (LENGTH + 1, DIM)), y=jax.random.normal(getkey(), (LENGTH + 1,))
    )


def prefix_by_prefix(prompt, step, normalised=True, half=True):
    """Each prefix by itself: ``step(layer, w, gradient)`` with the gradient of the objective as it is written."""
    answers = []
    for i in range(prompt.positions):
        x, y, query = (np.asarray(part) for part in (prompt.x[:i], prompt.y[:i], prompt.x[i]))
        w = np.zeros(DIM)
        for layer in range(LAYERS):
            gradient = (1 if half else 2) / (max(i, 1) if normalised else 1) * x.T @ (x @ w - y)
            w = step(layer, w, gradient)
        answers.append(query @ w)
    return np.array(answers)


@pytest.mark.parametrize(("normalised", "half"), [(True, True), (False, True), (True, False)])
def test_gradient_descent_is_its_definition(normalised, half, prompt):
    shape = SHAPE | {"normalised": normalised, "half": half}
    rates = np.array([0.3, 0.1, 0.2]) / (1 if normalised else LENGTH)
    wanted = prefix_by_prefix(prompt, lambda layer, w, g: w - rates[layer] * g, normalised, half)
    np.testing.assert_allclose(GradientDescent(rates, **shape)(prompt), wanted, rtol=1e-12, atol=1e-13)
    wanted = prefix_by_prefix(prompt, lambda layer, w, g: w - rates[1] * g, normalised, half)
    np.testing.assert_allclose(GradientDescent(rates[1], **shape)(prompt), wanted, rtol=1e-12, atol=1e-13)


def test_a_preconditioner_multiplies_the_gradient_and_need_not_be_symmetric(prompt, getkey):
    a = 0.3 * np.asarray(jax.random.normal(getkey(), (LAYERS, DIM, DIM)))
    wanted = prefix_by_prefix(prompt, lambda layer, w, g: w - a[layer] @ g)
    np.testing.assert_allclose(PreconditionedDescent(a, **SHAPE)(prompt), wanted, rtol=1e-12, atol=1e-13)
    wanted = prefix_by_prefix(prompt, lambda layer, w, g: w - a[0] @ g)
    np.testing.assert_allclose(PreconditionedDescent(a[0], **SHAPE)(prompt), wanted, rtol=1e-12, atol=1e-13)
    multiple = PreconditionedDescent(0.2 * jnp.eye(DIM), **SHAPE)
    np.testing.assert_allclose(multiple(prompt), GradientDescent(0.2, **SHAPE)(prompt), rtol=1e-13, atol=1e-14)


def test_gd_plus_plus_steps_on_inputs_that_it_changes(prompt, getkey):
    """Labels and inputs by hand: a step on the residuals of the current inputs, which contract at the same time."""
    a, b = 0.3 * jax.random.normal(getkey(), (2, LAYERS, DIM, DIM))
    found = GradientDescentPlusPlus(a, b, **SHAPE)(prompt)
    for i in range(1, prompt.positions):
        inputs, left = np.asarray(prompt.x[: i + 1]), np.append(prompt.y[:i], 0.0)
        for layer in range(LAYERS):
            moved = np.asarray(a[layer]) @ (inputs[:i].T @ left[:i]) / i
            covariance = inputs[:i].T @ inputs[:i] / i
            left = left - inputs @ moved
            inputs = inputs - inputs @ (np.asarray(a[layer]) @ covariance @ np.asarray(b[layer]).T)
        np.testing.assert_allclose(found[i], -left[i], rtol=1e-11)


def test_gd_plus_plus_without_contractions_is_preconditioned_descent(prompt, getkey):
    a = 0.3 * jax.random.normal(getkey(), (LAYERS, DIM, DIM))
    plain = PreconditionedDescent(a, **SHAPE)(prompt)
    still = GradientDescentPlusPlus(a, jnp.zeros_like(a), **SHAPE)
    np.testing.assert_allclose(still(prompt), plain, rtol=1e-13, atol=1e-14)
    last = eqx.tree_at(lambda p: p.contraction, still, still.contraction.at[-1].set(3.0))
    np.testing.assert_array_equal(last(prompt), still(prompt))
    scalar = GradientDescentPlusPlus.scalar(0.2, [0.1, 0.3, 0.0], **SHAPE)
    assert scalar.preconditioner.shape == (DIM, DIM)
    assert scalar.contraction.shape == (LAYERS, DIM, DIM)
    assert float(scalar.contraction[1, 2, 2]) == 0.3


def test_many_steps_are_least_squares(prompt):
    """Without division the largest step that converges is 2 / lambda_max; here all prefixes are below it."""
    many = GradientDescent(0.05, layers=20000, dim=DIM, normalised=False, half=True)
    off = jnp.abs(many(prompt) - LeastSquares()(prompt))
    fewer = GradientDescent(0.05, layers=200, dim=DIM, normalised=False, half=True)
    before = jnp.abs(fewer(prompt) - LeastSquares()(prompt))
    assert float(jnp.max(off)) < 1e-2 * float(jnp.max(before)) + 1e-10


def test_parameters_are_leaves_and_sizes_are_not():
    leaves = jax.tree.leaves(GradientDescent(jnp.array([0.1, 0.2, 0.3]), **SHAPE))
    assert [leaf.shape for leaf in leaves] == [(LAYERS,)]
    np.testing.assert_array_equal(per_layer(jnp.array(0.3), 2, 0, float), [0.3, 0.3])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: GradientDescent(jnp.ones(2), **SHAPE),
            r"rate: expected one number, or one for each layer: shape \(\)",
        ),
        (lambda: GradientDescent(0.1, **(SHAPE | {"layers": 0})), "layers: expected an integer of at least 1, got 0"),
        (
            lambda: PreconditionedDescent(jnp.ones((2, 2)), **SHAPE),
            r"preconditioner: expected one matrix \[dim, dim\], or one for each layer: shape \(3, 3\)",
        ),
        (lambda: GradientDescentPlusPlus(jnp.eye(3), jnp.ones((2, 3, 3)), **SHAPE), "contraction: expected one matrix"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_a_prompt_of_another_dimension_is_refused(prompt):
    with pytest.raises(InputError, match="prompt: expected inputs of dimension 2, got 3"):
        GradientDescent(0.1, **(SHAPE | {"dim": 2}))(prompt)
