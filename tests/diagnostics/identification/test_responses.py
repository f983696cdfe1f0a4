"""Answers, gradients and baselines of predictors for which they are known exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import Ridge
from icllab.core.errors import InputError
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics.behaviour.answers import answers_to, sample_prompts
from icllab.diagnostics.identification.responses import (
    Baselines,
    LinearResponseQuestion,
    ResponseQuestion,
    baseline_features,
    compared_positions,
    responses,
)
from icllab.tasks import LinearRegression

DIM, LENGTH = 2, 4


def task():
    return LinearRegression.convention("ahn", dim=DIM, length=LENGTH)


class Weighted(AbstractPredictor):
    """x·w with w the sum of label times input over the examples before: its slope is w."""

    def __call__(self, prompt):
        products = jnp.cumsum(prompt.y[:, None] * prompt.x, axis=0)
        return jnp.sum(prompt.x * jnp.pad(products, ((1, 0), (0, 0)))[:-1], axis=1)


class Last(Weighted):
    positions = "last"

    def __call__(self, prompt):
        return super().__call__(prompt)[-1:]


class Host(Weighted):
    traceable = False


def seen(predictor, positions, prompts):
    return responses(predictor, task(), prompts, positions=positions, block=8)


@pytest.fixture(scope="module")
def eleven():
    with jax.enable_x64(True):
        return sample_prompts(task(), key=jax.random.key(0), prompts=11, block=8)


@pytest.fixture
def prompts(eleven):
    with jax.enable_x64(True):
        yield eleven


def test_gradients_are_the_weights(prompts):
    result = seen(Weighted(), (1, 3), prompts)
    x, y = np.asarray(prompts.x), np.asarray(prompts.y)
    for i, position in enumerate((1, 3)):
        w = np.einsum("pi,pid->pd", y[:, :position], x[:, :position])
        np.testing.assert_allclose(result.gradients[:, i], w, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(result.values[:, i], (x[:, position] * w).sum(1), rtol=1e-12, atol=1e-13)


def test_one_that_answers_the_last_position_is_asked_by_shorter_prompts(prompts):
    every, last = (seen(item, (0, 2, LENGTH), prompts) for item in (Weighted(), Last()))
    np.testing.assert_allclose(last.values, every.values, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(last.gradients, every.gradients, rtol=1e-12, atol=1e-13)
    host = seen(Host(), (0, 2, LENGTH), prompts)
    assert host.gradients is None
    np.testing.assert_allclose(host.values, every.values, rtol=1e-12, atol=1e-13)


def test_blocks_and_prompts_drawn_once_are_those_of_answers(getkey):
    from icllab.diagnostics.behaviour.answers import answers

    key, question = getkey(), ResponseQuestion((LENGTH,), False)
    present = answers_to(question, Weighted(), task(), sample_prompts(task(), key=key, prompts=11, block=4), block=5)
    np.testing.assert_allclose(present, answers(question, Weighted(), task(), key=key, prompts=11), rtol=1e-6)


def test_baselines_leave_nothing_of_themselves(prompts):
    """An affine function of the query and of the mean label is left with exactly nothing, another with something."""
    value = baseline_features(prompts, (2, 4))
    x, y = np.asarray(prompts.x), np.asarray(prompts.y)
    np.testing.assert_array_equal(value[:, 1, 0], 1)
    np.testing.assert_array_equal(value[:, 1, 1:-1], x[:, 4])
    np.testing.assert_allclose(value[:, 1, -1], y[:, :4].mean(1), rtol=1e-12)
    from_nothing = baseline_features(prompts, (0,))
    np.testing.assert_array_equal(from_nothing[..., -1], 0)
    result = seen(Weighted(), (2, 4), prompts)
    slope = np.array([0.5, -1.0])
    affine = result._replace(
        values=value @ np.array([0.3, 0.5, -1.0, 2.0]), gradients=np.broadcast_to(slope, result.gradients.shape)
    )
    fit_result = Baselines.from_responses(affine, value)
    np.testing.assert_allclose(fit_result.coefficients, [0.3, 0.5, -1.0, 2.0], rtol=1e-10)
    of_values, of_gradients = fit_result.residuals(affine, value)
    np.testing.assert_array_equal(of_values, 0)
    np.testing.assert_array_equal(of_gradients, 0)
    of_values, of_gradients = Baselines.from_responses(result, value).residuals(result, value)
    assert of_values.min() > 0
    assert of_gradients.mean() == pytest.approx(
        ((result.gradients - result.gradients.mean((0, 1))) ** 2).sum(2).mean(), rel=1e-12
    )


def test_bad_input_is_refused_in_a_line(getkey, prompts):
    with pytest.raises(InputError, match="predictor: expected one number for each position, got"):
        seen(lambda prompt: prompt.x, (2,), prompts)
    with pytest.raises(InputError, match="positions: expected different integers from 0 to 4"):
        compared_positions(task(), (2, 7), getkey())
    assert compared_positions(task(), "last", getkey()) == (LENGTH,)
    assert seen(Ridge(1.0), (0,), prompts).values.max() == 0


class Shrunk(Ridge):
    """Answers with half of what its weights say."""

    def __call__(self, prompt):
        return super().__call__(prompt) / 2


def test_the_weights_of_a_linear_predictor_are_its_slopes_and_of_none_that_answers_otherwise(getkey):
    """By two routes, at two positions; and for the network of half the answers, half of both."""
    with jax.enable_x64(True):
        prompts, at = sample_prompts(task(), key=getkey(), prompts=8), (2, 4)
        result = responses(Ridge(0.5), task(), prompts, positions=at, block=8)
        from_derivatives = answers_to(ResponseQuestion(at, True), Ridge(0.5), task(), prompts, block=8)
        np.testing.assert_allclose(result.values, from_derivatives[:, :2], rtol=1e-10)
        np.testing.assert_allclose(result.gradients, from_derivatives[:, 2:].reshape(8, 2, DIM), rtol=1e-10)
        half = responses(Shrunk(0.5), task(), prompts, positions=at, block=8)
        np.testing.assert_allclose(half.values, result.values / 2, rtol=1e-10)
        np.testing.assert_allclose(half.gradients, result.gradients / 2, rtol=1e-10)
        direct = answers_to(LinearResponseQuestion(at), Ridge(0.5), task(), prompts, block=8)
        np.testing.assert_allclose(direct, from_derivatives, rtol=1e-10)
