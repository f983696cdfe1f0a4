"""Random networks, trees, sparse weights, shifted queries: moments against exact ones, of no code that samples."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

import icllab as icl
from icllab.algorithms import GradientDescent, bayes_optimal
from icllab.core.errors import InputError
from icllab.diagnostics import accuracy, per_length
from icllab.tasks import (
    Curriculum,
    GaussianInputs,
    GaussianWeights,
    IntegratedRegression,
    LinearRegression,
    NetworkRegression,
    RandomFunctionRegression,
    ShiftedQuery,
    SignLabels,
    SparseWeights,
    TreeRegression,
)

KEY, MANY = jax.random.key(0), 100_000


@eqx.filter_jit
def drawn(task, count=MANY):
    return task.sample_many(count, key=KEY)


def sampled(task, count=MANY):
    """x, y of many prompts in float64."""
    prompts = drawn(task, count)
    return np.asarray(prompts.x, float), np.asarray(prompts.y, float)


def linear(inputs=None, weights=None, dim=5, length=4, noise=0.0):
    return LinearRegression(dim, length, inputs or GaussianInputs(1.0), weights or GaussianWeights(1.0), noise)


def assert_mean(values, expected):
    """The mean over prompts is within four standard errors, and these are small."""
    error = values.std() / np.sqrt(len(values))
    assert error < 0.05 * max(1.0, abs(expected)), error
    assert abs(values.mean() - expected) <= 4 * error


def test_sparse_weights_have_so_many_nonzero_coordinates_uniformly():
    """By symmetry each coordinate is drawn with probability s/d, a pair with s(s - 1)/(d(d - 1))."""
    weights = SparseWeights(3, variance=4.0)
    w = np.asarray(jax.jit(jax.vmap(lambda key: weights.sample(7, key=key)))(jax.random.split(KEY, 20_000)))
    np.testing.assert_array_equal((w != 0).sum(axis=1), 3)
    for j in range(7):
        assert_mean((w[:, j] != 0).astype(float), 3 / 7)
    assert_mean(((w[:, 0] != 0) & (w[:, 6] != 0)).astype(float), 3 * 2 / (7 * 6))
    assert_mean(w[w != 0] ** 2, 4.0)


def test_moments_of_sparse_regression():
    """E y^2 = s and E y^4 = 3 E|w|^4 = 3 (s^2 + 2s) for normal inputs."""
    x, y = sampled(linear(weights=SparseWeights(2)))
    assert_mean(y[:, 0] ** 2, 2.0)
    assert_mean(y[:, 1] ** 4, 3 * 8.0)
    assert_mean(y[:, 0] * y[:, 1] * np.sum(x[:, 0] * x[:, 1], axis=1), 2.0)


def test_a_curriculum_draws_the_nonzero_coordinates_among_the_active_ones():
    task = Curriculum(linear(weights=SparseWeights(2), dim=6), dim=2, positions=3, interval=10)
    assert_mean(sampled(task.at_step(jnp.int32(0)), 20_000)[1][:, 0] ** 2, 2.0)
    assert_mean(sampled(task, 20_000)[1][:, 0] ** 2, 2.0)
    candidates = SparseWeights(3, 1.0, jnp.int32(2))  # fewer than s
    w = np.asarray(jax.jit(jax.vmap(lambda key: candidates.sample(6, key=key)))(jax.random.split(KEY, 50)))
    np.testing.assert_array_equal(w != 0, np.broadcast_to(np.arange(6) < 2, w.shape))


@pytest.mark.parametrize("hidden", [1, 8])
def test_moments_of_networks(hidden):
    """E[y^2 | x] = |x|^2, and E[y y' | x, x'] is the arc-cosine kernel of degree 1: neither depends on the width."""
    x, y = sampled(NetworkRegression(3, 1, hidden=hidden))
    norms = np.linalg.norm(x, axis=2)
    angle = np.arccos(np.sum(x[:, 0] * x[:, 1], axis=1) / norms.prod(axis=1))
    kernel = norms.prod(axis=1) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi
    assert_mean(y[:, 0] ** 2 - norms[:, 0] ** 2, 0.0)
    assert_mean(y[:, 0] * y[:, 1] - kernel, 0.0)
    assert_mean(y[:, 0], 0.0)


def test_moments_of_trees():
    """Var y = 1, and E[y y' | x, x'] = P(same leaf) = sum over levels: both signs agree with probability m/d each."""
    dim, depth = 3, 2
    x, y = sampled(TreeRegression(dim, 1, depth=depth))
    agree = np.sum((x[:, 0] > 0) == (x[:, 1] > 0), axis=1)
    assert_mean(y[:, 0] ** 2, 1.0)
    for m in range(dim + 1):
        products = (y[:, 0] * y[:, 1])[agree == m]
        assert_mean(products, (m / dim) ** depth)


def test_a_tree_has_a_leaf_for_each_answer_and_asks_for_signs_alone():
    """With one function, inputs of equal signs have equal labels; depth 6 in 3 dimensions asks for all signs."""
    function = eqx.filter_jit(jax.vmap(TreeRegression(3, 1, depth=6).function(key=KEY)))
    signs = jnp.asarray(list(itertools.product([-1.0, 1.0], repeat=3)))
    values = np.asarray(function(signs))
    np.testing.assert_array_equal(values, function(3.7 * signs))
    np.testing.assert_array_equal(values[0], function(jnp.zeros((1, 3)))[0])  # 0 is not above 0
    shallow = np.asarray(eqx.filter_jit(jax.vmap(TreeRegression(3, 1, depth=1).function(key=KEY)))(signs))
    assert len(np.unique(shallow)) == 2
    assert len(np.unique(values)) > 4


def test_labels_of_noise_and_of_a_users_own_function():
    class Sine(RandomFunctionRegression):
        def function(self, *, key):
            phase = jax.random.uniform(key, (), maxval=2 * jnp.pi)
            return lambda x: jnp.sin(x[0] + phase)

    x, y = sampled(Sine(2, 1, noise_variance=0.25))
    assert_mean(y[:, 0] ** 2, 0.75)
    assert_mean(y[:, 0] * y[:, 1] - np.cos(x[:, 0, 0] - x[:, 1, 0]) / 2, 0.0)


@pytest.mark.parametrize("n", [0, 1, 3, 5, 6])
def test_a_query_orthogonal_to_its_context(n):
    """Its inner products are rounding; its norm is that of a free query, and 0 once the examples span the space."""
    x, y = sampled(linear(ShiftedQuery(GaussianInputs(1.0), "orthogonal", n), dim=5, length=7), 20_000)
    context, query = x[:, :n], x[:, n]
    assert np.abs(np.einsum("pid,pd->pi", context, query)).max(initial=0) < 2e-4
    if n >= 5:
        np.testing.assert_array_equal(query, 0)
        np.testing.assert_array_equal(y[:, n], 0)
        return
    assert_mean(np.sum(query**2, axis=1), 5.0)
    assert_mean(np.sum(query**2, axis=1) ** 2, 35.0)  # chi-squared with 5 degrees of freedom
    assert_mean(y[:, n] ** 2, 5.0)  # the labels are those of the changed inputs
    assert_mean(np.sum(x[:, n + 1] ** 2, axis=1), 5.0)


def test_a_query_repeated_from_its_context_is_each_example_as_often():
    x, y = sampled(linear(ShiftedQuery(GaussianInputs(1.0), "repeated", 3), length=5))
    equal = np.all(x[:, :3] == x[:, 3:4], axis=2)
    np.testing.assert_array_equal(equal.sum(axis=1), 1)
    for place in range(3):
        assert_mean(equal[:, place].astype(float), 1 / 3)
    np.testing.assert_allclose(y[:, 3], y[:, :3][equal], atol=1e-5)
    first, _ = sampled(linear(ShiftedQuery(GaussianInputs(1.0), "repeated", 0)), 10)
    assert np.all(first[:, 0] != 0)


@pytest.mark.parametrize(("shift", "agreement"), [("random_orthant", 0.5), ("opposite_orthant", 0.0)])
def test_a_context_in_one_orthant(shift, agreement):
    x, _ = sampled(linear(ShiftedQuery(GaussianInputs(1.0), shift), length=3))
    signs = np.sign(x)
    np.testing.assert_array_equal(signs[:, 1:3], np.broadcast_to(signs[:, :1], signs[:, 1:3].shape))
    assert_mean(np.mean(signs[:, 0] == signs[:, 3], axis=1), agreement)
    for position in (0, 3):
        assert_mean(x[:, position, 0], 0.0)
        assert_mean(np.abs(x[:, position, 0]), np.sqrt(2 / np.pi))


def test_position_of_the_query_is_a_leaf():
    """All lengths of the paper's curve are one compiled program; averaging is blind to orthogonal queries."""
    predictor = GradientDescent(1.0, layers=1, dim=5, normalised=True, half=True)
    for n in (2, 4):
        task = linear(ShiftedQuery(GaussianInputs(1.0), "orthogonal", n), length=4)
        loss = per_length(predictor, task, key=KEY, prompts=4096).loss.sel(position=n)
        assert abs(float(loss) - 5) < 0.6  # its prediction is 0, the label's variance 5
    assert jax.tree.structure(linear(ShiftedQuery(GaussianInputs(1.0), "repeated", 1))) == jax.tree.structure(
        linear(ShiftedQuery(GaussianInputs(1.0), "repeated", 2))
    )
    short = drawn(eqx.tree_at(lambda t: t.inputs.examples, task, jnp.int32(9)), 2)
    assert np.all(np.isnan(short.x))


@pytest.mark.parametrize("spectrum", [np.arange(6) < 3, 1 / np.arange(1, 7) ** 2])
def test_a_rotated_covariance_has_the_spectrum_and_trace_d(spectrum):
    covariance = np.asarray(GaussianInputs.rotated(spectrum, key=KEY).covariance, float)
    values = np.sort(np.asarray(spectrum, float))
    np.testing.assert_allclose(np.linalg.eigvalsh(covariance), values * 6 / values.sum(), atol=1e-5)
    assert abs(covariance[0, 1]) > 1e-3
    other = np.asarray(GaussianInputs.rotated(spectrum, key=jax.random.key(1)).covariance)
    assert np.abs(covariance - other).max() > 1e-2


def test_signs_of_labels_and_their_loss():
    """The loss is the cross-entropy of sigmoid(f) with (1 + y) / 2, computed as that."""
    task = SignLabels(linear())
    x, y = sampled(task, 50_000)
    x_inner, y_inner = sampled(task.task, 50_000)
    np.testing.assert_array_equal(x, x_inner)
    np.testing.assert_array_equal(y, np.sign(y_inner))
    assert_mean(y[:, 0], 0.0)
    prompt = task.sample(key=KEY)
    logits = np.linspace(-3, 2, 5)
    probability, target = 1 / (1 + np.exp(-logits)), (1 + np.asarray(prompt.y)) / 2
    entropy = -target * np.log(probability) - (1 - target) * np.log(1 - probability)
    np.testing.assert_allclose(task.loss(jnp.asarray(logits), prompt), entropy, rtol=1e-5)
    np.testing.assert_allclose(task.loss(jnp.asarray(logits[-1:]), prompt), entropy[-1:], rtol=1e-5)
    np.testing.assert_array_equal(task.accuracy(jnp.asarray(logits), prompt), np.sign(logits) == prompt.y)


def test_signs_of_a_curriculum_are_masked_and_trained_on():
    task = SignLabels(Curriculum(linear(), dim=2, positions=3, interval=100))
    start = task.at_step(jnp.int32(0))
    prompt = start.sample(key=KEY)
    losses = start.loss(jnp.zeros(5), prompt)
    np.testing.assert_allclose(losses, [np.log(2)] * 3 + [np.nan] * 2, rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(start.accuracy(jnp.ones(5), prompt)), [False] * 3 + [True] * 2)
    averaging = GradientDescent(0.1, layers=1, dim=5, normalised=True, half=True)
    rates = icl.fit(averaging, task, steps=20, key=KEY, batch=16).members.stacked.rate
    assert np.isfinite(rates).all()
    assert float(accuracy(averaging, task, key=KEY, prompts=2048).accuracy[-1]) > 0.65


def test_the_bayes_predictor_of_these_is_not_known():
    for task in (NetworkRegression(3, 4), TreeRegression(3, 4), SignLabels(linear())):
        with pytest.raises(InputError, match="task: expected a LinearRegression or a FunctionRegression"):
            bayes_optimal(task)
    with pytest.raises(
        InputError, match=r"task.weights: expected GaussianWeights or a WeightPool, got 'SparseWeights'"
    ):
        bayes_optimal(linear(weights=SparseWeights(2)))


def test_a_shifted_query_has_no_second_moment():
    task = IntegratedRegression(linear(ShiftedQuery(GaussianInputs(1.0), "orthogonal")))
    with pytest.raises(InputError, match="inputs: expected inputs of one distribution"):
        task.loss(jnp.zeros((1, 5, 5)), task.sample(key=KEY))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SparseWeights(0), "nonzero: expected an integer of at least 1, got 0"),
        (lambda: SparseWeights(2.0), "nonzero: expected an integer of at least 1, got 2.0"),
        (lambda: SparseWeights(2, -1.0), "variance: expected a finite number >= 0, got -1.0"),
        (lambda: linear(weights=SparseWeights(6)), "nonzero: expected an integer from 1 to 5, got 6; the task has"),
        (lambda: ShiftedQuery(1.0, "repeated"), "inputs: expected a distribution of inputs"),
        (
            lambda: ShiftedQuery(GaussianInputs(1.0), "orthogonl"),
            "unknown shift 'orthogonl'; did you mean 'orthogonal'?",
        ),
        (lambda: drawn(linear(ShiftedQuery(GaussianInputs(1.0), "repeated", 0.5))), "examples: expected an integer"),
        (
            lambda: linear(ShiftedQuery(GaussianInputs(1.0), "repeated", 9)).sample(key=KEY),
            "examples: expected an integer from 0 to 4, got 9",
        ),
        (
            lambda: linear(ShiftedQuery(GaussianInputs(jnp.ones(3)), "repeated")),
            "covariance of inputs: expected a covariance of 5",
        ),
        (lambda: GaussianInputs.rotated([1.0, -1.0], key=KEY), "spectrum: expected a finite number >= 0, got -1.0"),
        (lambda: GaussianInputs.rotated(1.0, key=KEY), "spectrum: expected eigenvalues [dim], not all 0, got 1.0"),
        (lambda: GaussianInputs.rotated([1.0], key=0), "key: expected one random key"),
        (lambda: NetworkRegression(3, 4, hidden=0), "hidden: expected an integer of at least 1, got 0"),
        (lambda: NetworkRegression(0, 4), "dim: expected an integer of at least 1, got 0"),
        (lambda: NetworkRegression(3, 4, noise_variance=-1.0), "noise_variance: expected a finite number >= 0"),
        (lambda: TreeRegression(3, 4, depth=2.5), "depth: expected an integer of at least 1, got 2.5"),
        (
            lambda: TreeRegression(3, 4, inputs=GaussianInputs(jnp.ones(2))),
            "covariance of inputs: expected a covariance of 3",
        ),
        (lambda: TreeRegression(3, 4).sample(key=0), "key: expected one random key"),
        (lambda: SignLabels(LinearRegression), "task: expected a regression such as LinearRegression, or a Curriculum"),
    ],
)
def test_what_makes_no_task_is_refused(make, said):
    assert_refused(make, said)
