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
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, SphereInputs, UniformInputs, WeightPool

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
    pool = WeightPool.drawn(GaussianWeights(1.0), 4, 3, key=getkey())
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
    with pytest.raises(InputError, match="prediction: expected 6 positions, or 1 for the last, got 4"):
        task.loss(jnp.zeros(4), p)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": -1.0}, "alpha: expected a finite number > 0, got -1.0"),
        ({"alpha": math.nan}, "alpha: expected"),
        ({"alpha": math.inf}, "alpha: expected"),
        ({"kappa": 0.0}, "kappa: expected a number > 0, got 0.0"),
        ({"rho": -0.1}, "rho: expected a finite number >= 0, got -0.1"),
        ({"dim": 0}, "dim: expected an integer of at least 1, got 0"),
    ],
)
def test_bad_parameters_are_named(change, message, getkey):
    with pytest.raises(InputError, match=message):
        LinearRegression.from_scaling(**{"dim": 4, "alpha": 1.0, "kappa": 1.0, "rho": 0.1} | change, key=getkey())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": "1"}, "alpha: expected a finite number > 0, got '1'"),
        ({"kappa": "inf"}, "kappa: expected a number > 0, got 'inf'"),
        ({"rho": "1"}, "rho: expected a finite number >= 0, got '1'"),
        ({"rho": True}, "rho: expected a finite number >= 0, got True"),
        ({"key": 0}, r"key: expected one random key of JAX, got 0; jax.random.key\(0\) makes one of a seed"),
    ],
)
def test_parameters_of_another_type_are_named(change, message):
    parameters = {"dim": 4, "alpha": 1.0, "kappa": math.inf, "rho": 0.1, "key": jax.random.key(0)}
    with pytest.raises(InputError, match=f"^{message}$"):
        unwrap(LinearRegression.from_scaling.__func__)(LinearRegression, **parameters | change)


def test_numbers_of_an_array_are_numbers():
    parameters = {"dim": 4, "alpha": np.float32(1), "kappa": jnp.asarray(2.0), "rho": np.asarray(0.1)}
    task = unwrap(LinearRegression.from_scaling.__func__)(LinearRegression, **parameters, key=jax.random.key(0))
    assert (task.length, task.weights.weights.shape) == (4, (8, 4))


@pytest.mark.parametrize("law", [GaussianInputs, GaussianWeights, UniformInputs, SphereInputs])
@pytest.mark.parametrize(
    ("value", "came"),
    [("1", "'1'"), (np.array(1j), "'numbers of type complex64'"), (True, "'numbers of type bool'")],
    ids=["text", "complex", "truth"],
)
def test_a_law_of_no_real_numbers_is_refused(law, value, came):
    with pytest.raises(InputError, match=f"^(covariance|half_width|radius): expected real numbers, got {came}$"):
        law(value)


@pytest.mark.parametrize("law", [UniformInputs, SphereInputs])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, np.ones((2, 3)), np.ones(1)])
def test_a_width_that_is_none_is_refused(law, value):
    with pytest.raises(InputError, match=r"^(half_width|radius): expected a finite number >= 0, got"):
        law(value)


@pytest.mark.parametrize(("size", "dim", "message"), [(0, 4, "size"), (-1, 4, "size"), (3, 0, "dim")])
def test_a_pool_of_nothing_is_refused(size, dim, message, getkey):
    with pytest.raises(InputError, match=f"^{message}: expected an integer of at least 1, got {min(size, dim)}"):
        WeightPool.drawn(GaussianWeights(1.0), size, dim, key=getkey())


@pytest.mark.parametrize(
    ("inputs", "weights", "message"),
    [
        (GaussianWeights(1.0), GaussianWeights(1.0), "inputs: .* such as GaussianInputs.*, got 'GaussianWeights'"),
        (GaussianInputs(1.0), GaussianInputs(1.0), "weights: .* such as GaussianWeights.*, got 'GaussianInputs'"),
        (1.0, GaussianWeights(1.0), "inputs: .* such as GaussianInputs.*, got 'float'"),
        (GaussianInputs(1.0), GaussianWeights, "weights: .* such as GaussianWeights.*, got 'the class GaussianWeights"),
        (
            GaussianInputs(1.0),
            WeightPool(jnp.ones((5, 3)), GaussianWeights(1.0)),
            r"weights: expected a pool of 2 dimensions, got 'shape \(5, 3\)'",
        ),
    ],
    ids=["weights for inputs", "inputs for weights", "a number", "a class", "a pool of another dimension"],
)
def test_what_is_no_distribution_of_these_vectors_is_refused(inputs, weights, message):
    right = LinearRegression(2, 3, GaussianInputs(1.0), GaussianWeights(1.0), 0.1)
    with pytest.raises(InputError, match=f"^{message}"):
        eqx.tree_at(lambda task: (task.inputs, task.weights), right, (inputs, weights)).__check_init__()


def test_a_complex_noise_is_refused():
    with pytest.raises(InputError, match=r"^noise_variance: expected real numbers, got 'numbers of type complex64'"):
        LinearRegression(2, 3, GaussianInputs(1.0), GaussianWeights(1.0), 0.1j)


@pytest.mark.parametrize("variance", [-0.1, math.nan, math.inf, np.linspace(0, 100, 9)])
def test_a_variance_that_is_none_is_refused(variance):
    with pytest.raises(InputError, match="noise_variance: expected a finite number >= 0, got"):
        LinearRegression(2, 3, GaussianInputs(1.0), GaussianWeights(1.0), variance)


def test_unknown_convention_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'raventos'"):
        LinearRegression.convention("raventoss", dim=2, length=2)
