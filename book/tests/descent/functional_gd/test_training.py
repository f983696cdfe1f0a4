"""The training of step sizes and a temperature ends in a minimum."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclbook.claims.descent.functional_gd.training import fit_steps, initial_attention, squared_errors
from icllab.tasks import FunctionRegression, SphereInputs


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def prompts(key, count=64, kernel="exponential"):
    task = FunctionRegression(3, 6, SphereInputs(1.0), kernel=kernel, temperature=1.0, noise_variance=0.0)
    return jax.jit(jax.vmap(lambda k: task.sample(key=k)))(jax.random.split(key, count))


def test_the_first_step_starts_at_one_over_the_largest_eigenvalue(getkey):
    drawn = prompts(getkey(), kernel="linear")
    start = initial_attention("linear", layers=3, train_temperature=False, prompts=drawn)
    largest = [np.linalg.eigvalsh(x[:-1] @ x[:-1].T).max() for x in np.asarray(drawn.x[:32])]
    rates = np.geomspace(1.0, 10.0, 3) / np.mean(largest)
    np.testing.assert_allclose(start.unit * start.rates, rates, rtol=1e-10)


def test_one_step_is_trained_to_its_least_squares_solution(getkey):
    """The answer is linear in the rate of a single layer."""
    drawn = prompts(getkey(), kernel="linear")
    start = initial_attention("softmax", layers=1, train_temperature=False, prompts=drawn)
    one = eqx.tree_at(lambda m: (m.rates, m.unit), start, (jnp.ones(1), jnp.ones(())))
    answers, y = np.asarray(jax.vmap(one)(drawn))[:, 0], np.asarray(drawn.y[:, -1])
    found = fit_steps(start, drawn)
    np.testing.assert_allclose(found.unit * found.rates, [answers @ y / (answers @ answers)], rtol=1e-6)
    assert float(found.temperature) == 1


@pytest.mark.slow
def test_training_ends_where_the_gradient_vanishes(getkey):
    drawn = prompts(getkey())
    start = initial_attention("softmax", layers=2, train_temperature=True, prompts=drawn)
    found = fit_steps(start, drawn)

    def loss(numbers):
        model = eqx.tree_at(lambda m: (m.rates, m.log_temperature), found, (numbers[:2], numbers[2]))
        return jnp.mean(squared_errors(model, drawn))

    at = jnp.append(found.rates, found.log_temperature)
    value, gradient = jax.value_and_grad(loss)(at)
    assert float(value) < float(jnp.mean(squared_errors(start, drawn)))
    assert float(jnp.max(jnp.abs(gradient * at))) < 1e-5 * float(value)
