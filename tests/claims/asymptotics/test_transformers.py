"""What claims about trained transformers share: how their learning rates change, and their errors on given prompts."""

import jax
import numpy as np
import pytest

from icllab.algorithms import Ridge
from icllab.claims.asymptotics._transformers import annealed, last_errors, transformer, warmed
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import FixedPrompts, LinearRegression


def rates(one, steps):
    """The learning rate before every update: Adam moves against a constant gradient by just that."""
    changes = []
    with jax.numpy_dtype_promotion("standard"):
        state, update = one.init(np.float32(0.0)), jax.jit(one.update)
        for _ in range(steps + 1):
            change, state = update(np.float32(1.0), state, np.float32(0.0))
            changes.append(-float(np.asarray(change)))
    return changes


def test_the_annealed_rate_rises_for_a_twentieth_and_falls_to_zero():
    changes = rates(annealed(0.1, 40.0), 40)
    assert changes[0] == 0.0
    assert np.argmax(changes) == 2  # a twentieth
    np.testing.assert_allclose(changes[20], 0.05, rtol=1e-3)
    np.testing.assert_allclose(changes[40], 0.0, atol=1e-7)


def test_the_warmed_rate_rises_for_a_tenth_to_what_is_swept_and_falls_to_zero():
    changes = rates(warmed(40)(0.1), 40)
    assert changes[0] == 0.0
    assert np.argmax(changes) == 4  # a tenth
    np.testing.assert_allclose(changes[4], 0.1, rtol=1e-3)
    np.testing.assert_allclose(changes[40], 0.0, atol=1e-7)
    assert warmed(40) is warmed(40)  # one object is compiled once


def test_the_errors_are_those_of_the_task_at_the_last_position(getkey):
    task, ridge = LinearRegression.convention("raventos", dim=2, length=5), Ridge(0.25)
    prompts = FixedPrompts.drawn(task, 7, key=getkey()).prompts
    one = (RegressionPrompt(x=prompts.x[i], y=prompts.y[i]) for i in range(7))
    np.testing.assert_allclose(last_errors(ridge, prompts), [task.loss(ridge(p), p)[-1] for p in one], rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 2])
def test_the_transformer_answers_every_position_causally(heads, getkey):
    prompt = LinearRegression.convention("raventos", dim=2, length=3).sample(key=getkey())
    network = transformer(dim=2, width=4, layers=1, heads=heads, key=getkey())
    gradient = np.asarray(jax.jacobian(lambda x: network(RegressionPrompt(x=x, y=prompt.y)))(prompt.x))
    assert gradient.shape == (4, 4, 2)
    for answered in range(4):
        assert (gradient[answered, answered + 1 :] == 0).all()
        assert (gradient[answered, answered] != 0).any()
