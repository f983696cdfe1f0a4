"""Which steps are recorded, and that a checkpoint returns what was written down."""

import inspect

import numpy as np
import pytest
from training.predictors import prompts

from icllab.core.errors import InputError
from icllab.training.records import History, Record


def test_steps_are_log_spaced_and_the_same_in_a_longer_run():
    short, long = Record(16).due(500), Record().due(100_000)
    assert short == [step for step in long if step < 500]
    ratios = np.diff(np.log10([step for step in long if step > 100]))
    np.testing.assert_allclose(ratios, 1 / 16, atol=0.005)
    assert long[:4] == [0, 1, 2, 3]
    assert len([step for step in long if 1000 <= step < 10_000]) == 16


def test_every_step_or_those_given():
    assert Record("every").due(4) == [0, 1, 2, 3]
    assert Record([7, 2, 2, 30]).due(10) == [2, 7]


def test_steps_are_read_once_and_in_order():
    """What is compared with a store's: the same steps however they were given."""
    once = Record((step for step in (30, 2, 7)), keep=(step for step in (4, 0, 4)))
    assert once == Record([2, 7, 30], keep=(0, 4))
    assert once.due(100) == once.due(100) == [2, 7, 30]
    assert repr(once.losses) == repr(Record([30, 7, 2]).losses) == "(2, 7, 30)"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"losses": [2, -1]}, "record: expected steps >= 0, got [2, -1]"),
        ({"losses": "often"}, "record: expected a number of steps per factor of ten, 'every', or steps, got 'often'"),
        ({"losses": 0}, "record: expected a number of steps per factor of ten, 'every', or steps, got 0"),
        ({"losses": True}, "record: expected a number of steps per factor of ten, 'every', or steps, got True"),
        ({"keep": [3, -1]}, "keep: expected steps >= 0, got [3, -1]"),
        ({"held_out": -1}, "held_out: expected prompts, or a number >= 0, got -1"),
        ({"held_out": True}, "held_out: expected prompts, or a number >= 0, got True"),
        ({"held_out": prompts(0)}, "held_out: expected at least one prompt, got 0"),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_one_line(fields, message):
    with pytest.raises(InputError) as caught:
        Record(**fields)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("losses", [2.5], "record: expected steps >= 0, got [2.5]"),
        ("losses", 2.5, "record: expected a sequence of steps, got 2.5"),
        ("keep", 7, "keep: expected a sequence of steps, got 7"),
        ("keep", "every", "keep: expected steps >= 0, got ['e', 'v', 'e']"),
        ("held_out", 0.1, "held_out: expected prompts stacked on one leading axis, got []; jax.vmap(task.sample)"),
        ("progress", "bar", "progress: expected True, False or None, got 'bar'"),
    ],
)
def test_another_type_is_refused_in_one_line_where_no_type_checker_is_on(field, value, message):
    record = object.__new__(Record)
    for name, given in ({"losses": 16, "keep": (), "held_out": 0, "progress": None} | {field: value}).items():
        object.__setattr__(record, name, given)
    with pytest.raises(InputError) as caught:
        inspect.unwrap(Record.__post_init__)(record)
    assert str(caught.value).startswith(message)


def test_a_history_comes_back_from_its_arrays():
    history = History((2, 3))
    history.rows["losses"] = {4: np.ones((2, 3)), 1: np.full((2, 3), np.nan)}
    history.final[1] = 5
    back = History.from_arrays(history.arrays())
    np.testing.assert_array_equal(back.final, history.final)
    assert sorted(back.rows["losses"]) == [1, 4]
    assert not back.rows["held_out"]
    table = back.table("losses", [1, 2, 4, 6], np.full((2, 3), 7.0))
    assert table.shape == (2, 4, 3)
    np.testing.assert_array_equal(table[1, :, 2], [np.nan, np.nan, 1.0, 7.0])


def test_the_last_losses_stand_at_the_last_step_whatever_was_recorded_there():
    """A member that has ended before has its own last losses, and a step that was not recorded is missing."""
    history = History((2, 1))
    history.rows["losses"] = {0: np.full((2, 1), 1.0), 5: np.full((2, 1), 2.0)}
    table = history.table("losses", [0, 3, 5], np.array([[3.0], [4.0]]))
    np.testing.assert_array_equal(table[..., 0], [[1.0, np.nan, 3.0], [1.0, np.nan, 4.0]])
