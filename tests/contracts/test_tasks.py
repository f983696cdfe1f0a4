"""Every task: pure in its key, finite, batched and compiled without change, with a loss of its own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.cases import TASKS, cast

from icllab.tasks.classification import AbstractClassification

pytestmark = pytest.mark.parametrize("name", TASKS)


def test_the_same_key_gives_the_same_prompt_and_another_key_another(name, getkey):
    task, key = TASKS[name](), getkey()
    assert eqx.tree_equal(task.sample(key=key), task.sample(key=key))
    assert not eqx.tree_equal(task.sample(key=key), task.sample(key=getkey()))


@pytest.mark.parametrize("precision", ["float64", pytest.param("float32", marks=pytest.mark.slow)], indirect=True)
def test_jit_and_vmap_change_nothing(name, precision, getkey):
    task = cast(TASKS[name](), precision)
    keys = jax.random.split(getkey(), 3)
    eager = [task.sample(key=k) for k in keys]
    batched = jax.jit(jax.vmap(lambda k: task.sample(key=k)))(keys)
    tolerance = 1e-5 if precision == "float32" else 1e-12
    for i, one in enumerate(eager):
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(batched), strict=True):
            assert a.dtype == jnp.dtype(precision) or not jnp.issubdtype(a.dtype, jnp.inexact)
            np.testing.assert_allclose(a, b[i], rtol=tolerance, atol=tolerance)


def test_a_prompt_has_one_position_more_than_its_length(name, getkey):
    task = TASKS[name]()
    prompt = task.sample(key=getkey())
    assert prompt.positions == task.length + 1
    assert prompt.length == task.length


def test_the_loss_is_zero_at_the_target_and_differentiable(name, getkey):
    task = TASKS[name]()
    prompt = task.sample(key=getkey())
    if isinstance(task, AbstractClassification):
        certain = jax.nn.one_hot(task.targets(prompt), 9)  # more classes than any task here has
        np.testing.assert_array_equal(task.loss(1e3 * certain, prompt), np.zeros(prompt.positions))
        np.testing.assert_array_equal(task.accuracy(certain, prompt), np.ones(prompt.positions))
        gradient = jax.grad(lambda p: jnp.sum(task.loss(p, prompt)))(jnp.zeros_like(certain))
        np.testing.assert_allclose(gradient, 1 / 9 - certain, atol=1e-6)
        return
    np.testing.assert_array_equal(task.loss(prompt.y, prompt), np.zeros(prompt.positions))
    gradient = jax.grad(lambda p: jnp.sum(task.loss(p, prompt)))(jnp.zeros_like(prompt.y))
    np.testing.assert_allclose(gradient, -2 * prompt.y, rtol=1e-6)


def test_a_task_is_a_tree_of_arrays_that_survives_a_round_trip(name, getkey, tmp_path):
    task = TASKS[name]()
    eqx.tree_serialise_leaves(tmp_path / "task.eqx", task)
    assert eqx.tree_equal(eqx.tree_deserialise_leaves(tmp_path / "task.eqx", task), task)
