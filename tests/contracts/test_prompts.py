"""Every kind of prompt: positions, length, and what a causal predictor may not see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt, TokenPrompt, require_padding
from icllab.tasks import RepeatedTokens


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


SEQUENCES = ([3, 1, 4, 1, 5], [2, 6], [5, 3, 5])


def test_ragged_sequences_are_padded_on_the_right():
    prompts = TokenPrompt.from_ragged(SEQUENCES)
    np.testing.assert_array_equal(prompts.tokens, [[3, 1, 4, 1, 5], [2, 6, 0, 0, 0], [5, 3, 5, 0, 0]])
    np.testing.assert_array_equal(prompts.mask.sum(axis=1), [5, 2, 3])
    np.testing.assert_array_equal(prompts.scored, [[True] * 4, [True, False, False, False], [True, True, False, False]])
    assert TokenPrompt(jnp.zeros(4, jnp.int32)).scored is None


def test_ragged_examples_are_padded_on_the_right():
    prompts = RegressionPrompt.from_ragged([(np.ones((n, 2)), np.arange(1.0, n + 1)) for n in (3, 1)])
    np.testing.assert_array_equal(prompts.y, [[1, 2, 3], [1, 0, 0]])
    np.testing.assert_array_equal(prompts.x[1], [[1, 1], [0, 0], [0, 0]])
    np.testing.assert_array_equal(prompts.scored, [[True, True, True], [True, False, False]])


def test_what_is_masked_reads_as_zero():
    mask = jnp.asarray([True, True, False])
    prompt = RegressionPrompt(
        x=jnp.full((3, 2), jnp.nan).at[:2].set(1.0), y=jnp.asarray([1.0, 2.0, jnp.inf]), mask=mask
    )
    np.testing.assert_array_equal(prompt.x, [[1, 1], [1, 1], [0, 0]])
    np.testing.assert_array_equal(prompt.y, [1, 2, 0])
    np.testing.assert_array_equal(TokenPrompt(jnp.asarray([4, 2, -100]), mask).tokens, [4, 2, 0])


@pytest.mark.parametrize("mask", [[False, True, True], [True, False, True], [False, False, False]])
def test_padding_on_the_left_and_holes_are_refused(mask):
    with pytest.raises(InputError, match="mask: expected True for real entries, then False for padding on the right"):
        TokenPrompt(jnp.zeros(3, jnp.int32), jnp.asarray(mask))


@pytest.mark.parametrize("mask", [np.ones(2, bool), np.ones(3, int), [True] * 3])
def test_another_shape_or_type_of_mask_is_refused(mask):
    with pytest.raises(InputError, match=r"mask: expected True or False for each entry, shape \(3,\), got"):
        require_padding(mask, (3,))


@pytest.mark.parametrize("sequences", [[], [[1]], [[1, 2], [0.5, 1.0]], [[[1, 2]]]])
def test_what_is_no_ragged_set_of_sequences_is_refused(sequences):
    with pytest.raises(InputError, match="sequences: expected sequences of at least 2 ids each"):
        TokenPrompt.from_ragged(sequences)


@pytest.mark.parametrize("x", [np.ones(3), np.ones((2, 2)), np.ones((0, 2))])
def test_what_is_no_ragged_set_of_examples_is_refused(x):
    with pytest.raises(InputError, match="examples: expected pairs of x"):
        RegressionPrompt.from_ragged([(x, np.ones(len(x) and 3))])


def test_masks_are_exchanged_and_cut_with_what_they_mask():
    long, short, middle = (
        jax.tree.map(lambda leaf, i=i: leaf[i], TokenPrompt.from_ragged(SEQUENCES)) for i in range(3)
    )
    mixed = middle.replaced_after(1, long)
    np.testing.assert_array_equal(mixed.tokens, [5, 3, 4, 1, 5])
    assert np.all(mixed.mask)  # how long the prompt is comes later, and is exchanged too
    np.testing.assert_array_equal(middle.replaced_after(3, long).mask, middle.mask)  # no hole
    np.testing.assert_array_equal(long.replaced_after(0, short).mask, short.mask)
    np.testing.assert_array_equal(long.replaced_after(1, TokenPrompt(jnp.ones(5, jnp.int32))).mask, [True] * 5)
    alone = middle.alone(1, size=2)
    np.testing.assert_array_equal(alone.tokens, [5, 3, 5])
    np.testing.assert_array_equal(alone.scored, [True, True])
    assert long.alone(2, size=2).positions == 2


def test_a_mask_of_regression_is_exchanged_and_cut():
    a, b = (
        jax.tree.map(
            lambda leaf, i=i: leaf[i], RegressionPrompt.from_ragged([(np.ones((n, 1)), np.ones(n)) for n in (4, 2)])
        )
        for i in range(2)
    )
    np.testing.assert_array_equal(b.replaced_after(1, a).y, [1, 1, 1, 1])
    np.testing.assert_array_equal(a.replaced_after(0, b).mask, [True, True, False, False])
    np.testing.assert_array_equal(b.alone(2, size=2).mask, [True, False])


def test_ids_have_a_position_each_and_the_last_has_no_target():
    prompt = TokenPrompt.from_ids([3, 1, 4])
    assert (prompt.positions, prompt.scored.tolist()) == (3, [True, True, False])
    np.testing.assert_array_equal(prompt.tokens[:3], [3, 1, 4])
    assert TokenPrompt.from_ids([7]).positions == 1
    task = RepeatedTokens(vocabulary=5, period=2)
    losses = task.loss(jnp.zeros((3, 5)), prompt)
    np.testing.assert_allclose(losses, [np.log(5), np.log(5), np.nan], rtol=1e-6)
    np.testing.assert_array_equal(jax.jit(TokenPrompt.from_ids)(jnp.array([3, 1, 4])).mask, prompt.mask)


def test_ids_of_several_lengths_and_padding_on_either_side_are_stacked():
    ragged = TokenPrompt.from_ids([[3, 1, 4], [2]])
    padded = TokenPrompt.from_ids(np.array([[0, 3, 1, 4], [0, 0, 0, 2]]), [[0, 1, 1, 1], [0, 0, 0, 1]])
    right = TokenPrompt.from_ids(np.array([[3, 1, 4, 9], [2, 9, 9, 9]]), [[1, 1, 1, 0], [1, 0, 0, 0]])
    for prompts in (padded, right):
        for ours, theirs in zip(jax.tree.leaves(ragged), jax.tree.leaves(prompts), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(ragged.scored, [[True, True, False], [False] * 3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: TokenPrompt.from_ids("a b"),
            "ids: expected a sequence of token ids, got 'a b'; TokenPrompt.from_text",
        ),
        (lambda: TokenPrompt.from_ids([]), "ids: expected a sequence of at least one token id"),
        (lambda: TokenPrompt.from_ids([[1], []]), "ids: expected a sequence of at least one token id"),
        (lambda: TokenPrompt.from_ids([0.5]), "ids: expected a sequence of at least one token id, got 'float64"),
        (lambda: TokenPrompt.from_ids([4, 2**32 + 1]), "ids: expected ids from 0 to 2147483647, got 4294967297"),
        (lambda: TokenPrompt.from_ids([[1, 2, 3]], [[1, 0, 1]]), "mask: expected True for real ids"),
        (lambda: TokenPrompt.from_ids([[1, 2, 3]], [[1, 0]]), "mask: expected True for real ids"),
    ],
)
def test_ids_that_are_none_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
