"""Scaling with the context alone: nothing later is looked at, and no unit or zero of a column matters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor, declared
from icllab.tasks import Standardised, Table
from icllab.tasks.scaling import Units


def prompt_of(key, positions=7, dim=3):
    of_x, of_y = jax.random.split(key)
    return RegressionPrompt(
        x=3 + 2 * jax.random.normal(of_x, (positions, dim)), y=jax.random.normal(of_y, (positions,))
    )


def nearest(prompt):
    """The target of the nearest example: depends on the unit of every column, and on every example."""
    distance = jnp.sum((prompt.x[:, None] - prompt.x[None]) ** 2, axis=-1)
    seen = jnp.tril(jnp.ones_like(distance, dtype=bool), k=-1)
    weight = jnp.where(seen, jnp.exp(-distance), 0)
    return weight @ prompt.y + jnp.sum(prompt.x, axis=1)


standardised = jax.jit(Standardised(nearest))


class NearestLast(AbstractPredictor):
    positions = "last"

    def __call__(self, prompt):
        return nearest(prompt)[-1:]


class NearestOnTheHost(AbstractPredictor):
    traceable = False

    def __call__(self, prompt):
        assert not isinstance(prompt.x, jax.core.Tracer)
        return nearest(prompt)


def test_the_examples_before_the_query_have_mean_0_and_deviation_1(precision, getkey):
    prompt = prompt_of(getkey())
    scaled = Units.of(prompt, 5).removed(prompt)
    tolerance = 1e-5 if precision == "float32" else 1e-14
    for values in (scaled.x[:5], scaled.y[:5]):
        np.testing.assert_allclose(values.mean(0), 0, atol=tolerance)
        np.testing.assert_allclose(values.std(0), 1, rtol=tolerance)
    units = Units.of(prompt, 5)
    np.testing.assert_allclose(units.restored(scaled.y), prompt.y, rtol=tolerance, atol=tolerance)


def test_entries_after_the_examples_are_not_looked_at(getkey):
    prompt, other = prompt_of(getkey()), prompt_of(getkey())
    for i in range(7):
        changed = prompt.replaced_after(i, other)
        assert eqx.tree_equal(Units.of(changed, i), Units.of(prompt, i))


def test_each_position_is_answered_in_the_scale_of_its_own_prefix(getkey):
    """Against a loop that cuts the prompt off, scales it with NumPy, and asks for its last position."""
    with jax.enable_x64(True):
        prompt = prompt_of(getkey())
        answers = standardised(prompt)
        for i in range(2, 7):
            x, y = np.asarray(prompt.x), np.asarray(prompt.y)
            m, s, my, sy = x[:i].mean(0), x[:i].std(0), y[:i].mean(), y[:i].std()
            prefix = RegressionPrompt(x=jnp.asarray((x[: i + 1] - m) / s), y=jnp.asarray((y[: i + 1] - my) / sy))
            np.testing.assert_allclose(answers[i], my + sy * nearest(prefix)[-1], rtol=1e-12)


def test_it_is_causal_to_the_bit_and_in_its_gradient(getkey):
    predictor, prompt, other = standardised, prompt_of(getkey()), prompt_of(getkey())
    before = predictor(prompt)
    for position in range(7):
        after = predictor(prompt.replaced_after(position, other))
        np.testing.assert_array_equal(before[: position + 1], after[: position + 1])
    jacobian = jax.jit(jax.jacobian(standardised))(prompt)
    i = np.arange(7)
    assert np.isfinite(jacobian.x).all()
    assert np.isfinite(jacobian.y).all()
    assert np.all(np.asarray(jacobian.x)[i[:, None] < i[None, :]] == 0)
    assert np.all(np.asarray(jacobian.y)[i[:, None] <= i[None, :]] == 0)
    # After one example the answer is its target; from two on, inputs and targets matter.
    assert np.all(np.abs(np.asarray(jacobian.x)[2:]).max(axis=(1, 2)) > 0)
    assert np.all(np.abs(np.asarray(jacobian.y)[1:]).max(axis=1) > 0)


def test_units_and_zeros_of_the_columns_do_not_matter(getkey):
    with jax.enable_x64(True):
        prompt = prompt_of(getkey())
        other = RegressionPrompt(x=prompt.x * jnp.array([[1e3, 0.1, 7.0]]) - 5, y=40 * prompt.y + 2)
        expected = 40 * standardised(prompt)[1:] + 2
        np.testing.assert_allclose(standardised(other)[1:], expected, rtol=1e-11)


def test_of_none_and_of_one_example(precision, getkey):
    prompt = prompt_of(getkey())
    answers = standardised(prompt)
    assert answers[0] == 0
    assert answers[1] == prompt.y[0]
    assert answers.dtype == jnp.dtype(precision)


@pytest.mark.parametrize("constant", [0.1, 1e6 + 0.1])
def test_a_column_that_is_constant_so_far_says_nothing(constant, getkey):
    """Whatever the query has there. In floating point the mean of equal numbers need not be that number."""
    prompt = prompt_of(getkey())
    x = prompt.x.at[:6, 1].set(constant).at[6, 1].set(1e4)
    asked, left_out = RegressionPrompt(x=x, y=prompt.y), RegressionPrompt(x=prompt.x[:, ::2], y=prompt.y)
    np.testing.assert_allclose(standardised(asked), standardised(left_out), rtol=1e-5)
    assert np.isfinite(jax.jit(jax.jacobian(standardised))(asked).x).all()


def test_where_all_targets_are_equal_the_answer_is_that_target(getkey):
    prompt = prompt_of(getkey())
    equal = RegressionPrompt(x=prompt.x, y=jnp.full(7, 2.5))
    np.testing.assert_array_equal(standardised(equal)[1:], 2.5)


def test_predictors_of_the_last_position_and_on_the_host(getkey):
    prompt = prompt_of(getkey())
    every, last, host = (Standardised(p) for p in (nearest, NearestLast(), NearestOnTheHost()))
    declarations = [[declared(p, d) for d in ("positions", "traceable", "differentiable")] for p in (every, last, host)]
    assert declarations == [["every", True, True], ["last", True, True], ["every", False, True]]
    np.testing.assert_allclose(last(prompt), every(prompt)[-1:], rtol=1e-5)
    np.testing.assert_allclose(host(prompt), every(prompt), rtol=1e-5)


def test_it_is_what_a_pipeline_of_scikit_learn_does(getkey):
    """Ridge after StandardScaler, fitted to every prefix of prompts of a real table: another implementation."""
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import Ridge as OtherRidge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from icllab.algorithms import Ridge

    data = load_diabetes(scaled=False)
    with jax.enable_x64(True):
        table = Table(data.data, data.target, length=25, columns=data.feature_names, target="progression")
        assert (table.dim, table.rows) == (10, 442)
        prompt = table.sample(key=getkey())
        ours = Standardised(Ridge(3.0))(prompt)
    x, y = np.asarray(prompt.x), np.asarray(prompt.y)
    for i in range(1, 26):
        pipeline = make_pipeline(StandardScaler(), OtherRidge(3.0)).fit(x[:i], y[:i])
        np.testing.assert_allclose(ours[i], pipeline.predict(x[i : i + 1])[0], rtol=1e-9)
