"""The loss of a run's members at its steps: the task's own, and one program for all."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import unchecked

import icllab as icl
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics import HMC, LocalPosterior, along, coefficient_at_temperature
from icllab.diagnostics.sampling.chains import _turns
from icllab.diagnostics.sampling.run_losses import network_loss, prompts_for, run_loss
from icllab.models import LinearAttention
from icllab.tasks import LinearRegression
from icllab.training import Record, Sweep


@pytest.fixture(scope="module")
def trained():
    task = LinearRegression.from_scaling(dim=2, alpha=2.0, kappa=1.0, rho=0.1, key=jax.random.key(0))

    def build(*, key):
        return LinearAttention.init(
            dim=2, layers=1, std=0.5, sign=1, answers="every", causal=True, query_is_key=False, normalised=True, key=key
        )

    members = icl.ensemble(build, seeds=1, key=jax.random.key(1))
    run = icl.fit(
        members,
        task,
        steps=3,
        key=jax.random.key(2),
        batch=8,
        sweep=Sweep({"task.noise_variance": [0.1, 0.5]}, mode="map"),
        record=Record(keep=(1, 2)),
    )
    return task, run, eqx.filter_jit(lambda key: task.sample_many(20, key=key))(jax.random.key(3))


@eqx.filter_jit
def mean_loss(model, task, prompts):
    return jnp.mean(jax.vmap(task.loss)(jax.vmap(model)(prompts), prompts))


@eqx.filter_jit
def applied(loss, params, prompts):
    return loss(params, prompts)


def shape_of(prompts):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), prompts)


def test_a_members_loss_is_the_tasks(trained):
    task, run, prompts = trained
    for step in (None, 1):
        loss, params = run_loss(run, step, 1, task, per_position=False, prompt=shape_of(prompts))
        model = (run.members if step is None else run.trajectory.at(step)).member(1)
        wanted = mean_loss(model, task, prompts)
        np.testing.assert_allclose(applied(loss, params, prompts), wanted, rtol=1e-5)
        assert float(loss.task.noise_variance) == pytest.approx(0.5)  # the member's own
        terms, _ = run_loss(run, step, 1, task, per_position=True, prompt=shape_of(prompts))
        found = np.asarray(applied(terms, params, prompts))
        assert found.ndim == 1
        np.testing.assert_allclose(np.sum(found), wanted, rtol=1e-5)
    with pytest.raises(InputError, match=r"step: expected one of the kept steps \[1, 2\], got 3"):
        run_loss(run, 3, 0, task, per_position=False, prompt=shape_of(prompts))


def test_what_is_drawn_and_which_steps(trained):
    task, run, prompts = trained
    assert prompts_for(task, prompts, key=jax.random.key(0)) is prompts
    np.testing.assert_array_equal(prompts_for(task, jax.tree.map(np.asarray, prompts), key=None).y, prompts.y)
    with pytest.raises(InputError, match="key: expected one random key of JAX, got 0"):
        network_loss(run.member(0), task, key=0, data=prompts)
    assert prompts_for(task, 7, key=jax.random.key(0)).y.shape[0] == 7
    with pytest.raises(InputError, match="task: expected the task, which owns the loss"):
        prompts_for(None, 7, key=jax.random.key(0))


@pytest.mark.slow
def test_steps_and_members_share_a_program(trained):
    """Two steps of two members: the later posteriors compile no sampler again."""
    task, run, prompts = trained
    how = {"sampler": HMC(warm_up=8, draws=24, mode="vmap"), "checks": (), "key": jax.random.key(4)}

    def estimate(member, step):
        posterior = LocalPosterior.from_run(run, step, task=task, data=prompts, member=member)
        return coefficient_at_temperature(posterior, **how)

    first = estimate(0, 1)
    compiled = _turns._cached._cache_size()
    table = along(
        "member", {member: along("step", {1: estimate(member, 1), 2: estimate(member, 2)}) for member in (0, 1)}
    )
    assert _turns._cached._cache_size() == compiled
    assert table["estimate"].sizes == {"member": 2, "step": 2}
    assert table.attrs["n"] == 20
    assert table.attrs["warnings"][0].startswith("member 0: step 1: ")
    assert np.unique(table["estimate"].sel(step=2)).size == 2
    assert float(table["estimate"][0, 0]) == float(first["estimate"])


def test_a_posterior_is_that_of_one_kept_step_of_one_member(trained):
    task, run, prompts = trained
    posterior = LocalPosterior.from_run(run, np.int64(2), task=task, data=prompts, member=1, per_position=True)
    assert posterior.temperature == pytest.approx(20 / np.log(20))
    wanted = mean_loss(run.trajectory.at(2).member(1), task, prompts)
    np.testing.assert_allclose(np.sum(applied(posterior.loss, posterior.at, prompts)), wanted, rtol=1e-5)
    for options, said in (
        ({"step": 3}, r"step: expected one of the kept steps \[1, 2\], got 3"),
        ({"step": [1, 2]}, "step: expected one step that was kept, or None, got"),
        ({"member": 2}, "member: expected an integer from 0 to 1, got 2"),
        ({"data": 64}, "data: expected prompts, got 64; task.sample_many"),
    ):
        with unchecked(), pytest.raises(InputError, match=said):
            LocalPosterior.from_run(run, **({"step": 1, "task": task, "data": prompts} | options))


def test_the_loss_of_padded_prompts_is_the_mean_over_their_targets_in_any_blocks(trained):
    task, run, prompts = trained
    mask = np.arange(5)[None] < 1 + np.arange(20)[:, None] % 5
    padded = jax.vmap(lambda p, m: RegressionPrompt(p.x, p.y, m))(prompts, jnp.asarray(mask))
    options = {"prompt": shape_of(padded), "data": padded}
    loss, params = run_loss(run, None, 0, task, per_position=False, **options)
    model = run.member(0)
    rows = np.where(mask, eqx.filter_jit(lambda m: jax.vmap(lambda p: task.loss(m(p), p))(prompts))(model), 0)
    wanted = rows.sum() / np.sum(mask)
    np.testing.assert_allclose(applied(loss, params, padded), wanted, rtol=1e-5)
    blocks = [jax.tree.map(lambda leaf, at=at: leaf[at : at + 4], padded) for at in range(0, 20, 4)]
    np.testing.assert_allclose(np.mean([applied(loss, params, block) for block in blocks]), wanted, rtol=1e-5)
    of_network, point, sample = network_loss(model, task, key=jax.random.key(0), data=padded)
    np.testing.assert_allclose(applied(of_network, point, sample), wanted, rtol=1e-5)
    parts = [applied(of_network, point, block) for block in blocks]
    np.testing.assert_allclose(np.mean(parts), wanted, rtol=1e-5)
    terms, _ = run_loss(run, None, 0, task, per_position=True, **options)
    np.testing.assert_allclose(applied(terms, params, padded), rows.sum(axis=0) / np.sum(mask), rtol=1e-5)
    gradient = eqx.filter_jit(jax.grad(lambda p: loss(p, blocks[0])))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
