"""The map of a context beside gradient steps, where it is one and where it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import diagnostics, tasks
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics.contexts.first_steps import gradient_step_comparison
from icllab.models.contexts.exact_family import FastWeights, GradientStep

DIM = 3


def regression(shape, seed):
    rng = np.random.default_rng(seed)
    x, y = jnp.asarray(rng.normal(size=(*shape, DIM))), jnp.asarray(rng.normal(size=shape))
    return RegressionPrompt(x, y) if len(shape) == 1 else jax.vmap(RegressionPrompt)(x, y)


@pytest.fixture(scope="module")
def compared():
    """A model that takes a gradient step, and one that writes elsewhere."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        task = tasks.LinearRegression.convention("timaeus", dim=DIM, length=4)
        options = {"key": jax.random.key(0), "queries": regression((40, 1), 2), "draws": 6}
        step = GradientStep(jnp.asarray(rng.normal(size=DIM)), jnp.asarray(0.4))
        turned = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
        second = FastWeights(jnp.eye(DIM), jnp.asarray(turned), jnp.zeros(DIM), normalised=True)
        context = regression((5,), 1)
        item = context.alone(1, size=2)
        yield {
            "step": gradient_step_comparison(step, task, context, subspace=lambda m: m.start, **options),
            "one": gradient_step_comparison(step, task, item, subspace=lambda m: m.start, **options),
            "other": gradient_step_comparison(second, task, context, subspace=lambda m: m.slow, **options),
            "turned": turned,
            "context": context,
        }


def test_a_step_on_the_examples_has_cosine_one_and_leaves_nothing(compared):
    result = compared["step"].sel(gradient="examples")
    assert float(result["cosine"]) == pytest.approx(1.0, abs=1e-10)
    assert float(result["best_step_gap"]) < 1e-12
    # The task's loss has no factor 1/2 and sums over 4 examples: the step is that of the model over 2 n.
    assert float(result["best_step"]) == pytest.approx(0.4 / 8, rel=1e-6)
    assert float(result["gap"]) < 1e-10


def test_other_contexts_are_not_as_good(compared):
    result = compared["step"].sel(gradient="examples")
    assert float(result["other_cosine"].max()) < 0.999
    assert float(result["other_best_step_gap"].min()) > 1e-3


def test_of_one_example_all_three_gradients_are_one(compared):
    np.testing.assert_allclose(compared["one"]["cosine"], 1.0, atol=1e-10)
    assert compared["one"]["best_step_gap"].values.max() < 1e-12


def test_an_answer_given_all_before_it_is_another_gradient(compared):
    assert abs(float(compared["step"]["cosine"].sel(gradient="answer"))) < 0.999


def test_weights_that_are_written_elsewhere_have_the_cosine_of_the_turn(compared):
    """At b = 0 the gradient of the examples is -2 n h, and the map writes Q h."""
    context = compared["context"]
    h = np.asarray((context.y[:-1, None] * context.x[:-1]).mean(0))
    target = h @ compared["turned"] @ h / (h @ h)
    result = compared["other"].sel(gradient="examples")
    assert float(result["cosine"]) == pytest.approx(target, abs=1e-6)
    assert float(result["best_step_gap"]) > 0.1
    assert float(result["random_cosine"]) == pytest.approx(DIM**-0.5)
    assert diagnostics.gradient_step_comparison is gradient_step_comparison


def test_other_contexts_can_be_given_and_are_compared_in_their_order():
    """Of h and its own step the cosine is 1; of others it is that of the two closed forms."""
    with jax.enable_x64(True):
        task = tasks.LinearRegression.convention("timaeus", dim=DIM, length=4)
        model = FastWeights(jnp.eye(DIM), jnp.eye(DIM), jnp.zeros(DIM), normalised=True)
        context, others = regression((5,), 1), regression((3, 5), 7)
        options = {"key": jax.random.key(0), "queries": regression((40, 1), 2), "subspace": lambda m: m.slow}
        result = gradient_step_comparison(model, task, context, draws=others, **options).sel(gradient="examples")

        def written(x, y):
            return np.asarray(y)[:-1] @ np.asarray(x)[:-1]

        h = written(context.x, context.y)
        rows = [written(x, y) for x, y in zip(others.x, others.y, strict=True)]
        expected = [h @ row / np.linalg.norm(h) / np.linalg.norm(row) for row in rows]
        np.testing.assert_allclose(result["other_cosine"], expected, atol=1e-9)
        x = np.asarray(regression((40, 1), 2).x)[:, 0]
        fitted, held_out = x[:20], x[20:]
        for row, gap in zip(rows, result["other_best_step_gap"].values, strict=True):
            step = max((fitted @ row) @ (fitted @ h) / np.sum((fitted @ row) ** 2), 0)
            assert gap == pytest.approx(
                np.sum((held_out @ (h - step * row)) ** 2) / np.sum((held_out @ h) ** 2), rel=1e-6
            )
        with pytest.raises(InputError, match="draws: expected stacked RegressionPrompts, or their number, got 'list'"):
            gradient_step_comparison(model, task, context, draws=[context], **options)
