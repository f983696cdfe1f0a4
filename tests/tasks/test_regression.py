"""What tasks of real numbers share: the squared error at the positions answered, and checks of fields."""

from inspect import unwrap  # without the types that are checked in tests

import jax.numpy as jnp
import numpy as np
import pytest
from contracts.cases import TASKS

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.tasks.hierarchical_regression import HierarchicalRegression
from icllab.tasks.regression import answered

PROMPT = RegressionPrompt(x=jnp.zeros((3, 2)), y=jnp.array([1.0, 2.0, 4.0]))


def test_the_loss_is_the_squared_error_at_the_positions_answered():
    task = HierarchicalRegression(2, 2, 1)
    np.testing.assert_array_equal(task.loss(jnp.zeros(3), PROMPT), [1.0, 4.0, 16.0])
    np.testing.assert_array_equal(task.loss(jnp.array([1.0]), PROMPT), [9.0])


def test_every_position_is_answered_or_the_last():
    assert [answered(jnp.zeros(n), PROMPT) for n in (1, 3)] == [1, 3]
    with pytest.raises(InputError, match=r"prediction: expected \(3,\), got \(2,\)"):
        answered(jnp.zeros(2), PROMPT)


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_for_a_key_is_refused(name):
    task = TASKS[name]()
    with pytest.raises(InputError, match=r"^key: expected one random key of JAX, got 0; jax.random.key\(0\) makes one"):
        unwrap(type(task).sample)(task, key=0)
