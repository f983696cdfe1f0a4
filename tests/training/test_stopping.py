"""Rules against the recursions they are defined by."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.training import Divergence, Plateau, TargetLoss, Until


def first_end(rule, losses):
    """The first step at which the rule ends a member; None if it never does."""
    losses = jnp.asarray(losses, float)

    def look(state, at):
        state, ends = rule.look(state, at[0], at[1])
        return state, ends

    _, ends = jax.lax.scan(look, rule.start(losses[0]), (losses, jnp.arange(len(losses), dtype=jnp.int32)))
    return int(np.argmax(ends)) if bool(np.any(ends)) else None


def test_a_target_is_met_by_the_averaged_loss():
    losses = [4.0, 0.5, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert first_end(TargetLoss(1.0), losses) == 1
    mean, means = 0.0, []
    for step, loss in enumerate(losses):
        mean += (loss - mean) / min(step + 1, 4)
        means.append(mean)
    expected = next(step for step in range(3, 8) if means[step] <= 1.6)
    assert first_end(TargetLoss(1.6, memory=4), losses) == expected > 3
    assert first_end(TargetLoss(0.1), losses) is None


def test_a_target_is_not_met_before_the_average_is_full():
    losses = [0.1, 5.0, 0.4, 0.2, 0.1]  # averages over three: 0.10, 2.55, 1.83, 1.29, 0.89
    assert first_end(TargetLoss(1.0, memory=3), losses) == 4


def test_divergence_is_relative_to_the_first_loss():
    assert first_end(Divergence(10.0), [2.0, 19.0, 20.5, 3.0]) == 2
    assert first_end(Divergence(10.0), [0.0, 1.0, 1e6]) is None  # nothing is a multiple of zero
    assert Divergence.outcome != TargetLoss.outcome


def test_a_plateau_is_a_block_of_steps_without_improvement():
    falling = 0.9 ** np.arange(100)
    rule = Plateau(steps=10, improvement=0.5, memory=1)
    assert first_end(rule, falling) is None  # 0.9^10 = 0.35: more than half is gained
    assert first_end(rule, np.concatenate([falling[:39], np.full(61, falling[38])])) == 49
    assert first_end(Plateau(steps=10, improvement=0.7, memory=1), falling) == 19


@pytest.mark.parametrize("make", [TargetLoss, Divergence, Plateau])
def test_thresholds_are_positive(make):
    with pytest.raises(InputError, match="expected a number > 0, got -1"):
        make(-1.0)


@pytest.mark.parametrize("value", ["0.1", None, True, [1.0]])
def test_a_threshold_is_a_number(value):
    with pytest.raises(InputError, match="value: expected a number > 0, got"):
        TargetLoss(value)


def test_an_end_is_a_number_of_steps_and_its_rules_in_order():
    rules = (TargetLoss(1.0), Plateau())
    until = Until(7, *rules)
    assert (until.steps, until.rules) == (7, rules)
    assert Until(7).rules == ()
    with pytest.raises(AttributeError):
        until.steps = 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0,), "steps: expected an integer of at least 1, got 0"),
        ((2.5,), "steps: expected an integer of at least 1, got 2.5"),
        ((True,), "steps: expected an integer of at least 1, got True"),
        (
            (TargetLoss(0.1),),
            "steps: expected an integer of at least 1, got 'TargetLoss'; "
            "put the largest number of steps before the rules: Until(5000, TargetLoss(0.1))",
        ),
        ((5, 0.1), "rules: expected stop rules, such as TargetLoss(0.1), got 'float'"),
        ((5, [TargetLoss(1.0)]), "rules: expected stop rules, such as TargetLoss(0.1), got 'list'"),
        (
            (5, TargetLoss),
            "rules: expected stop rules, such as TargetLoss(0.1), got 'the class TargetLoss'; TargetLoss(0.1) is one",
        ),
        (
            (5, Plateau),
            "rules: expected stop rules, such as TargetLoss(0.1), got 'the class Plateau'; Plateau() is one",
        ),
        (
            (TargetLoss, 5),
            "steps: expected an integer of at least 1, got 'the class TargetLoss'; "
            "put the largest number of steps before the rules: Until(5000, TargetLoss(0.1))",
        ),
        (
            ((500, TargetLoss(0.1)),),
            "steps: expected an integer of at least 1, got 'tuple'; "
            "put the largest number of steps before the rules: Until(5000, TargetLoss(0.1))",
        ),
    ],
)
def test_what_is_no_end_is_refused_in_one_line_where_no_type_checker_is_on(given, message):
    with pytest.raises(InputError) as caught:
        inspect.unwrap(Until.__init__)(object.__new__(Until), *given)
    assert str(caught.value) == message
