"""Every task: pure in its key, finite, batched and compiled without change, with a loss of its own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.cases import TASKS, cast
from drawing import sampled, sampled_batch

from icllab.core.prompt import scored_positions
from icllab.tasks import Mixture
from icllab.tasks.classification import AbstractClassification, SignLabels

# One case after the other: what is compiled for a case is used by all of its tests.
pytestmark = pytest.mark.parametrize("name", TASKS, scope="module")
in_float64 = pytest.mark.parametrize("precision", ["float64"], indirect=True)


def same(one, other):
    """Equal to the bit, leaf by leaf."""
    return all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    ) and jax.tree.structure(one) == jax.tree.structure(other)


@eqx.filter_jit
def losses(task, prediction, prompt):
    """The loss at every position, and at a prediction of zeros the gradient of their sum."""
    return task.loss(prediction, prompt), jax.grad(lambda p: jnp.nansum(task.loss(p, prompt)))(
        jnp.zeros_like(prediction)
    )


@in_float64
def test_the_same_key_gives_the_same_prompt_and_another_key_another(name, precision, getkey):
    task, key = cast(TASKS[name](), precision), getkey()
    prompt = sampled(task, key)
    assert same(prompt, sampled(task, key))
    assert not same(prompt, sampled(task, getkey()))


@pytest.mark.parametrize("precision", ["float64", pytest.param("float32", marks=pytest.mark.slow)], indirect=True)
def test_vmap_changes_nothing(name, precision, getkey):
    task, keys = cast(TASKS[name](), precision), jax.random.split(getkey(), 3)
    batched = sampled_batch(task, keys)
    tolerance = 1e-5 if precision == "float32" else 1e-12
    for i, key in enumerate(keys):
        for a, b in zip(jax.tree.leaves(sampled(task, key)), jax.tree.leaves(batched), strict=True):
            assert a.dtype == jnp.dtype(precision) or not jnp.issubdtype(a.dtype, jnp.inexact)
            np.testing.assert_allclose(a, np.asarray(b)[i], rtol=tolerance, atol=tolerance)


@in_float64
def test_a_prompt_has_one_position_more_than_its_length(name, precision, getkey):
    task = cast(TASKS[name](), precision)
    prompt = sampled(task, getkey())
    assert prompt.positions == task.length + 1
    assert prompt.length == task.length


@in_float64
def test_the_loss_is_zero_at_the_target_and_differentiable(name, precision, getkey):
    task = cast(TASKS[name](), precision)
    prompt = sampled(task, getkey())
    judge = task.tasks[0] if isinstance(task, Mixture) else task
    if isinstance(judge, AbstractClassification):
        certain = np.eye(judge.class_count, dtype=precision)[np.asarray(judge.targets(prompt))]
        loss, gradient = losses(task, 1e3 * certain, prompt)
        mask = scored_positions(prompt)
        counts = np.ones(prompt.positions, bool) if mask is None else np.asarray(mask)
        np.testing.assert_array_equal(loss, np.where(counts, 0, np.nan))
        accuracies = eqx.filter_jit(task.accuracy)(certain, prompt)
        np.testing.assert_array_equal(accuracies, np.where(counts, 1, np.nan))
        np.testing.assert_allclose(gradient, (1 / judge.class_count - certain) * counts[:, None], atol=1e-6)
        return
    if isinstance(task, SignLabels):
        loss, gradient = losses(task, 1e3 * prompt.y, prompt)
        np.testing.assert_array_equal(loss, np.zeros(prompt.positions))
        np.testing.assert_array_equal(eqx.filter_jit(task.accuracy)(prompt.y, prompt), np.ones(prompt.positions))
        np.testing.assert_allclose(gradient, -prompt.y / 2, rtol=1e-6)
        return
    loss, gradient = losses(task, prompt.y, prompt)
    np.testing.assert_array_equal(loss, np.zeros(prompt.positions))
    np.testing.assert_allclose(gradient, -2 * prompt.y, rtol=1e-6)


def test_a_task_is_a_tree_of_arrays_that_survives_a_round_trip(name, tmp_path):
    task = TASKS[name]()
    eqx.tree_serialise_leaves(tmp_path / "task.eqx", task)
    assert same(eqx.tree_deserialise_leaves(tmp_path / "task.eqx", task), task)
