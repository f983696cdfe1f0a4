"""Scaling with the context alone: nothing later is looked at, and no unit or zero of a column matters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import prompt_of

from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor, declared
from icllab.tasks import Standardised, Table
from icllab.tasks.scaling import Units


def numbers(prompt):
    return np.array(prompt.x), np.array(prompt.y)


def prompt_with(x, y):
    return RegressionPrompt(jnp.asarray(x), jnp.asarray(y))


def off_centre(seed):
    """Seven positions in three dimensions, whose columns have neither mean 0 nor deviation 1."""
    x, y = numbers(prompt_of(seed, positions=7, dim=3))
    return prompt_with(3 + 2 * x, y)


def nearest(prompt):
    """The target of the nearest example: depends on the unit of every column, and on every example."""
    distance = jnp.sum((prompt.x[:, None] - prompt.x[None]) ** 2, axis=-1)
    seen = jnp.tril(jnp.ones_like(distance, dtype=bool), k=-1)
    weight = jnp.where(seen, jnp.exp(-distance), 0)
    return weight @ prompt.y + jnp.sum(prompt.x, axis=1)


def nearest_of_last(x, y):
    """The last answer of ``nearest``, in NumPy."""
    return np.exp(-np.sum((x[-1] - x[:-1]) ** 2, axis=1)) @ y[:-1] + np.sum(x[-1])


standardised = jax.jit(Standardised(nearest))
jacobian_of = jax.jit(jax.jacobian(Standardised(nearest)))
units_of = jax.jit(Units.from_prompt)


class NearestLast(AbstractPredictor):
    positions = "last"

    def __call__(self, prompt):
        return nearest(prompt)[-1:]


class NearestOnTheHost(AbstractPredictor):
    traceable = False

    def __call__(self, prompt):
        assert not isinstance(prompt.x, jax.core.Tracer)
        return nearest(prompt)


def test_the_examples_before_the_query_have_mean_0_and_deviation_1(precision):
    @jax.jit
    def scaled_and_back(prompt):
        units = Units.from_prompt(prompt, 5)
        scaled = units.removed(prompt)
        return scaled, units.restored(scaled.y)

    prompt = off_centre(0)
    scaled, back = scaled_and_back(prompt)
    tolerance = 1e-5 if precision == "float32" else 1e-14
    for values in numbers(scaled):
        np.testing.assert_allclose(values[:5].mean(0), 0, atol=tolerance)
        np.testing.assert_allclose(values[:5].std(0), 1, rtol=tolerance)
    np.testing.assert_allclose(back, prompt.y, rtol=tolerance, atol=tolerance)


def test_entries_after_the_examples_are_not_looked_at():
    prompt, other = off_centre(0), off_centre(1)
    for i in range(7):
        changed = prompt.replaced_after(i, other)
        assert eqx.tree_equal(units_of(changed, i), units_of(prompt, i))


def test_each_position_is_answered_in_the_scale_of_its_own_prefix():
    """Against a loop that cuts the prompt off, scales it with NumPy, and asks for its last position."""
    with jax.enable_x64(True):
        prompt = off_centre(0)
        answers = np.asarray(standardised(prompt))
    x, y = numbers(prompt)
    for i in range(2, 7):
        m, s, my, sy = x[:i].mean(0), x[:i].std(0), y[:i].mean(), y[:i].std()
        answer = nearest_of_last((x[: i + 1] - m) / s, (y[: i + 1] - my) / sy)
        np.testing.assert_allclose(answers[i], my + sy * answer, rtol=1e-12)


def test_it_is_causal_to_the_bit_and_in_its_gradient():
    prompt, other = off_centre(0), off_centre(1)
    before = np.asarray(standardised(prompt))
    for position in range(7):
        after = np.asarray(standardised(prompt.replaced_after(position, other)))
        np.testing.assert_array_equal(before[: position + 1], after[: position + 1])
    jacobian = jacobian_of(prompt)
    i = np.arange(7)
    assert np.isfinite(jacobian.x).all()
    assert np.isfinite(jacobian.y).all()
    assert np.all(np.asarray(jacobian.x)[i[:, None] < i[None, :]] == 0)
    assert np.all(np.asarray(jacobian.y)[i[:, None] <= i[None, :]] == 0)
    # After one example the answer is its target; from two on, inputs and targets matter.
    assert np.all(np.abs(np.asarray(jacobian.x)[2:]).max(axis=(1, 2)) > 0)
    assert np.all(np.abs(np.asarray(jacobian.y)[1:]).max(axis=1) > 0)


def test_units_and_zeros_of_the_columns_do_not_matter():
    with jax.enable_x64(True):
        prompt = off_centre(0)
        x, y = numbers(prompt)
        other = prompt_with(x * [1e3, 0.1, 7.0] - 5, 40 * y + 2)
        found, plain = np.asarray(standardised(other)), np.asarray(standardised(prompt))
    np.testing.assert_allclose(found[1:], 40 * plain[1:] + 2, rtol=1e-11)


def test_of_none_and_of_one_example(precision):
    prompt = off_centre(0)
    answers = np.asarray(standardised(prompt))
    assert answers[0] == 0
    assert answers[1] == np.asarray(prompt.y)[0]
    assert answers.dtype == precision


@pytest.mark.parametrize("constant", [0.1, 1e6 + 0.1])
def test_a_column_that_is_constant_so_far_says_nothing(constant):
    """Whatever the query has there. In floating point the mean of equal numbers need not be that number."""
    x, y = numbers(off_centre(0))
    left_out = prompt_with(x[:, ::2], y)
    x[:6, 1], x[6, 1] = constant, 1e4
    asked = prompt_with(x, y)
    np.testing.assert_allclose(standardised(asked), standardised(left_out), rtol=1e-5)
    assert np.isfinite(jacobian_of(asked).x).all()


def test_where_all_targets_are_equal_the_answer_is_that_target():
    equal = prompt_with(off_centre(0).x, np.full(7, 2.5))
    np.testing.assert_array_equal(np.asarray(standardised(equal))[1:], 2.5)


def test_predictors_of_the_last_position_and_on_the_host():
    prompt = off_centre(0)
    every, last, host = (Standardised(p) for p in (nearest, NearestLast(), NearestOnTheHost()))
    declarations = [[declared(p, d) for d in ("positions", "traceable", "differentiable")] for p in (every, last, host)]
    assert declarations == [["every", True, True], ["last", True, True], ["every", False, True]]
    answers = np.asarray(standardised(prompt))
    np.testing.assert_allclose(eqx.filter_jit(last)(prompt), answers[-1:], rtol=1e-5)
    np.testing.assert_allclose(host(prompt), answers, rtol=1e-5)


def test_it_is_what_a_pipeline_of_scikit_learn_does():
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
        prompt = eqx.filter_jit(table.sample)(key=jax.random.key(0))
        ours = np.asarray(eqx.filter_jit(Standardised(Ridge(3.0)))(prompt))
    x, y = numbers(prompt)
    for i in range(1, 26):
        pipeline = make_pipeline(StandardScaler(), OtherRidge(3.0)).fit(x[:i], y[:i])
        np.testing.assert_allclose(ours[i], pipeline.predict(x[i : i + 1])[0], rtol=1e-9)
