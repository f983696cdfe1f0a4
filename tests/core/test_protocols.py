"""What every task can do: many prompts at once are as many independent ones."""

import re
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import icllab as icl
from icllab.algorithms import Ridge
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt, TokenPrompt
from icllab.core.protocols import AbstractPredictor, position_losses, require_randomness
from icllab.diagnostics import identify, logit_lens, per_length
from icllab.models import BlockOptions, Interleaved, Transformer
from icllab.tasks import FixedPrompts, LinearRegression, RepeatedTokens
from icllab.tasks.regression import AbstractRegression


def test_many_prompts_are_those_of_as_many_keys(getkey):
    task, key = LinearRegression.convention("raventos", dim=2, length=3), getkey()
    many = jax.jit(lambda k: task.sample_many(4, key=k))(key)
    alone = jax.jit(jax.vmap(lambda k: task.sample(key=k)))(jax.random.split(key, 4))
    np.testing.assert_array_equal(many.x, alone.x)
    assert len(jnp.unique(many.y)) == 16


class Constant(AbstractRegression):
    """Forgets its key."""

    def sample(self, *, key):
        return RegressionPrompt(x=jnp.ones((4, 2)), y=jnp.arange(4.0))


class OwnKey(LinearRegression):
    """Draws from a key of its own."""

    def sample(self, *, key):
        return super().sample(key=jax.random.key(0))


class OnHost(AbstractRegression):
    """Draws with NumPy, once for each program."""

    def sample(self, *, key):
        return RegressionPrompt(x=jnp.asarray(np.random.default_rng().normal(size=(4, 2)), float), y=jnp.ones(4))


class Declared(Constant):
    deterministic: ClassVar[bool] = True


class OnlyMany(LinearRegression):
    """Forgets the key of many prompts."""

    def sample_many(self, count, *, key):
        return super().sample_many(count, key=jax.random.key(0))


GARG = LinearRegression.convention("garg", dim=2, length=3)
FORGETFUL = {"constant": Constant(), "key": OwnKey.convention("garg", dim=2, length=3), "host": OnHost()}


def network():
    block = BlockOptions(heads=1, mlp=None, norm="none")
    shape = {"dim": 2, "width": 4, "layers": 1, "block": block, "positions": "none"}
    return Transformer(Interleaved(), **shape, key=jax.random.key(0))


USES = {
    "per_length": lambda task: per_length(Ridge(1.0), task, key=jax.random.key(0), prompts=64),
    "identify": lambda task: identify(Ridge(1.0), {"a": Ridge(1.0)}, task, key=jax.random.key(0), prompts=16),
    "lens": lambda task: logit_lens(network(), task, key=jax.random.key(0), prompts=4),
    "fit": lambda task: icl.fit(network(), task, steps=1, key=jax.random.key(0), batch=2, optimizer=optax.sgd(0.1)),
    "data": lambda task: icl.fit(network(), task, steps=1, key=jax.random.key(0), data=4),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", FORGETFUL)
def test_tasks_that_do_not_use_their_key_are_refused(name, use):
    kind = type(FORGETFUL[name]).__name__
    message = f"task: expected prompts that depend on the key, got 'the same prompt of {kind} for every key'; draw"
    with pytest.raises(InputError, match=re.escape(message)):
        USES[use](FORGETFUL[name])


def test_many_prompts_that_do_not_use_their_key_are_refused_where_they_are_drawn():
    task = OnlyMany.convention("garg", dim=2, length=3)
    with pytest.raises(InputError, match="task: expected prompts that depend on the key"):
        USES["fit"](task)
    require_randomness(task)


@pytest.mark.parametrize(
    "task",
    [
        Declared(),
        RepeatedTokens(vocabulary=2, period=1),
        GARG,
        FixedPrompts(GARG, GARG.sample_many(1, key=jax.random.key(0)), 1),
    ],
)
def test_declared_and_nearly_deterministic_tasks_are_accepted(task):
    require_randomness(task)
    require_randomness(task, 2)


def test_a_declared_task_has_no_error():
    assert float(per_length(Ridge(1.0), Declared(), key=jax.random.key(0), prompts=4).standard_error.max()) == 0


class LastLoss(LinearRegression):
    """A loss of the last position, whatever is answered."""

    def loss(self, prediction, prompt):
        return super().loss(prediction, prompt)[-1:]


class ScalarLoss(LinearRegression):
    def loss(self, prediction, prompt):
        return jnp.mean(super().loss(prediction, prompt))


@pytest.mark.parametrize("kind", [LastLoss, ScalarLoss])
@pytest.mark.parametrize("use", ["per_length", "fit"])
def test_a_loss_of_other_positions_than_the_prediction_is_refused(kind, use):
    task = kind.convention("garg", dim=2, length=3)
    with pytest.raises(
        (InputError, TypeError), match=r"task.loss: expected one number for each of 4 positions, got \["
    ):
        USES[use](task)


def test_a_loss_of_the_last_position_of_a_last_prediction_is_right():
    prompt, task = GARG.sample(key=jax.random.key(0)), LastLoss.convention("garg", dim=2, length=3)
    assert position_losses(task, jnp.zeros(1), prompt).shape == (1,)
    with pytest.raises(InputError, match=r"task.loss: expected one number for each of 4 positions"):
        position_losses(task, jnp.zeros(4), prompt)
    tokens = TokenPrompt(jnp.array([0, 1, 0, 1]))
    assert position_losses(RepeatedTokens(2, 2), jnp.zeros((3, 2)), tokens).shape == (3,)


def test_stacked_prompts_are_refused_by_every_predictor_that_takes_one(getkey):
    """Also by one that broadcasts, whose answer would be something; and a batched predictor takes them."""
    count = int(np.random.default_rng().integers(2, 6))
    prompts = LinearRegression.convention("raventos", dim=2, length=3).sample_many(count, key=getkey())

    class Zero(AbstractPredictor):
        def __call__(self, prompt):
            return 0 * prompt.y

    class Zeros(Zero):
        batched = True

    with pytest.raises(
        InputError, match=rf"prompt: expected one prompt, got 'RegressionPrompt stacked to \({count},\)'"
    ):
        Zero()(prompts)
    assert Zeros()(prompts).shape == (count, 4)
    assert jax.vmap(Zero())(prompts).shape == (count, 4)
    with pytest.raises(InputError, match="prompt: expected a prompt with 'y', which Zero reads, got 'ArrayImpl'"):
        Zero()(prompts.x)


def test_an_attribute_error_of_a_predictor_itself_is_not_blamed_on_the_prompt(getkey):
    class Wrong(AbstractPredictor):
        def __call__(self, prompt):
            return self.weights * prompt.y

    with pytest.raises(AttributeError, match="weights"):
        Wrong()(LinearRegression.convention("raventos", dim=2, length=3).sample(key=getkey()))
