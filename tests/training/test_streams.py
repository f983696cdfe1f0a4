"""Epochs use every prompt once; draws with replacement are uniform; the order is known from the step alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.predictors import prompts, task

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.tasks import Curriculum, LinearRegression
from icllab.training.streams import Fixed, Fresh, Stream, set_size, source_of, stream_of


def numbered(size):
    return RegressionPrompt(x=jnp.zeros((size, 1)), y=jnp.asarray(np.arange(size, dtype=float)))


@eqx.filter_jit
def prompts_of(stream, task, data, key, steps):
    """The prompts of the steps, as a run that begins at the first of them draws them."""

    def draw(carried, step):
        some, carried = stream.draw(task, data, carried, key, step)
        return carried, some

    return jax.lax.scan(draw, stream.begin(task, key, steps[0]), steps)[1]


def steps_from(begin, count):
    return np.arange(begin, begin + count, dtype=np.int32)


def drawn(stream, data, key, count, begin=0):
    """The rows of a numbered set that are drawn in so many steps."""
    return np.asarray(prompts_of(stream, None, data, key, steps_from(begin, count)).y).astype(int)


def test_an_epoch_uses_every_prompt_once_but_the_last_that_fill_no_batch(getkey):
    stream, key = Stream("epochs", 3, 11), getkey()
    rows = drawn(stream, numbered(11), key, 9)
    for epoch in range(3):
        used = np.concatenate(rows[3 * epoch : 3 * epoch + 3])
        assert len(set(used)) == 9
    assert not np.array_equal(np.concatenate(rows[:3]), np.concatenate(rows[3:6]))


@pytest.mark.parametrize("begin", [1, 3, 5])
def test_a_run_that_begins_in_the_middle_of_an_epoch_draws_the_same(begin, getkey):
    stream, key = Stream("epochs", 3, 11), getkey()
    whole, rest = (drawn(stream, numbered(11), key, 9, first) for first in (0, begin))
    np.testing.assert_array_equal(rest[:-begin], whole[begin:])


def test_draws_with_replacement_are_uniform(getkey):
    rows = np.concatenate(drawn(Stream("replacement", 500, 8), numbered(8), getkey(), 20))
    counts = np.bincount(rows, minlength=8)
    chi_square = np.sum((counts - 1250) ** 2 / 1250)
    assert chi_square < 7 + 4 * 14**0.5  # mean 7, variance 14


def test_fresh_prompts_differ_between_steps_and_not_between_calls(getkey):
    stream, key, law = Stream("fresh", 5), getkey(), task()
    one, again, other = (prompts_of(stream, law, None, key, steps_from(step, 1)).x for step in (4, 4, 5))
    np.testing.assert_array_equal(one, again)
    assert not np.isin(one, other).any()


@pytest.mark.parametrize("begin", [0, 2, 4])
def test_reused_prompts_are_those_of_the_first_step_of_a_block_wherever_a_run_begins(begin, getkey):
    stream, key, law = Stream("fresh", 2, reuse=3), getkey(), task()
    found = prompts_of(stream, law, None, key, steps_from(begin, 8)).x
    blocks = np.asarray(prompts_of(Stream("fresh", 2), law, None, key, steps_from(0, 4)).x)
    np.testing.assert_array_equal(found, blocks[steps_from(begin, 8) // 3])


@pytest.mark.parametrize("begin", [0, 2, 4])
def test_reused_prompts_are_of_the_task_at_the_first_step_of_their_block(begin, getkey):
    """What changes with the step, such as a curriculum, goes on at the pace of the steps."""
    law = Curriculum(LinearRegression.convention("garg", dim=4, length=6), dim=1, positions=2, interval=3)
    steps, key = steps_from(begin, 8), getkey()
    found = prompts_of(Stream("fresh", 2, reuse=3), law, None, key, steps).x
    for prompt, step in zip(np.asarray(found), steps, strict=True):
        first = step - step % 3
        expected = law.at_step(jnp.int32(first)).sample_many(2, key=jax.random.fold_in(key, first // 3)).x
        np.testing.assert_allclose(prompt, expected, rtol=1e-6)


def test_the_stream_that_the_arguments_describe(getkey):
    data = prompts(12)
    assert stream_of(source_of(None), 7) == stream_of(Fresh(), 7) == Stream("fresh", 7)
    assert stream_of(source_of(data), None) == stream_of(Fixed(data), 12) == Stream("full", 12, 12)
    assert stream_of(source_of(data), 5) == Stream("epochs", 5, 12)
    assert stream_of(source_of(30), 5) == Stream("epochs", 5, 30)
    assert stream_of(Fixed(30, minibatches="replacement"), 5) == Stream("replacement", 5, 30)
    assert stream_of(Fresh(reuse=4), 7) == Stream("fresh", 7, reuse=4)
    assert [Stream("fresh", 7).name, Stream("fresh", 7, reuse=4).name] == ["fresh", "fresh, reused 4"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Fresh(reuse=0), "reuse: expected an integer of at least 1, got 0"),
        (lambda: Fixed(0), "data: expected at least one prompt, got 0"),
        (lambda: Fixed(numbered(0)), "data: expected at least one prompt, got 0"),
        (lambda: Fixed(9, minibatches="some"), "minibatches: expected 'epochs' or 'replacement', got 'some'"),
        (
            lambda: stream_of(Fixed(9, minibatches="replacement"), None),
            "batch: expected an integer below 9, the size of the set, to draw with replacement, got None",
        ),
    ],
)
def test_what_describes_no_stream_is_refused(build, message):
    """With replacement a whole set is no whole set: so many draws would be another estimate than the one asked for."""
    with pytest.raises(InputError) as caught:
        build()
    assert str(caught.value) == message


def test_prompts_of_unequal_number_are_no_stack():
    ragged = jax.tree.unflatten(jax.tree.structure(numbered(3)), [jnp.zeros((3, 1)), jnp.zeros(4)])
    with pytest.raises(InputError, match="data: expected prompts stacked on one leading axis"):
        set_size("data", ragged)
