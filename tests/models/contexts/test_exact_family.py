"""Models with a known map of contexts to weights: the map, its derivative, and how it composes."""

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
    return RegressionPrompt(
        x=jnp.asarray(RNG.normal(size=(length + 1, DIM))), y=jnp.asarray(RNG.normal(size=length + 1))
    )


def fast_weights(normalised, hidden=2):
    shapes = ((hidden, DIM), (DIM, hidden), (DIM,))
    return FastWeights(*(jnp.asarray(RNG.normal(size=shape)) for shape in shapes), normalised=normalised)


def gradient_step():
    return GradientStep(jnp.asarray(RNG.normal(size=DIM)), jnp.asarray(0.7))


def after(first, second):
    """The examples of the first prompt, and then the second."""
    return RegressionPrompt(x=jnp.concatenate([first.x[:-1], second.x]), y=jnp.concatenate([first.y[:-1], second.y]))


@pytest.mark.parametrize("normalised", [True, False])
def test_the_formula_and_the_map_of_fast_weights(normalised):
    model, given = fast_weights(normalised), prompt()
    h = sum(y * x for x, y in zip(np.asarray(given.x[:-1]), np.asarray(given.y[:-1]), strict=True))
    h = h / LENGTH if normalised else h
    weights = np.asarray(model.slow) + np.asarray(model.up) @ np.asarray(model.down) @ h
    np.testing.assert_allclose(model(given)[-1], np.asarray(given.x[-1]) @ weights, rtol=1e-13)
    np.testing.assert_allclose(model.mapped(given).slow, weights, rtol=1e-13)
    np.testing.assert_array_equal(model(given.alone(LENGTH)), [given.x[-1] @ model.slow])


@pytest.mark.parametrize("model", [lambda: fast_weights(True), lambda: fast_weights(False), gradient_step])
def test_the_mapped_model_answers_any_query_as_the_model_does_after_the_context(model):
    model, given = model(), prompt()
    mapped = model.mapped(given)
    for query in RNG.normal(size=(3, DIM)):
        asked = RegressionPrompt(x=given.x.at[-1].set(query), y=given.y)
        np.testing.assert_allclose(mapped(asked.alone(LENGTH)), model(asked)[-1:], rtol=1e-12)


def test_an_empty_context_maps_weights_to_themselves():
    for model in (fast_weights(True), gradient_step()):
        for one, other in zip(jax.tree.leaves(model), jax.tree.leaves(model.mapped(prompt(0))), strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_sum_composes_and_the_mean_does_not():
    first, second = prompt(3), prompt(4)
    for normalised in (False, True):
        model = fast_weights(normalised)
        together = model.mapped(after(first, second)).slow
        in_turn = model.mapped(first).mapped(second).slow
        gap = float(jnp.linalg.norm(together - in_turn) / jnp.linalg.norm(together - model.slow))
        assert gap > 0.1 if normalised else gap < 1e-14
    # Of the mean, the two parts count by their lengths.
    parts = [float(length) / 7 * (model.mapped(c).slow - model.slow) for length, c in ((3, first), (4, second))]
    np.testing.assert_allclose(together - model.slow, parts[0] + parts[1], rtol=1e-12)


@pytest.mark.parametrize(("hidden", "rank"), [(1, 3), (2, 3)])
def test_the_jacobian_is_the_derivative_and_has_the_rank_that_is_told(hidden, rank):
    model, given = fast_weights(True, hidden), prompt()
    jacobian = np.asarray(model.jacobian(given))
    columns = []
    for name in ("down", "up", "slow"):
        for at in np.ndindex(getattr(model, name).shape):

            def moved(step, name=name, at=at):
                fields = {part: getattr(model, part) for part in ("down", "up", "slow")}
                fields[name] = fields[name].at[at].add(step)
                return FastWeights(**fields, normalised=True).mapped(given).slow

            columns.append((moved(1e-3) - moved(-1e-3)) / 2e-3)  # exact: no third derivative in one weight
    np.testing.assert_allclose(jacobian, np.stack(columns, axis=1), atol=1e-10)
    assert np.linalg.matrix_rank(jacobian[:, :-DIM]) == rank
    silent = FastWeights(jnp.zeros_like(model.down), model.up, model.slow, normalised=True)
    assert np.linalg.matrix_rank(silent.jacobian(given)[:, :-DIM]) == hidden
    assert np.linalg.matrix_rank(silent.jacobian(prompt(0))[:, :-DIM]) == 0


def test_the_gradient_step_is_one():
    model, given = gradient_step(), prompt()

    def loss(w):
        return jnp.mean((given.y[:-1] - given.x[:-1] @ w) ** 2) / 2

    step = model.mapped(given).start - model.start
    np.testing.assert_allclose(step, -0.7 * jax.grad(loss)(model.start), rtol=1e-12)
    # Two steps on two contexts are not one on both.
    first, second = prompt(3), prompt(4)
    together, in_turn = model.mapped(after(first, second)).start, model.mapped(first).mapped(second).start
    assert float(jnp.linalg.norm(together - in_turn)) > 1e-2
