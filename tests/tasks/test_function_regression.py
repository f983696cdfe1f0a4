"""The labels have the covariance of their inputs, and the best predictor is the posterior mean."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import prompt_of

from icllab.algorithms import GaussianProcess, RepairedProcess, bayes_optimal
from icllab.core.errors import InputError
from icllab.core.kernels import arc_cosine
from icllab.tasks import FunctionRegression, GaussianInputs, SphereInputs

SAMPLES = 8_000
LAWS = {
    "linear": {"kernel": "linear", "temperature": 0.5, "noise_variance": 0.2},
    "exponential": {"kernel": "exponential", "temperature": 0.5, "noise_variance": 0.0},
    "arc_cosine": {"kernel": arc_cosine, "temperature": 1.0, "noise_variance": 0.1},
    "repaired": {"kernel": "relu", "temperature": 1.0, "noise_variance": 0.1, "repair": True},
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def task_of(name):
    return FunctionRegression(3, 4, SphereInputs(1.0), **LAWS[name])


@eqx.filter_jit
def sampled(task, key):
    return task.sample(key=key)


@eqx.filter_jit
def drawn(task, key):
    """Prompts, and the covariance of the labels of each."""

    def one(key):
        prompt = task.sample(key=key)
        return prompt, task.covariance(prompt.x) + task.noise_variance * jnp.eye(5)

    return jax.vmap(one)(jax.random.split(key, SAMPLES))


def assert_mean(samples, expected, largest_error):
    """Every entry's mean within 4.5 standard errors of what is expected, and these small."""
    samples = np.asarray(samples, dtype=float)
    error = samples.std(0, ddof=1) / math.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(0) - expected) <= 4.5 * error)
    assert np.max(error) <= largest_error


@pytest.mark.parametrize("name", LAWS)
def test_labels_divided_by_the_root_of_their_covariance_are_white(name, getkey):
    prompts, covariances = drawn(task_of(name), getkey())
    white = np.linalg.solve(np.linalg.cholesky(covariances), np.asarray(prompts.y)[..., None])[..., 0]
    assert_mean(white, 0.0, 0.02)
    assert_mean(white[:, :, None] * white[:, None, :], np.eye(5), 0.03)


def test_a_repaired_covariance_is_positive_and_the_plain_one_is_not(getkey):
    task = FunctionRegression(2, 30, SphereInputs(1.0), **LAWS["repaired"])
    x = np.asarray(sampled(task, getkey()).x)
    plain = np.linalg.eigvalsh(np.maximum(x @ x.T, 0))
    assert plain[0] < -0.1
    repaired = np.linalg.eigvalsh(eqx.filter_jit(task.covariance)(jnp.asarray(x)))
    np.testing.assert_allclose(repaired, np.sort(np.abs(plain)), atol=1e-12)


def test_with_the_linear_kernel_and_without_noise_labels_are_linear(getkey):
    law = LAWS["linear"] | {"noise_variance": 0.0}
    prompt = sampled(FunctionRegression(3, 8, GaussianInputs(1.0), **law), getkey())
    x, y = np.asarray(prompt.x), np.asarray(prompt.y)
    w = np.linalg.lstsq(x[:3], y[:3])[0]
    # The covariance is singular: what rounding adds to it has a root of its own.
    np.testing.assert_allclose(x @ w, y, atol=1e-5)


@pytest.mark.parametrize("name", ["exponential", "arc_cosine", "repaired"])
def test_the_error_of_the_best_predictor_is_orthogonal_to_what_was_seen(name, getkey):
    """E (y - f) y_j = 0 for the labels seen, and E (y - f)^2 is the mean of the posterior variance."""
    task = task_of(name)
    best = bayes_optimal(task)
    assert type(best) is (RepairedProcess if name == "repaired" else GaussianProcess)
    prompts, covariances = drawn(task, getkey())
    y = np.asarray(prompts.y)
    left = y[:, -1] - np.asarray(jax.jit(jax.vmap(best))(prompts))[:, -1]
    assert_mean(left[:, None] * y[:, :-1], 0.0, 0.1)
    variance = 1 / np.linalg.inv(covariances)[:, -1, -1]
    assert_mean(left**2 - variance, 0.0, 0.1)


def test_inputs_lie_on_the_sphere(getkey):
    law = SphereInputs(2.0)
    draw = jax.jit(jax.vmap(lambda key: law.sample(3, key=key)))
    x = np.asarray(draw(jax.random.split(getkey(), SAMPLES)))
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 2.0, rtol=1e-12)
    assert_mean(x, 0.0, 0.02)
    assert_mean(x[:, :, None] * x[:, None, :], law.second_moment(3), 0.02)
    # Uniform: the height of a point on the sphere in three dimensions is uniform on (-2, 2).
    assert_mean(x[:, 0] ** 4, 16 / 5, 0.06)


def test_temperature_and_noise_are_leaves(getkey):
    key = getkey()
    gradient = jax.jit(jax.grad(lambda task: jnp.sum(task.sample(key=key).y ** 2)))(task_of("linear"))
    assert all(np.all(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradient))


def test_the_loss_of_the_last_position_only():
    task, prompt = task_of("exponential"), prompt_of(0, positions=5, dim=3)
    every = np.asarray(task.loss(jnp.zeros(5), prompt))
    np.testing.assert_array_equal(every, np.asarray(prompt.y) ** 2)
    np.testing.assert_array_equal(task.loss(jnp.zeros(1), prompt), every[-1:])
    with pytest.raises(InputError, match=r"prediction: expected \(5,\), got \(3,\)"):
        task.loss(jnp.zeros(3), prompt)
