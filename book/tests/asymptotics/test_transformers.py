"""What claims about trained transformers share: how their learning rates change, and their errors on given prompts."""

import equinox as eqx
import jax
import numpy as np
import pytest
from drawing import prompt_of, with_normal_weights

from iclbook.claims.asymptotics._transformers import annealed_adam, last_errors, transformer, warmup_adam
from icllab.algorithms import Ridge
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import FixedPrompts, LinearRegression


def rates(one, steps):
    """The learning rate before every update: Adam moves against a constant gradient by just that."""
    changes = []
    with jax.numpy_dtype_promotion("standard"):
        state, update = jax.jit(one.init)(np.float32(0.0)), jax.jit(one.update)
        for _ in range(steps + 1):
            change, state = update(np.float32(1.0), state, np.float32(0.0))
            changes.append(-float(np.asarray(change)))
    return changes


def test_the_annealed_rate_rises_for_a_twentieth_and_falls_to_zero():
    changes = rates(annealed_adam(0.1, 40.0), 40)
    assert changes[0] == 0.0
    assert np.argmax(changes) == 2  # a twentieth
    np.testing.assert_allclose(changes[20], 0.05, rtol=1e-3)
    np.testing.assert_allclose(changes[40], 0.0, atol=1e-7)


def test_the_warmed_rate_rises_for_a_tenth_to_what_is_swept_and_falls_to_zero():
    changes = rates(warmup_adam(40)(0.1), 40)
    assert changes[0] == 0.0
    assert np.argmax(changes) == 4  # a tenth
    np.testing.assert_allclose(changes[4], 0.1, rtol=1e-3)
    np.testing.assert_allclose(changes[40], 0.0, atol=1e-7)
    assert warmup_adam(40) is warmup_adam(40)  # one object is compiled once


def test_the_errors_are_those_of_the_task_at_the_last_position(getkey):
    task, ridge = LinearRegression.convention("raventos", dim=2, length=5), Ridge(0.25)
    prompts = eqx.filter_jit(lambda key: FixedPrompts.from_task(task, 7, key=key))(getkey()).prompts
    losses = jax.jit(lambda prompt: task.loss(ridge(prompt), prompt))
    each = [losses(jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], prompts)) for i in range(7)]
    np.testing.assert_allclose(last_errors(ridge, prompts), np.array(each)[:, -1], rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 2])
def test_the_transformer_answers_every_position_causally(heads):
    prompt, key = prompt_of(0, positions=4, dim=2), jax.random.key(0)
    network = with_normal_weights(lambda: transformer(dim=2, width=4, layers=1, heads=heads, key=key), seed=1)
    gradient = np.asarray(jax.jit(jax.jacobian(lambda x: network(RegressionPrompt(x=x, y=prompt.y))))(prompt.x))
    assert gradient.shape == (4, 4, 2)
    for answered in range(4):
        assert (gradient[answered, answered + 1 :] == 0).all()
        assert (gradient[answered, answered] != 0).any()
