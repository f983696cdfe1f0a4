"""Inactive coordinates are zero, inactive positions in no loss, and a run goes on in the step where it stood."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawing import sampled_many

import icllab as icl
from icllab.core.errors import InputError
from icllab.diagnostics import per_length
from icllab.models import BlockOptions, Interleaved, Transformer
from icllab.tasks import Curriculum, FunctionRegression, LinearRegression, RepeatedTokens, SphereInputs
from icllab.training.streams import Stream, losses_at, mean_loss

KEY = jax.random.key(0)
TASK = LinearRegression.convention("garg", dim=4, length=5)
SMALL = {"dim": 2, "positions": 2, "interval": 3}


def network():
    block = BlockOptions(heads=1, mlp=None, norm="none")
    shape = {"dim": 4, "width": 4, "layers": 1, "block": block, "positions": "none"}
    return Transformer(Interleaved(), **shape, key=KEY)


def test_the_papers_schedule():
    task = Curriculum(LinearRegression.convention("garg", dim=20, length=40))
    for step, dim, positions in (
        (0, 5, 11),
        (1999, 5, 11),
        (2000, 6, 13),
        (29999, 19, 39),
        (30000, 20, 41),
        (10**6, 20, 41),
    ):
        at = task.at_step(jnp.int32(step))
        assert (int(at.active_dim), int(at.active_positions)) == (dim, positions)
    assert (int(task.active_dim), int(task.active_positions), task.length) == (20, 41, 40)


@pytest.mark.parametrize(("step", "dim", "positions"), [(0, 2, 2), (2, 2, 2), (3, 3, 4), (8, 4, 6), (99, 4, 6)])
def test_what_is_inactive_is_zero_and_masked_and_the_rest_is_the_tasks(step, dim, positions):
    prompts = jax.jit(lambda t: Curriculum(TASK, **SMALL).at_step(t).sample_many(8, key=KEY))(jnp.int32(step))
    plain = sampled_many(TASK, 8, KEY)
    np.testing.assert_array_equal(prompts.mask.sum(axis=1), positions)
    np.testing.assert_allclose(prompts.x[:, :positions, :dim], plain.x[:, :positions, :dim], rtol=1e-6)
    assert not np.any(prompts.x[..., dim:])
    assert not np.any(prompts.x[:, positions:])
    # Labels are those of the truncated inputs: a linear function of them alone.
    if dim < positions:
        for x, y in zip(np.asarray(prompts.x[:, :positions, :dim]), np.asarray(prompts.y[:, :positions]), strict=True):
            np.testing.assert_allclose(x @ np.linalg.lstsq(x, y)[0], y, atol=1e-4)
    if dim == 4:
        np.testing.assert_allclose(prompts.y[:, :positions], plain.y[:, :positions], rtol=1e-6)


def test_a_kernel_sees_truncated_inputs():
    function = FunctionRegression(4, 5, SphereInputs(1.0), kernel="linear", temperature=1.0, noise_variance=0.0)
    prompt = jax.jit(lambda t: Curriculum(function, **SMALL).at_step(t).sample(key=KEY))(jnp.int32(3))
    assert not np.any(prompt.x[:, 3:])
    assert np.all(prompt.x[:4, :3])


def test_a_step_of_fit_draws_from_the_task_of_that_step():
    task, stream = Curriculum(TASK, **SMALL), Stream("fresh", 2)
    for step in (0, 3):
        prompts, _ = stream.draw(task, None, stream.begin(task, KEY, jnp.int32(step)), KEY, jnp.int32(step))
        wanted = sampled_many(task.at_step(jnp.int32(step)), 2, jax.random.fold_in(KEY, step))
        np.testing.assert_allclose(prompts.x, wanted.x, rtol=1e-6)
    reused = Stream("fresh", 2, reuse=3)
    prompts = reused.begin(task, KEY, jnp.int32(5))  # of the steps 3 to 5
    np.testing.assert_array_equal(prompts.mask.sum(axis=1), [4, 4])


def test_inactive_positions_are_in_no_loss_and_the_end_is_that_of_the_task():
    options = {"batch": 2, "optimizer": optax.sgd(0.01), "record": "every"}
    run = icl.fit(network(), Curriculum(TASK, **SMALL), steps=7, key=KEY, **options)
    losses = run.dataset.training_loss[0]
    np.testing.assert_array_equal(np.isfinite(losses).sum(axis=1), [2, 2, 2, 4, 4, 4, 6, 6])
    assert run.dataset.status.item() == "ok"
    result = per_length(network(), Curriculum(TASK, **SMALL), key=KEY, prompts=4)
    np.testing.assert_allclose(result.loss, per_length(network(), TASK, key=KEY, prompts=4).loss, rtol=1e-5)


def test_the_gradient_is_that_of_shorter_prompts():
    prompts = sampled_many(Curriculum(TASK, **SMALL).at_step(jnp.int32(0)), 3, KEY)
    short = jax.vmap(
        lambda prompt: eqx.tree_at(lambda p: p.mask, prompt, None, is_leaf=lambda x: x is None).alone(1, size=2)
    )(prompts)

    def gradient(prompts, total):
        def objective(model):
            positions = tuple(range(total))
            return mean_loss(losses_at(model, TASK, prompts, positions, total), prompts, positions)

        return jax.tree.leaves(eqx.filter_jit(eqx.filter_grad(objective))(network()))

    for leaf, wanted in zip(gradient(prompts, 6), gradient(short, 2), strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=1e-4, atol=1e-6)


def test_a_run_goes_on_in_the_step_where_it_stood(tmp_path):
    options = {"key": KEY, "batch": 2, "optimizer": optax.sgd(0.01), "record": "every"}
    task = Curriculum(TASK, **SMALL)
    straight = icl.fit(network(), task, steps=6, **options)
    icl.fit(network(), task, steps=2, store=tmp_path, **options)
    resumed = icl.fit(network(), task, steps=6, store=tmp_path, **options)
    np.testing.assert_array_equal(resumed.dataset.training_loss, straight.dataset.training_loss)
    with pytest.raises(InputError, match="holds a run of another configuration"):
        icl.fit(network(), Curriculum(TASK, **(SMALL | {"interval": 2})), steps=6, store=tmp_path, **options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dim": 5}, "dim: expected an integer from 1 to 4, got 5"),
        ({"dim": 0}, "dim: expected an integer from 1 to 4, got 0"),
        ({"dim": 2}, "positions: expected an integer from 1 to 6, got 11"),
        ({"dim": 2, "positions": 2, "interval": 0}, "interval: expected an integer of at least 1, got 0"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        Curriculum(TASK, **fields)


def test_a_task_without_inputs_is_refused():
    with pytest.raises(
        InputError, match="task: expected a regression with a distribution of inputs, got 'RepeatedTokens'"
    ):
        inspect.unwrap(Curriculum)(RepeatedTokens(4, 3))
