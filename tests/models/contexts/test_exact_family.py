"""Models with a known map of contexts to weights: the map, its derivative, and how it composes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.prompt import RegressionPrompt
from icllab.models import FastWeights, GradientStep

DIM, LENGTH = 3, 5
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def prompt(length=LENGTH):
    """Examples and a query of any distribution."""
    x, y = RNG.normal(size=(length + 1, DIM)), RNG.normal(size=length + 1)
    return RegressionPrompt(x=jnp.asarray(x), y=jnp.asarray(y))


def fast_weights(normalised, hidden=2):
    shapes = ((hidden, DIM), (DIM, hidden), (DIM,))
    return FastWeights(*(jnp.asarray(RNG.normal(size=shape)) for shape in shapes), normalised=normalised)


def gradient_step():
    return GradientStep(jnp.asarray(RNG.normal(size=DIM)), jnp.asarray(0.7))


def weights(model):
    """Those that answer without a context."""
    return np.asarray(model.slow if isinstance(model, FastWeights) else model.start)


@eqx.filter_jit
def answers(model, given, queries):
    """After a context and of the mapped model without one, to any queries; and the model's own without one."""
    mapped = model.mapped(given)
    asked = jax.vmap(lambda query: RegressionPrompt(x=given.x.at[-1].set(query), y=given.y))(queries)
    alone = jax.vmap(lambda one: one.alone(LENGTH))(asked)
    return jax.vmap(model)(asked)[:, -1], jax.vmap(mapped)(alone)[:, 0], jax.vmap(model)(alone)[:, 0], mapped


@pytest.mark.parametrize("model", [lambda: fast_weights(True), lambda: fast_weights(False), gradient_step])
def test_the_mapped_model_answers_any_query_as_the_model_does_after_the_context(model):
    model, given, queries = model(), prompt(), RNG.normal(size=(3, DIM))
    after, by_map, alone, mapped = answers(model, given, jnp.asarray(queries))
    x, y, w = np.asarray(given.x[:-1]), np.asarray(given.y[:-1]), weights(model)
    if isinstance(model, FastWeights):
        h = x.T @ y / (LENGTH if model.normalised else 1)
        formula = w + np.asarray(model.up) @ np.asarray(model.down) @ h
    else:
        formula = w + 0.7 / LENGTH * x.T @ (y - x @ w)
    np.testing.assert_allclose(weights(mapped), formula, rtol=1e-12)
    np.testing.assert_allclose(after, queries @ formula, rtol=1e-11)
    np.testing.assert_allclose(by_map, after, rtol=1e-11)
    np.testing.assert_allclose(alone, queries @ w, rtol=1e-12)


@eqx.filter_jit
def composed(model, first, second):
    """The weights after two contexts together, and after one and then the other; after each; and after none."""
    together = RegressionPrompt(
        x=jnp.concatenate([first.x[:-1], second.x]), y=jnp.concatenate([first.y[:-1], second.y])
    )
    none = RegressionPrompt(x=first.x[:1], y=first.y[:1])
    each = [model.mapped(one) for one in (together, first, second, none)]
    return each[0], each[1].mapped(second), *each[1:]


@pytest.mark.parametrize("model", [lambda: fast_weights(True), lambda: fast_weights(False), gradient_step])
def test_the_sum_composes_and_the_mean_and_the_step_do_not(model):
    model = model()
    together, in_turn, first, second, none = map(weights, composed(model, prompt(3), prompt(4)))
    own = weights(model)
    np.testing.assert_array_equal(none, own)
    gap = np.linalg.norm(together - in_turn) / np.linalg.norm(together - own)
    summed = isinstance(model, FastWeights) and not model.normalised
    assert gap < 1e-14 if summed else gap > 1e-2
    if not summed:  # the two parts count by their lengths
        np.testing.assert_allclose(together - own, (3 * (first - own) + 4 * (second - own)) / 7, rtol=1e-11)


@eqx.filter_jit
def derivatives(model, given):
    """The derivative of the mapped direct term, as told and by automatic differentiation."""
    told = model.jacobian(given)
    by_field = jax.jacobian(lambda m: m.mapped(given).slow)(model)
    return told, jnp.concatenate([leaf.reshape(DIM, -1) for leaf in jax.tree.leaves(by_field)], axis=1)


@pytest.mark.parametrize(("hidden", "size", "rank"), [(1, 1, DIM), (2, 0, 2)])
def test_the_jacobian_is_the_derivative_and_has_the_rank_that_is_told(hidden, size, rank):
    """``size`` of A: at zero, what is left is the rank of B."""
    model, given = fast_weights(True, hidden), prompt()
    model = eqx.tree_at(lambda m: m.down, model, size * model.down)
    told, found = derivatives(model, given)
    np.testing.assert_allclose(told, found, atol=1e-12)
    assert np.linalg.matrix_rank(np.asarray(told)[:, :-DIM]) == rank


def test_the_step_is_along_the_gradient_of_the_loss_of_the_context():
    model, given = gradient_step(), prompt()
    x, y = np.asarray(given.x[:-1]), np.asarray(given.y[:-1])
    start, step = weights(model), 1e-5 * np.eye(DIM)
    loss = [np.mean((y - x @ (start + move)) ** 2) / 2 for move in (*step, *-step)]
    gradient = (np.array(loss[:DIM]) - loss[DIM:]) / 2e-5
    mapped = eqx.filter_jit(lambda m, p: m.mapped(p))(model, given)
    np.testing.assert_allclose(weights(mapped) - start, -0.7 * gradient, rtol=1e-7)
