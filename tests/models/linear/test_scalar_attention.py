"""The attention of step sizes and a temperature is the construction of gradient descent on functions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import constructions
from icllab.algorithms import FunctionalDescent
from icllab.core.errors import InputError
from icllab.core.kernels import NAMES
from icllab.models import ScalarAttention
from icllab.tasks import FunctionRegression, SphereInputs

ALL = [pytest.param(name, marks=[] if name == "softmax" else pytest.mark.slow) for name in NAMES]
RATES = np.array([0.3, 0.8])


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def prompts(key, count=3):
    task = FunctionRegression(3, 6, SphereInputs(1.0), kernel="exponential", temperature=1.0, noise_variance=0.0)
    return jax.jit(jax.vmap(lambda k: task.sample(key=k)))(jax.random.split(key, count))


@pytest.mark.parametrize("name", ALL)
def test_it_is_the_construction_of_functional_descent(name, getkey):
    drawn = prompts(getkey())
    model = ScalarAttention.from_rates(name, jnp.asarray(RATES), unit=0.25, temperature=1.0)
    model = eqx.tree_at(lambda m: m.log_temperature, model, jnp.asarray(0.4))
    law = {"kernel": name, "temperature": jnp.exp(0.4), "noise_variance": 0.0}
    algorithm = FunctionalDescent(0.25 * RATES, **law, layers=2, dim=3, normalised=False)
    attention = constructions.gradient_descent(algorithm, answers="last")
    np.testing.assert_allclose(jax.jit(jax.vmap(model))(drawn), jax.jit(jax.vmap(attention))(drawn), rtol=1e-12)


def test_without_a_temperature_it_is_one_and_has_no_gradient(getkey):
    drawn = prompts(getkey())
    model = ScalarAttention.from_rates("exponential", jnp.asarray(RATES[:1]), temperature=None)
    warmer = eqx.tree_at(lambda m: m.log_temperature, model, jnp.asarray(0.4))
    assert float(warmer.temperature) == 1
    np.testing.assert_array_equal(jax.vmap(model)(drawn), jax.vmap(warmer)(drawn))
    gradient = jax.grad(lambda m: jnp.sum(jax.vmap(m)(drawn)), allow_int=True)(warmer)
    assert float(gradient.log_temperature) == 0


def test_its_temperature_and_its_activations_have_names(getkey):
    model = ScalarAttention.from_rates("softmax", jnp.asarray(RATES), temperature=2.5)
    np.testing.assert_allclose(model.temperature, 2.5, rtol=1e-14)
    prompt = jax.tree.map(lambda leaf: leaf[0], prompts(getkey()))
    trace = model.trace(prompt)
    assert list(trace.activations) == ["pattern", "layer0", "layer1", "prediction"]
    np.testing.assert_allclose(trace.activations["pattern"].sum(axis=0), 1, rtol=1e-12)
    np.testing.assert_array_equal(trace.prediction, -trace.activations["layer1"][-1:])


def test_an_unknown_weighting_is_refused():
    with pytest.raises(InputError, match="weighting: expected linear, relu, exponential, softmax, got 'softmx'"):
        ScalarAttention.from_rates("softmx", jnp.asarray(RATES))
