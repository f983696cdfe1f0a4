"""The distribution of a prompt is the distribution its fields say."""

import dataclasses
import math
from inspect import unwrap  # without the types that are checked in tests

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, UniformInputs, WeightPool

SAMPLES = 20_000


@eqx.filter_jit
def drawn(task, key, count):
    return jax.vmap(lambda k: task.sample(key=k))(jax.random.split(key, count))


def prompts(task, key, count=SAMPLES):
    """The inputs and labels of prompts, as NumPy's arrays."""
    return jax.tree.map(np.asarray, drawn(task, key, count))


@eqx.filter_jit
def _samples(law, key):
    return jax.vmap(lambda k: law.sample(3, key=k))(jax.random.split(key, SAMPLES))


def samples(law, key):
    """Inputs or task vectors of three entries."""
    return np.asarray(_samples(law, key))


def assert_mean(samples, expected, sigmas=4.5, largest_relative_error=0.05):
    """Every entry's mean within ``sigmas`` standard errors of what is expected, and the error small."""
    samples = np.asarray(samples, dtype=float)
    error = samples.std(0, ddof=1) / math.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(0) - expected) <= sigmas * error)
    assert error.max() <= largest_relative_error * max(1e-12, np.abs(expected).max())


COVARIANCES = {
    "scalar": np.float32(0.25),
    "diagonal": np.float32([0.5, 1.0, 2.0]),
    "full": np.float32([[1.0, 0.3, 0.0], [0.3, 2.0, -0.5], [0.0, -0.5, 0.7]]),
}


def as_matrix(covariance):
    return np.diag(np.broadcast_to(covariance, (3,))) if covariance.ndim < 2 else np.asarray(covariance)


@pytest.mark.parametrize("shape", COVARIANCES)
def test_inputs_have_the_covariance_they_are_given(shape, getkey):
    law = GaussianInputs(COVARIANCES[shape])
    x = samples(law, getkey())
    assert_mean(x[:, :, None] * x[:, None, :], as_matrix(COVARIANCES[shape]))
    np.testing.assert_allclose(law.second_moment(3), as_matrix(COVARIANCES[shape]))


def test_uniform_inputs(getkey):
    law = UniformInputs(2.0)
    x = samples(law, getkey())
    assert np.abs(x).max() <= 2.0
    assert_mean(x[:, :, None] * x[:, None, :], law.second_moment(3))
    # The fourth moment tells it from a Gaussian of the same variance: r^4/5, not 3 (r^2/3)^2.
    assert_mean(x**4, np.full(3, 16 / 5))


@pytest.mark.parametrize("shape", COVARIANCES)
def test_labels_are_linear_plus_noise_of_the_given_variance(shape, getkey):
    task = LinearRegression(3, 4, GaussianInputs(COVARIANCES[shape]), GaussianWeights(1.0), 0.3)
    p = prompts(task, getkey())
    # E y^2 = tr(Sigma C) + rho at every position, the query's own label included.
    assert_mean(p.y**2, np.full(5, np.trace(as_matrix(COVARIANCES[shape])) + 0.3))
    # One task vector for the whole prompt: E y_i y_j (x_i . x_j) = E (x_i . x_j)^2 = tr Sigma^2 for C = I.
    together = p.y[:, 0] * p.y[:, 4] * np.sum(p.x[:, 0] * p.x[:, 4], -1)
    assert_mean(
        together[:, None],
        np.trace(as_matrix(COVARIANCES[shape]) @ as_matrix(COVARIANCES[shape])),
        largest_relative_error=0.2,
    )


def test_task_vectors_have_the_covariance_they_are_given(getkey):
    law = GaussianWeights(COVARIANCES["full"])
    w = samples(law, getkey())
    assert_mean(w[:, :, None] * w[:, None, :], as_matrix(COVARIANCES["full"]))


def test_a_pool_is_drawn_from_uniformly(getkey):
    pool = WeightPool.init(GaussianWeights(1.0), 4, 3, key=getkey())
    w, held = samples(pool, getkey()), np.asarray(pool.weights)
    chosen = np.argmin(np.sum((w[:, None] - held) ** 2, -1), axis=1)
    np.testing.assert_array_equal(w, held[chosen])
    assert_mean(np.eye(4)[chosen], np.full(4, 0.25))


def test_without_noise_the_labels_determine_the_task_vector(getkey):
    with jax.enable_x64(True):
        task = LinearRegression.convention("garg", dim=3, length=6)
        p = jax.tree.map(lambda leaf: leaf[0], prompts(task, getkey(), 1))
        w = np.linalg.solve(p.x[:3], p.y[:3])
        np.testing.assert_allclose(p.x @ w, p.y, atol=1e-10)


def test_from_scaling_is_the_proportional_convention(getkey):
    task = LinearRegression.from_scaling(dim=8, alpha=2.5, kappa=1.5, rho=0.1, key=getkey())
    assert (task.dim, task.length) == (8, 20)
    assert task.weights.weights.shape == (12, 8)
    assert_mean(np.sum(prompts(task, getkey(), 4000).x ** 2, -1), np.ones(21))
    assert isinstance(task.fresh().weights, GaussianWeights)
    infinite = LinearRegression.from_scaling(dim=8, alpha=2.5, kappa=math.inf, rho=0.1, key=getkey())
    assert isinstance(infinite.weights, GaussianWeights)


def test_fresh_changes_the_task_law_alone(getkey):
    task = LinearRegression.from_scaling(dim=4, alpha=1, kappa=1, rho=0.1, key=getkey())
    fresh = task.fresh()
    for field in dataclasses.fields(task):
        if field.name != "weights":
            assert eqx.tree_equal(getattr(task, field.name), getattr(fresh, field.name))


@pytest.mark.parametrize(
    ("name", "variance_of_x", "noise"),
    [("raventos", 1, 0.25), ("garg", 1, 0), ("vonoswald", 1 / 3, 0), ("ahn", 1, 0), ("timaeus", 1, 0.125)],
)
def test_conventions_translate_the_papers(name, variance_of_x, noise, getkey):
    task = LinearRegression.convention(name, dim=3, length=2)
    p = prompts(task, getkey())
    assert_mean(p.x**2, np.full((3, 3), variance_of_x))
    assert_mean(p.y**2, np.full(3, 3 * variance_of_x + noise))


def test_noise_and_covariances_are_leaves(getkey):
    task = LinearRegression(3, 4, GaussianInputs(COVARIANCES["diagonal"]), GaussianWeights(1.0), 0.3)
    gradient = jax.jit(jax.grad(lambda t, key: jnp.sum(t.sample(key=key).y ** 2)))(task, getkey())
    assert all(np.all(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradient))


def test_loss_of_the_last_position_only(getkey):
    task = LinearRegression.convention("garg", dim=3, length=5)
    rng = np.random.default_rng(0)
    p = RegressionPrompt(*(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((6, 3), 6)))
    every, last = jax.jit(lambda p: (task.loss(jnp.zeros(6), p), task.loss(jnp.zeros(1), p)))(p)
    np.testing.assert_array_equal(every, np.asarray(p.y) ** 2)
    np.testing.assert_array_equal(last, np.asarray(every)[-1:])
    with pytest.raises(InputError, match=r"prediction: expected \(6,\), got \(4,\)"):
        task.loss(jnp.zeros(4), p)


def test_numbers_of_an_array_are_numbers():
    parameters = {"dim": 4, "alpha": np.float32(1), "kappa": jnp.asarray(2.0), "rho": np.asarray(0.1)}
    task = unwrap(LinearRegression.from_scaling.__func__)(LinearRegression, **parameters, key=jax.random.key(0))
    assert (task.length, task.weights.weights.shape) == (4, (8, 4))
