"""What is minimised: which positions count, and what a predictor must return."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.predictors import prompts, slope, task

from icllab.core.errors import InputError
from icllab.training.streams import chosen_positions, losses_at, require_prediction


@pytest.mark.parametrize(
    ("positions", "answered", "chosen"),
    [
        ("every", 5, (0, 1, 2, 3, 4)),
        ("every", 1, (4,)),
        ("last", 5, (4,)),
        ("last", 1, (4,)),
        ([3, 1], 5, (3, 1)),
        ([4], 1, (4,)),
    ],
)
def test_positions_are_counted_from_the_start_of_the_prompt(positions, answered, chosen):
    assert chosen_positions(positions, 5, answered) == chosen


@pytest.mark.parametrize("positions", [[], [5], [-1], [2, 2]])
def test_positions_that_are_not_there_are_refused(positions):
    with pytest.raises(InputError, match="positions: expected different integers from 0 to 4"):
        chosen_positions(positions, 5, 5)
    with pytest.raises(InputError, match="positions: expected different integers from 4 to 4"):
        chosen_positions([3], 5, 1)


@pytest.mark.parametrize("positions", [3, None])
def test_positions_that_are_no_sequence_are_refused_where_no_type_checker_is_on(positions):
    with pytest.raises(InputError, match=f"positions: expected 'every', 'last' or integers, got {positions}; "):
        inspect.unwrap(chosen_positions)(positions, 5, 5)


def test_the_mean_over_prompts_is_taken_at_each_position(getkey):
    data, model = prompts(6), slope(key=getkey())
    squares = np.mean((np.asarray(data.x) @ np.asarray(model.w) - np.asarray(data.y)) ** 2, axis=0)
    for positions in ((0, 1, 2, 3, 4), (4,), (3, 0)):
        found = losses_at(model, task(), data, positions, 5)
        np.testing.assert_allclose(found, squares[list(positions)], rtol=1e-6)


def test_a_position_that_is_not_chosen_has_no_gradient():
    """The loss of one position knows nothing of the labels of the others, where the predictor ignores the context."""
    data, answer = prompts(3), (lambda prompt: prompt.y * 0.5)
    gradient = jax.grad(lambda y: losses_at(answer, task(), eqx.tree_at(lambda p: p.y, data, y), (2,), 5).sum())(data.y)
    assert np.asarray(gradient[:, 2]).all()
    assert not np.asarray(gradient[:, [0, 1, 3, 4]]).any()


def test_what_a_predictor_returns_is_looked_at_before_anything_is_compiled():
    one = jax.tree.map(lambda leaf: leaf[0], prompts(1))
    assert require_prediction(lambda prompt: prompt.y, task(), one) == 5
    assert require_prediction(lambda prompt: prompt.y[-1:], task(), one) == 1
    for answer, came in ((lambda prompt: prompt.y[:2], r"got \[2\]"), (lambda prompt: jnp.sum(prompt.y), r"got \[\]")):
        with pytest.raises(InputError, match="predictor: expected a prediction with 5 positions.*" + came):
            require_prediction(answer, task(), one)
