"""Padded prompts train exactly as the sequences alone: values, gradients, records and held-out losses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training.predictors import Slope

import icllab as icl
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt, TokenPrompt
from icllab.models import BlockOptions, Interleaved, Tokens, Transformer
from icllab.tasks import LinearRegression, MarkovChain, RepeatedTokens
from icllab.training import Record
from icllab.training.streams import length_terms, losses_at, mean_loss

SIZES = (6, 3, 2)
KEY = jax.random.key(0)


def network(arrangement, dim, std=None):
    block = BlockOptions(heads=1, mlp=None, norm="none")
    shape = {"dim": dim, "width": 8, "layers": 1, "block": block, "positions": "learned", "length": 8}
    return Transformer(arrangement, **shape, std=std, key=KEY)


def of_tokens():
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 5, n + 1) for n in SIZES]
    alone = [TokenPrompt(jnp.asarray(row, jnp.int32)) for row in rows]
    return network(Tokens(5), 5), RepeatedTokens(5, 4), TokenPrompt.from_ragged(rows), alone


def of_regression():
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in SIZES]
    alone = [RegressionPrompt(jnp.asarray(x, float), jnp.asarray(y, float)) for x, y in rows]
    task = LinearRegression.convention("garg", dim=2, length=5)
    return network(Interleaved(), 2), task, RegressionPrompt.from_ragged(rows), alone


CASES = {"tokens": of_tokens, "regression": of_regression}
EVERY = tuple(range(6))


def losses_alone(model, task, alone):
    return [task.loss(model(prompt), prompt) for prompt in alone]


@pytest.mark.parametrize("name", CASES)
def test_a_padded_batch_has_the_loss_and_gradient_of_the_sequences_alone(name):
    model, task, padded, alone = CASES[name]()

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def of_padded(model):
        return mean_loss(losses_at(model, task, padded, EVERY, 6), padded, EVERY)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def of_alone(model):
        return jnp.mean(jnp.concatenate(losses_alone(model, task, alone)))

    for part, wanted in zip(*map(jax.tree.leaves, (of_padded(model), of_alone(model))), strict=True):
        np.testing.assert_allclose(part, wanted, rtol=1e-4, atol=1e-6)


def test_terms_add_up_and_a_position_without_targets_adds_nothing():
    model, task, padded, alone = of_tokens()
    short = jax.tree.map(lambda leaf: leaf[1:3], padded)
    losses = losses_at(model, task, short, EVERY, 6)
    assert np.isnan(losses).tolist() == [False] * 3 + [True] * 3
    terms = length_terms(losses, short, EVERY)
    rows = losses_alone(model, task, alone[1:3])
    np.testing.assert_allclose(terms[2:], [rows[0][2] / 5, 0, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(jnp.sum(terms), np.mean(np.concatenate(rows)), rtol=1e-5)
    of_model = eqx.filter_grad(lambda m: mean_loss(losses_at(m, task, short, EVERY, 6), short, EVERY))
    gradient = eqx.filter_jit(of_model)(model)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_a_step_of_fit_is_that_of_the_sequences_alone(getkey):
    model, task, padded, alone = of_tokens()
    options = {"steps": 1, "key": getkey(), "batch": None, "optimizer": optax.sgd(0.1), "record": "every"}
    run = icl.fit(
        model,
        task,
        data=padded,
        **options,
    )

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient_of(model):
        return jnp.mean(jnp.concatenate(losses_alone(model, task, alone)))

    gradient = gradient_of(model)
    wanted = jax.tree.leaves(jax.tree.map(lambda p, g: p - 0.1 * g, eqx.filter(model, eqx.is_array), gradient))
    for part, value in zip(jax.tree.leaves(eqx.filter(run.members.member(0), eqx.is_array)), wanted, strict=True):
        np.testing.assert_allclose(part, value, rtol=1e-4, atol=1e-6)
    rows = np.full((3, 6), np.nan)
    for row, losses in zip(rows, losses_alone(model, task, alone), strict=True):
        row[: len(losses)] = losses
    np.testing.assert_allclose(run.dataset.training_loss[0, 0], np.nanmean(rows, axis=0), rtol=1e-4)
    assert run.dataset.status.item() == "ok"


@pytest.mark.slow
def test_held_out_losses_leave_padding_out(getkey):
    model, task, padded, alone = of_tokens()
    run = icl.fit(model, task, data=padded, steps=1, key=getkey(), batch=2, record=Record(held_out=padded))
    assert run.dataset.status.item() == "ok"
    rows = np.array([[*losses, *[np.nan] * (6 - len(losses))] for losses in losses_alone(model, task, alone)])
    count = np.sum(np.isfinite(rows), axis=0)
    np.testing.assert_allclose(run.dataset.held_out_loss[0, 0], np.nanmean(rows, axis=0), rtol=1e-4)
    error = np.nanstd(rows[:, :3], axis=0, ddof=1) / np.sqrt(count[:3])
    np.testing.assert_allclose(run.dataset.held_out_error[0, 0, :3], error, rtol=1e-3)
    assert np.isnan(run.dataset.held_out_error[0, 0, 3:]).all()  # of one prompt


def test_held_out_means_and_errors_are_over_the_prompts_that_have_a_target(getkey):
    """The count of a position is its own, not that of all prompts."""
    rng = np.random.default_rng(0)
    lengths, x, y = np.array([4, 4, 3, 2, 2]), rng.normal(size=(5, 4, 3)), rng.normal(size=(5, 4))
    mask = np.arange(4) < lengths[:, None]
    padded = jax.vmap(RegressionPrompt)(jnp.asarray(x, "float32"), jnp.asarray(y, "float32"), jnp.asarray(mask))
    model, task = (
        Slope(jnp.asarray(rng.normal(size=3), "float32")),
        LinearRegression.convention("garg", dim=3, length=3),
    )
    run = icl.fit(
        model, task, data=padded, steps=1, key=getkey(), optimizer=optax.sgd(0.0), record=Record(held_out=padded)
    )
    rows = np.where(mask, (x @ np.asarray(model.w) - y) ** 2, np.nan)
    np.testing.assert_allclose(run.dataset.held_out_loss[0, 0], np.nanmean(rows, axis=0), rtol=1e-4)
    errors = np.nanstd(rows, axis=0, ddof=1) / np.sqrt(mask.sum(axis=0))
    np.testing.assert_allclose(run.dataset.held_out_error[0, 0], errors, rtol=1e-3)


def test_padding_without_a_mask_is_refused(getkey):
    model, task, padded, _ = of_tokens()
    ids = jax.vmap(TokenPrompt)(jnp.where(padded.mask, padded.tokens, -1))
    message = r"^tokens at \[1, 4\]: expected an id from 0 to 4, a vocabulary of 5, got -1; mask the padding"
    with pytest.raises(InputError, match=message):
        icl.fit(model, task, data=ids, steps=1, key=getkey())
    with pytest.raises(InputError, match=message):
        icl.fit(model, MarkovChain(np.full((5, 5), 0.2), 7), steps=1, key=getkey(), record=Record(held_out=ids))


def test_the_last_position_of_padded_prompts_is_refused(getkey):
    model, task, padded, _ = of_tokens()
    with pytest.raises(InputError, match="data: expected prompts with a target at the last position alone"):
        icl.fit(model, task, data=padded, steps=1, key=getkey(), positions="last")


def test_prompts_without_a_target_are_refused(getkey):
    model, task, padded, _ = of_tokens()
    with pytest.raises(InputError, match=r"data: .* got 'none in prompt 1'; leave that prompt out"):
        icl.fit(model, task, data=padded, steps=1, key=getkey(), positions=[3, 4])


def test_a_batch_of_padded_prompts_is_not_divided_over_devices(getkey):
    model, task, padded, _ = of_tokens()
    with pytest.raises(InputError, match="devices: expected 1 for prompts with a mask"):
        icl.fit(model, task, data=padded, steps=1, key=getkey(), devices=2)
