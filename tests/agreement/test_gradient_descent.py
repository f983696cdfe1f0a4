"""Closed forms of descent against the algorithms and the attention, which share no code with them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import icllab as icl
from icllab import constructions
from icllab.algorithms import GradientDescent, GradientDescentPlusPlus, PreconditionedDescent
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression
from icllab.theory import descent, preconditioners

SHAPE = {"normalised": True, "half": True}


def last_errors(predictor, task, prompts, key):
    """The squared errors at the last position against the noiseless answer, or the label where there is no noise."""

    @jax.jit
    def errors(keys):
        return jax.vmap(lambda k: task.loss(predictor(p := task.sample(key=k)), p)[-1])(keys)

    return np.asarray(errors(jax.random.split(key, prompts)), float)


@pytest.mark.parametrize("plus", [False, True])
def test_the_error_of_steps_is_that_of_the_algorithm(plus, getkey):
    """Full covariance, tasks of its inverse, A = a Sigma^-1 and B = b I: 4 standard errors of below 2 %."""
    dim, length, rates, contractions = 3, 9, [0.4, 0.6], [0.5, 0.0]
    sigma = np.array([[1.0, 0.4, 0.0], [0.4, 2.0, 0.1], [0.0, 0.1, 0.5]])
    inverse = np.linalg.inv(sigma)
    task = LinearRegression(dim, length, GaussianInputs(sigma), GaussianWeights((inverse + inverse.T) / 2), 0.0)
    a, b = preconditioners.family(sigma, rates, contractions)
    shape = {"layers": 2, "dim": dim, **SHAPE}
    algorithm = GradientDescentPlusPlus(a, b, **shape) if plus else PreconditionedDescent(a, **shape)
    errors = last_errors(algorithm, task, 20000, getkey())
    wanted = descent.loss(rates, contractions if plus else None, dim=dim, length=length)
    spread = errors.std() / len(errors) ** 0.5
    assert spread < 0.02 * wanted
    assert abs(errors.mean() - wanted) < 4 * spread


def test_fit_finds_the_best_step():
    """One step at d = 3, n = 8 is best at n/(n+d+1); the fit finds the minimum over its prompts, which is near it."""
    dim, length, prompts = 3, 8, 1500
    task = LinearRegression.convention("ahn", dim=dim, length=length)
    rng = np.random.default_rng(0)
    inputs, w = rng.normal(size=(prompts, length + 1, dim)), rng.normal(size=(prompts, dim))
    labels = np.einsum("pid,pd->pi", inputs, w)
    data = jax.vmap(RegressionPrompt)(jnp.asarray(inputs, jnp.float32), jnp.asarray(labels, jnp.float32))
    start = GradientDescent(0.1, layers=1, dim=dim, **SHAPE)
    how = {"batch": None, "data": data, "positions": "last", "optimizer": optax.sgd(0.1)}
    found = float(icl.fit(start, task, steps=20, key=jax.random.key(0), **how).predictor.rate)
    unit_step = jax.jit(jax.vmap(GradientDescent(1.0, layers=1, dim=dim, **SHAPE)))
    answers, labels = np.asarray(unit_step(data), float)[:, -1], labels[:, -1]
    exact = answers @ labels / (answers @ answers)
    assert abs(found - exact) < 1e-4
    error = np.sqrt(np.sum(((labels - exact * answers) * answers) ** 2)) / (answers @ answers)
    assert error < 0.03
    assert abs(exact - length / (length + dim + 1)) < 4 * error


def test_the_families_are_stationary():
    """Exactly, on prompts closed under the symmetries of the square: the gradient of all matrices of GD++ vanishes.

    Averaging over all signed permutations of two coordinates makes the gradient at multiples of the identity commute
    with them, so it is a multiple of the identity; at the best multiples for these prompts it is zero. Those are found
    by the closed form, on their spectra.
    """
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        square = [
            np.diag(signs)[list(order)]
            for signs in itertools.product([1.0, -1.0], repeat=2)
            for order in itertools.permutations(range(2))
        ]
        root = np.array([[1.2, 0.3], [0.3, 0.7]])  # of the covariance
        whitened = [x @ g.T for x in rng.normal(size=(5, 6, 2)) for g in square]
        # The error is a square in the task and in the query: a basis of each is as good as all of them.
        pairs = [(u, e, v) for u in whitened for e in np.eye(2) for v in np.eye(2)]
        x = jnp.asarray([np.vstack([u, e]) @ root for u, e, v in pairs])
        prompts = jax.vmap(RegressionPrompt)(x, jnp.asarray([np.append(u @ v, e @ v) for u, e, v in pairs]))

        def error(a, b):
            algorithm = GradientDescentPlusPlus(a, b, layers=2, dim=2, **SHAPE)
            attention = constructions.gradient_descent(algorithm, answers="last", form="gram")
            return jnp.mean((jax.vmap(attention)(prompts)[:, 0] - prompts.y[:, -1]) ** 2)

        gradient = jax.jit(jax.value_and_grad(error, (0, 1)))
        values = np.linalg.eigvalsh([u.T @ u / 6 for u in whitened])
        best = descent.plus_plus(dim=2, length=6, layers=2, starts=8, spectra=values).best
        a, b = preconditioners.family(root @ root, best.rates, best.contractions)
        value, at_family = gradient(jnp.asarray(a), jnp.asarray(b))
        np.testing.assert_allclose(4 * value, best.loss, rtol=1e-10)  # a mean over 2 tasks and 2 queries of length 1
        assert max(np.max(np.abs(part)) for part in at_family) < 1e-6 * best.loss
        _, elsewhere = gradient(jnp.asarray(a * 1.1), jnp.asarray(b))
        assert np.max(np.abs(elsewhere[0])) > 0.01 * best.loss
