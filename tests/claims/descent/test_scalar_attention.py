"""The attention of step sizes and a temperature is the construction, and its training ends in a minimum."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import constructions
from icllab.algorithms import FunctionalDescent
from icllab.claims.descent import _scalar_attention as scalar_attention
from icllab.tasks import FunctionRegression, SphereInputs


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def prompts(key, count=64, kernel="exponential"):
    task = FunctionRegression(3, 6, SphereInputs(1.0), kernel=kernel, temperature=1.0, noise_variance=0.0)
    return jax.jit(jax.vmap(lambda k: task.sample(key=k)))(jax.random.split(key, count))


ALL = [pytest.param(name, marks=[] if name == "softmax" else pytest.mark.slow) for name in scalar_attention.WEIGHTINGS]


@pytest.mark.parametrize("name", ALL)
def test_it_is_the_construction_of_functional_descent(name, getkey):
    drawn = prompts(getkey(), 3)
    model = scalar_attention.started(name, True, 2, drawn)
    model = eqx.tree_at(lambda m: m.log_temperature, model, jnp.asarray(0.4))
    rates = model.unit * model.rates
    law = {"kernel": name, "temperature": jnp.exp(0.4), "noise_variance": 0.0}
    algorithm = FunctionalDescent(rates, **law, layers=2, dim=3, normalised=False)
    attention = constructions.gradient_descent(algorithm, answers="last")
    np.testing.assert_allclose(jax.jit(jax.vmap(model))(drawn), jax.jit(jax.vmap(attention))(drawn), rtol=1e-12)


def test_without_a_trained_temperature_it_is_one(getkey):
    drawn = prompts(getkey(), 3)
    model = scalar_attention.started("exponential", False, 1, drawn)
    warmer = eqx.tree_at(lambda m: m.log_temperature, model, jnp.asarray(0.4))
    assert float(warmer.temperature) == 1
    np.testing.assert_array_equal(jax.vmap(model)(drawn), jax.vmap(warmer)(drawn))


def test_one_step_is_trained_to_its_least_squares_solution(getkey):
    """The answer is linear in the rate of a single layer."""
    drawn = prompts(getkey(), kernel="linear")
    start = scalar_attention.started("softmax", False, 1, drawn)
    one = eqx.tree_at(lambda m: (m.rates, m.unit), start, (jnp.ones(1), jnp.ones(())))
    answers, y = np.asarray(jax.vmap(one)(drawn))[:, 0], np.asarray(drawn.y[:, -1])
    found = scalar_attention.trained(start, drawn)
    np.testing.assert_allclose(found.unit * found.rates, [answers @ y / (answers @ answers)], rtol=1e-6)


@pytest.mark.slow
def test_training_ends_where_the_gradient_vanishes(getkey):
    drawn = prompts(getkey())
    found = scalar_attention.trained(scalar_attention.started("softmax", True, 2, drawn), drawn)

    def loss(numbers):
        model = eqx.tree_at(lambda m: (m.rates, m.log_temperature), found, (numbers[:2], numbers[2]))
        return jnp.mean(scalar_attention.squared_errors(model, drawn))

    at = jnp.append(found.rates, found.log_temperature)
    value, gradient = jax.value_and_grad(loss)(at)
    start = scalar_attention.started("softmax", True, 2, drawn)
    assert float(value) < float(jnp.mean(scalar_attention.squared_errors(start, drawn)))
    assert float(jnp.max(jnp.abs(gradient * at))) < 1e-5 * float(value)
