"""Every kind of prompt: positions, length, and what a causal predictor may not see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt, TokenPrompt


def test_regression_prompt():
    a = RegressionPrompt(x=jnp.zeros((4, 2)), y=jnp.zeros(4))
    b = RegressionPrompt(x=jnp.ones((4, 2)), y=jnp.ones(4))
    assert (a.positions, a.length, a.dim) == (4, 3, 2)
    mixed = a.replaced_after(1, b)
    np.testing.assert_array_equal(mixed.x[:, 0], [0, 0, 1, 1])  # the query at position 1 is seen
    np.testing.assert_array_equal(mixed.y, [0, 1, 1, 1])  # its own target is not


def test_token_prompt():
    a, b = TokenPrompt(jnp.zeros(4, jnp.int32)), TokenPrompt(jnp.ones(4, jnp.int32))
    assert (a.positions, a.length) == (3, 2)
    np.testing.assert_array_equal(a.replaced_after(1, b).tokens, [0, 0, 1, 1])


def item_label(value):
    """A prompt of two pairs in four more positions than it needs, whose numbers are ``value`` and more."""
    return ItemLabelPrompt(
        items=value + jnp.arange(9.0).reshape(3, 3),
        label_vectors=-value - jnp.arange(6.0).reshape(2, 3),
        labels=int(value) + jnp.array([1, 2, 1]),
        classes=int(value) + jnp.arange(3),
        shift=jnp.asarray(4),
        position_dim=9,
    )


def test_item_label_prompt():
    a, b = item_label(0.0), item_label(10.0)
    assert (a.positions, a.length, a.pairs) == (3, 2, 2)
    np.testing.assert_array_equal(a.matches, [True, False])
    np.testing.assert_array_equal(a.content()[:, 0], [0, -0.0, 3, -3, 6])  # item, label, item, label, query
    np.testing.assert_array_equal(a.tokens()[:, :9], np.eye(9)[4:])
    np.testing.assert_array_equal(a.tokens()[:, 9:], a.content())
    mixed = a.replaced_after(1, b)
    np.testing.assert_array_equal(
        mixed.content()[:, 0], [0, -0.0, 3, -13, 16]
    )  # the label of the query at 1 is not seen
    np.testing.assert_array_equal(mixed.labels, [1, 12, 11])
    alone = a.alone(2, size=2)
    np.testing.assert_array_equal(alone.tokens(), a.tokens()[2:])
    assert alone.pairs == 1


def test_a_batch_of_prompts_keeps_its_position_axis_last_but_one():
    batch = jax.vmap(lambda s: RegressionPrompt(x=s * jnp.ones((4, 2)), y=s * jnp.ones(4)))(jnp.arange(3.0))
    assert (batch.positions, batch.dim) == (4, 2)


def test_a_query_alone_and_after_a_shorter_context():
    regression = RegressionPrompt(x=jnp.arange(8.0).reshape(4, 2), y=jnp.arange(4.0))
    tokens = TokenPrompt(jnp.arange(5))
    assert regression.alone(2).positions == tokens.alone(2).positions == 1
    np.testing.assert_array_equal(regression.alone(2).x, [[4, 5]])
    np.testing.assert_array_equal(regression.alone(2).y, [2])
    np.testing.assert_array_equal(tokens.alone(2).tokens, [2, 3])  # the query and the token that answers it
    np.testing.assert_array_equal(regression.alone(3, size=3).y, [1, 2, 3])
    np.testing.assert_array_equal(tokens.alone(3, size=3).tokens, [1, 2, 3, 4])
    for prompt in (regression, tokens, item_label(0.0)):
        whole = prompt.alone(prompt.length, size=prompt.positions)
        assert type(whole) is type(prompt)
        assert all(map(np.array_equal, jax.tree.leaves(whole), jax.tree.leaves(prompt)))


@pytest.mark.parametrize("position", [-1, 4])
def test_a_position_or_size_that_is_not_there_is_refused(position):
    prompt = RegressionPrompt(x=jnp.zeros((4, 2)), y=jnp.zeros(4))
    with pytest.raises(InputError, match=f"position: expected an integer from 0 to 3, got {position}"):
        prompt.alone(position)
    with pytest.raises(InputError, match="size: expected an integer from 1 to 3, the positions up to 2, got 4"):
        prompt.alone(2, size=4)
