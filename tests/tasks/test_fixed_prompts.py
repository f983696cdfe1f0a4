"""A fixed set as a task: which prompts it gives, how often, and whose loss it has."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import icllab as icl
from icllab.algorithms import Ridge
from icllab.core.errors import InputError
from icllab.diagnostics import per_length
from icllab.tasks import FixedPrompts, LinearRegression, RepeatedTokens
from icllab.training import Sweep


@pytest.fixture(scope="module")
def fixed():
    task = LinearRegression.convention("raventos", dim=2, length=3)
    return FixedPrompts.from_task(task, 6, key=jax.random.key(0))


@eqx.filter_jit
def sampled(fixed, keys):
    return jax.vmap(lambda key: fixed.sample(key=key))(keys)


def indices(fixed, key, count):
    """Which prompts of the set are drawn; every prompt must be one of them, entry by entry."""
    drawn = sampled(fixed, jax.random.split(key, count))
    same = np.all(np.asarray(drawn.x)[:, None] == np.asarray(fixed.prompts.x)[None], axis=(2, 3))
    np.testing.assert_array_equal(same.sum(axis=1), 1)
    found = same.argmax(axis=1)
    np.testing.assert_array_equal(drawn.y, np.asarray(fixed.prompts.y)[found])
    return found


@pytest.mark.parametrize("size", [1, 4, 6])
def test_prompts_are_drawn_evenly_from_the_first_of_the_set_and_from_no_other(fixed, size, getkey):
    fixed = eqx.tree_at(lambda task: task.size, fixed, jnp.asarray(float(size)))
    draws = 3000
    counts = np.bincount(indices(fixed, getkey(), draws), minlength=6)
    assert (counts[size:] == 0).all()
    error = np.sqrt(draws / size * (1 - 1 / size))
    assert np.all(np.abs(counts[:size] - draws / size) <= 4 * error)


def test_the_loss_is_that_of_the_task(fixed):
    prompt = each(fixed.prompts)[0]
    np.testing.assert_allclose(fixed.loss(jnp.asarray(np.asarray(prompt.y) + 2), prompt), np.full(4, 4.0), rtol=1e-5)


def test_its_mean_loss_is_the_training_loss(fixed, getkey):
    ridge = Ridge(0.25)
    losses = jax.jit(lambda prompt: fixed.loss(ridge(prompt), prompt))
    exact = np.mean([np.asarray(losses(prompt))[-1] for prompt in each(fixed.prompts)])
    losses = per_length({"ridge": ridge}, fixed, key=getkey(), prompts=4096)
    mean, error = (float(losses[name].sel(predictor="ridge", position=3)) for name in ("loss", "standard_error"))
    assert error < 0.1 * exact
    assert abs(mean - exact) < 4 * error


def each(prompts):
    return [jax.tree.map(lambda leaf, i=i: jnp.asarray(np.asarray(leaf)[i]), prompts) for i in range(len(prompts.y))]


def test_members_trained_on_sets_of_different_sizes_are_one_ensemble(fixed, getkey):
    """On a single prompt the ridge that is trained fits that prompt; the member with all prompts is another."""
    sweep = Sweep({"task.size": [1.0, 6.0]}, mode="map")
    run = icl.fit(Ridge(0.25), fixed, steps=30, key=getkey(), batch=8, sweep=sweep)
    assert run.size == 2
    one, all_of_them = (float(run.member(i).ridge) for i in range(2))
    assert one != all_of_them
    alone = eqx.tree_at(lambda task: task.size, fixed, jnp.asarray(1.0))
    again = icl.fit(Ridge(0.25), alone, steps=30, key=jax.random.key(9), batch=8)
    np.testing.assert_allclose(float(again.predictor.ridge), one, rtol=1e-5)


def test_a_size_beyond_the_set_is_no_last_prompt():
    regression = LinearRegression.convention("raventos", dim=2, length=3)
    task = FixedPrompts.from_task(regression, 4, key=jax.random.key(0))
    wide = eqx.tree_at(lambda t: t.size, task, jnp.asarray(4e6))  # as of a sweep, which no field checks
    assert np.isnan(eqx.filter_jit(wide.sample_many)(8, key=jax.random.key(1)).y).all()
    tokens = FixedPrompts.from_task(RepeatedTokens(3, 2), 4, key=jax.random.key(0))
    prompt = eqx.tree_at(lambda t: t.size, tokens, jnp.asarray(4e6)).sample(key=jax.random.key(1))
    assert np.isnan(tokens.loss(jnp.zeros((3, 3)), prompt)).all()


def test_prompts_whose_differences_are_rounded_away_are_refused(fixed):
    """As arrays of NumPy in float64; those of JAX have been rounded by their owner."""
    y = np.asarray(fixed.prompts.y, np.float64)
    FixedPrompts(fixed.task, eqx.tree_at(lambda prompt: prompt.y, fixed.prompts, y), 6)
    late = eqx.tree_at(lambda prompt: prompt.y, fixed.prompts, y + 1.7e9)
    with pytest.raises(InputError, match=r"prompts.y: expected numbers whose differences float32 holds"):
        FixedPrompts(fixed.task, late, 6)
