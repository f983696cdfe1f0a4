"""The integrated loss is the mean of plain losses, its gradient theirs, and at scalar numbers it is a closed form."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import icllab as icl
from icllab.algorithms import GradientDescentPlusPlus, LabelMap, PreconditionedDescent
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import (
    CovariancePrompt,
    GaussianInputs,
    GaussianWeights,
    IntegratedRegression,
    LinearRegression,
    UniformInputs,
    WeightPool,
)
from icllab.tasks.regression_distributions import AbstractWeights
from icllab.theory import descent, preconditioners
from icllab.training import Fresh

DIM, LENGTH = 3, 5
FULL = np.array([[1.0, 0.3, 0.1], [0.3, 0.5, -0.2], [0.1, -0.2, 0.8]])
SHAPE = {"dim": DIM, "normalised": True, "half": True}


def regression(name):
    law = GaussianWeights(jnp.ones(()))
    pool = WeightPool(jnp.asarray(np.random.default_rng(1).normal(size=(3, DIM)), float), law)
    return {
        "full": lambda: LinearRegression(DIM, LENGTH, GaussianInputs(FULL), GaussianWeights(FULL[::-1, ::-1]), 0.3),
        "uniform_pool": lambda: LinearRegression(DIM, LENGTH, UniformInputs(1.5), pool, 0.2),
        "plain": lambda: LinearRegression.convention("ahn", dim=DIM, length=LENGTH),
    }[name]()


def steps(layers, key):
    a, b = 0.3 * jax.random.normal(key, (2, layers, DIM, DIM)) + 0.3 * jnp.eye(DIM)[None, None]
    return GradientDescentPlusPlus(a, b, layers=layers, **SHAPE)


@eqx.filter_jit
def drawn(task, key, count):
    return jax.vmap(lambda k: task.sample(key=k))(jax.random.split(key, count))


def one(task, key):
    """A single prompt."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[0]), drawn(task, key, 1))


def gradient(algorithm, loss):
    value, found = eqx.filter_value_and_grad(loss)(algorithm)
    return jnp.concatenate([value[None], found.preconditioner.ravel(), found.contraction.ravel()])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "uniform_pool"])
def test_loss_and_gradient_are_means_over_tasks_noise_and_queries(name, getkey):
    """Given the examples' inputs: 37 numbers within 5 standard errors, that of the loss below 4 %."""
    task, algorithm = regression(name), steps(2, getkey())
    x = task.sample(key=getkey()).x[:-1]

    def plain(key):
        of_w, of_x, of_noise = jax.random.split(key, 3)
        inputs = jnp.concatenate([x, task.inputs.sample(DIM, key=of_x)[None]])
        noise = jnp.sqrt(task.noise_variance) * jax.random.normal(of_noise, (LENGTH + 1,))
        prompt = RegressionPrompt(x=inputs, y=inputs @ task.weights.sample(DIM, key=of_w) + noise)
        return gradient(algorithm, lambda found: task.loss(found(prompt), prompt)[-1])

    samples = np.asarray(jax.jit(jax.vmap(plain))(jax.random.split(getkey(), 8000)), np.float64)
    integrated, prompt = IntegratedRegression(task), CovariancePrompt(x.T @ x / LENGTH, LENGTH)
    exact = jax.jit(lambda a: gradient(a, lambda found: integrated.loss(LabelMap(found)(prompt), prompt)[0]))(algorithm)
    error = samples.std(0) / len(samples) ** 0.5
    assert error[0] < 0.04 * exact[0]
    assert np.all(np.abs(samples.mean(0) - exact) < 5 * error + 1e-5)


def test_at_scalar_numbers_it_is_the_polynomial_of_the_spectrum(getkey):
    """Of one covariance, what the closed form averages over all of them."""
    layers = 3
    with jax.enable_x64(True):
        task = IntegratedRegression(LinearRegression.convention("ahn", dim=DIM, length=LENGTH))
        rates, contractions = np.linspace(0.3, 0.6, layers), np.linspace(0.5, 0.2, layers)
        prompt = one(task, getkey())
        algorithm = GradientDescentPlusPlus.scalar(rates, contractions, layers=layers, **SHAPE)
        found = jax.jit(lambda p: task.loss(LabelMap(algorithm)(p), p)[0])(prompt)
        values = np.linalg.eigvalsh(np.asarray(prompt.covariance))
        np.testing.assert_allclose(found, np.sum(descent.remainder(values, rates, contractions) ** 2), rtol=1e-12)


def test_its_mean_is_the_error_of_the_closed_form(getkey):
    """By quadrature: no sample on that side. 4 standard errors of below 2 %."""
    task = IntegratedRegression(regression("plain"))
    rates, contractions = np.array([0.5, 0.6]), np.array([0.4, 0.0])
    algorithm = GradientDescentPlusPlus.scalar(rates, contractions, layers=2, **SHAPE)
    losses = drawn_losses(task, LabelMap(algorithm), getkey())
    exact, error = descent.loss(rates, contractions, dim=DIM, length=LENGTH), losses.std() / len(losses) ** 0.5
    assert error < 0.02 * exact
    assert abs(losses.mean() - exact) < 4 * error


def test_its_mean_is_the_error_of_any_preconditioner_under_noise(getkey):
    """Full covariances of inputs and tasks, a preconditioner that is not symmetric; the query's noise counts here."""
    plain = regression("full")
    a = 0.5 * np.eye(DIM) + 0.2 * np.random.default_rng(0).normal(size=(DIM, DIM))
    losses = drawn_losses(IntegratedRegression(plain), LabelMap(PreconditionedDescent(a, layers=1, **SHAPE)), getkey())
    laws = {"length": LENGTH, "task_covariance": FULL[::-1, ::-1], "noise_variance": 0.3}
    exact, error = preconditioners.loss(a, FULL, **laws) + 0.3, losses.std() / len(losses) ** 0.5
    assert error < 0.02 * exact
    assert abs(losses.mean() - exact) < 4 * error


def drawn_losses(task, predictor, key):
    prompts = drawn(task, key, 20_000)
    return np.asarray(jax.jit(jax.vmap(lambda p: task.loss(predictor(p), p)[0]))(prompts), np.float64)


def test_other_inputs_are_drawn_themselves(getkey):
    plain = regression("uniform_pool")
    task = IntegratedRegression(plain)
    prompts = drawn(task, getkey(), 4000)
    assert prompts.examples == task.length == LENGTH
    found = np.asarray(prompts.covariance)
    error = found.std(0) / len(found) ** 0.5
    assert error.max() < 0.02
    assert np.all(np.abs(found.mean(0) - np.asarray(plain.inputs.second_moment(DIM))) < 4.5 * error)
    assert np.all(np.diagonal(found, axis1=1, axis2=2) <= 1.5**2)  # of entries within the box


def test_fit_finds_the_best_preconditioner(getkey):
    """From zero, by covariances that each serve five steps: the exact error is within 1.001 of the least."""
    inputs = np.array([1.0, 0.5, 2.0])
    plain = LinearRegression(DIM, LENGTH, GaussianInputs(inputs), GaussianWeights(jnp.ones(())), 0.0)
    start = LabelMap(PreconditionedDescent(jnp.zeros((DIM, DIM)), layers=1, **SHAPE))
    optimizer = optax.adam(optax.cosine_decay_schedule(0.03, 200))
    settings = {"batch": 1024, "positions": "last", "data": Fresh(reuse=5)}
    task = IntegratedRegression(plain)
    run = icl.fit(start, task, steps=200, key=getkey(), optimizer=optimizer, **settings)
    assert run.header["prompts"] == "fresh, reused 5"
    found = np.asarray(run.predictor.algorithm.preconditioner, float)
    best = preconditioners.optimal(inputs, length=LENGTH).loss
    assert 1 <= preconditioners.loss(found, inputs, length=LENGTH) / best < 1.001


def test_a_prompt_is_whole_or_nothing(getkey):
    prompt = one(IntegratedRegression(regression("plain")), getkey())
    assert (prompt.positions, prompt.length, prompt.dim) == (LENGTH + 1, LENGTH, DIM)
    assert prompt.alone(LENGTH, size=LENGTH + 1) is prompt
    assert prompt.replaced_after(LENGTH, prompt) is prompt
    wanted = "position: expected the whole prompt, position 5 and size 6, got 'position 2 and size"
    with pytest.raises(InputError, match=f"{wanted} 1"):
        prompt.alone(2)
    with pytest.raises(InputError, match=f"{wanted} 3"):
        prompt.replaced_after(2, prompt)


def test_a_law_of_tasks_without_a_known_moment_is_refused(getkey):
    class Odd(AbstractWeights):
        def sample(self, dim, *, key):
            return jnp.ones(dim)

    task = IntegratedRegression(eqx.tree_at(lambda t: t.weights, regression("plain"), Odd()))
    prompt = one(IntegratedRegression(regression("plain")), getkey())
    with pytest.raises(InputError, match="weights: expected GaussianWeights or a WeightPool, got 'Odd'"):
        task.loss(jnp.zeros((1, DIM, DIM)), prompt)
