"""Tokens hold what is said, no token sees what it may not, and codes are where the positions are."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt, TokenPrompt
from icllab.models import Concatenated, Embedding, Interleaved, Joined, Tokens

PROMPT = RegressionPrompt(x=jnp.arange(1.0, 7.0).reshape(3, 2), y=jnp.array([10.0, 20.0, 30.0]))
ITEMS = ItemLabelPrompt(PROMPT.x, jnp.zeros((2, 2)), jnp.array([2, 0, 9]), jnp.arange(3), jnp.array(0), 5)
EVERY = Joined(answers="every", causal=True, query_is_key=False)


def test_interleaved_tokens():
    tokens = Interleaved().tokens(PROMPT)
    np.testing.assert_array_equal(tokens, [[1, 2, 0], [0, 0, 10], [3, 4, 0], [0, 0, 20], [5, 6, 0]])
    layout = Interleaved().layout(3)
    np.testing.assert_array_equal(layout.visible, np.tril(np.ones((5, 5), bool)))
    np.testing.assert_array_equal(layout.examples, [0, 1, 1, 2, 2])
    np.testing.assert_array_equal(layout.place[layout.read], [0, 2, 4])
    assert layout.keys == Interleaved().token_count(2) == len(tokens)


def test_concatenated_tokens():
    tokens, layout = Concatenated().tokens(PROMPT), Concatenated().layout(3)
    np.testing.assert_array_equal(tokens, [[1, 2, 0], [3, 4, 10], [5, 6, 20]])
    np.testing.assert_array_equal(layout.visible, np.tril(np.ones((3, 3), bool)))
    np.testing.assert_array_equal(layout.examples, [0, 1, 2])
    np.testing.assert_array_equal(layout.place[layout.read], [0, 1, 2])
    whole = Concatenated(shifted=False, causal=False)
    np.testing.assert_array_equal(whole.tokens(PROMPT), [[1, 2, 10], [3, 4, 20], [5, 6, 0]])
    layout = whole.layout(3)
    assert layout.visible.all()
    np.testing.assert_array_equal(layout.examples, [2, 2, 2])
    np.testing.assert_array_equal(layout.place[layout.read], [2])
    assert (whole.positions, Concatenated().positions) == ("last", "every")
    with pytest.raises(InputError, match="causal: expected True if labels are shifted"):
        Concatenated(causal=False)


def test_queries_with_coordinates_of_their_own():
    separate = dataclasses.replace(EVERY, separate=True)
    tokens = separate.tokens(PROMPT)
    assert tokens.shape == (5, separate.features(2)) == (5, 6)
    np.testing.assert_array_equal(tokens[1], [3, 4, 20, 0, 0, 0])
    np.testing.assert_array_equal(tokens[3], [0, 0, 0, 3, 4, 1])


def test_joined_tokens_with_one_query_for_every_position():
    tokens = EVERY.tokens(PROMPT)
    np.testing.assert_array_equal(tokens, [[1, 2, 10], [3, 4, 20], [1, 2, 0], [3, 4, 0], [5, 6, 0]])
    layout = EVERY.layout(3)
    np.testing.assert_array_equal(
        layout.visible.astype(int),
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]],
    )
    np.testing.assert_array_equal(layout.examples, [1, 2, 0, 1, 2])
    np.testing.assert_array_equal(layout.place, [0, 1, 0, 1, 2])
    assert layout.keys == 2
    assert EVERY.token_count(2) == 3
    own = Joined(answers="every", causal=True, query_is_key=True).layout(3)
    np.testing.assert_array_equal(own.visible & ~layout.visible, np.diag([False, False, True, True, True]))
    np.testing.assert_array_equal(own.examples, layout.examples)


@pytest.mark.parametrize("query_is_key", [True, False])
def test_joined_tokens_with_the_last_query(query_is_key):
    whole = Joined(answers="last", causal=False, query_is_key=query_is_key)
    np.testing.assert_array_equal(whole.tokens(PROMPT), [[1, 2, 10], [3, 4, 20], [5, 6, 0]])
    layout = whole.layout(3)
    np.testing.assert_array_equal(layout.visible.astype(int), [[1, 1, 0], [1, 1, 0], [1, 1, query_is_key]])
    np.testing.assert_array_equal(layout.examples, [2, 2, 2])
    assert layout.keys == 2 + query_is_key
    causal = Joined(answers="last", causal=True, query_is_key=query_is_key).layout(3)
    np.testing.assert_array_equal(causal.visible.astype(int), [[1, 0, 0], [1, 1, 0], [1, 1, query_is_key]])


def test_item_label_prompts_have_a_coordinate_for_each_label():
    """One token for an item and one for its label, or one for both; the target, here no label, is in none."""
    interleaved, every = Interleaved(labels=3), dataclasses.replace(EVERY, labels=3)
    last = Joined(answers="last", causal=False, query_is_key=True, labels=3)
    np.testing.assert_array_equal(
        interleaved.tokens(ITEMS), [[1, 2, 0, 0, 0], [0, 0, 0, 0, 1], [3, 4, 0, 0, 0], [0, 0, 1, 0, 0], [5, 6, 0, 0, 0]]
    )
    examples, queries = [[1, 2, 0, 0, 1], [3, 4, 1, 0, 0]], [[1, 2, 0, 0, 0], [3, 4, 0, 0, 0], [5, 6, 0, 0, 0]]
    np.testing.assert_array_equal(every.tokens(ITEMS), examples + queries)
    np.testing.assert_array_equal(last.tokens(ITEMS), [*examples, queries[-1]])
    for arrangement in (interleaved, every, last):
        assert (arrangement.features(2), arrangement.outputs) == (5, 3)
    assert (EVERY.features(2), EVERY.outputs) == (3, None)


def test_a_label_that_is_none_is_refused_and_traced_nan():
    with pytest.raises(InputError, match="labels at 0: expected an id from 0 to 1, a vocabulary of 2, got 2"):
        Interleaved(labels=2).tokens(ITEMS)
    rows = jax.jit(Interleaved(labels=2).tokens)(ITEMS)
    np.testing.assert_array_equal(np.isnan(rows).any(axis=1), [False, True, False, False, False])
    for arrangement in (Interleaved, lambda labels: dataclasses.replace(EVERY, labels=labels)):
        with pytest.raises(InputError, match="labels: expected an integer of at least 2, got 1"):
            arrangement(labels=1)


def test_positions():
    assert Interleaved().positions == "every"
    assert EVERY.positions == "every"
    assert Joined(answers="last", causal=True, query_is_key=True).positions == "last"


def test_one_hot_places_without_a_projection_stand_beside_the_token(getkey):
    embedding = Embedding(EVERY, dim=2, width=None, positions="one_hot", length=4, key=getkey())
    tokens, layout = embedding(PROMPT)
    assert embedding.width == tokens.shape[1] == 3 + 5
    np.testing.assert_array_equal(tokens[:, :3], EVERY.tokens(PROMPT))
    np.testing.assert_array_equal(tokens[:, 3:], np.eye(5)[layout.place])


def test_projected_one_hot_places_are_learned_places(getkey):
    one_hot = Embedding(Interleaved(), dim=2, width=6, positions="one_hot", length=2, key=getkey())
    learned = Embedding(Interleaved(), dim=2, width=6, positions="learned", length=2, key=getkey())
    weight, bias = one_hot.projection.weight, one_hot.projection.bias
    of = lambda e: (e.projection.weight, e.projection.bias, e.table)  # noqa: E731
    learned = eqx.tree_at(of, learned, (weight[:3], bias, weight[3:]))
    np.testing.assert_allclose(learned(PROMPT)[0], one_hot(PROMPT)[0], rtol=1e-5, atol=1e-5)


def test_a_shorter_prompt_gets_the_first_places(getkey):
    embedding = Embedding(Interleaved(), dim=2, width=6, positions="learned", length=9, key=getkey())
    np.testing.assert_allclose(embedding(PROMPT.alone(1, size=2))[0], embedding(PROMPT)[0][:3], rtol=1e-6)


def test_bad_fields_are_refused(getkey):
    with pytest.raises(InputError, match="causal: expected True if every position is answered, got False; or answ"):
        Joined(answers="every", causal=False, query_is_key=True)
    with pytest.raises(InputError, match="unknown answers 'lst'; did you mean 'last'"):
        Joined(answers="lst", causal=False, query_is_key=True)
    with pytest.raises(InputError, match="unknown positions 'absolute'; known: learned, none, one_hot, rotary"):
        Embedding(EVERY, dim=2, width=4, positions="absolute", key=getkey())
    with pytest.raises(
        InputError, match="length: expected the length of the longest context, for learned positions, got None"
    ):
        Embedding(EVERY, dim=2, width=4, positions="learned", key=getkey())
    short = Embedding(EVERY, dim=2, width=4, positions="learned", length=1, key=getkey())
    with pytest.raises(
        InputError, match="prompt: expected at most 1 examples before the query, got 2; build the model"
    ):
        jax.eval_shape(lambda: short(PROMPT)[0])


def test_token_ids():
    prompt = TokenPrompt(tokens=jnp.array([2, 0, 1, 2]))
    arrangement = Tokens(3)
    np.testing.assert_array_equal(arrangement.tokens(prompt), np.eye(3)[[2, 0, 1]])
    layout = arrangement.layout(3)
    np.testing.assert_array_equal(layout.visible, np.tril(np.ones((3, 3))))
    assert (arrangement.token_count(2), arrangement.outputs, layout.keys) == (3, 3, 3)
    assert arrangement.positions == "every"
    with pytest.raises(InputError, match="dim: expected the vocabulary, 3, got 4"):
        arrangement.features(4)


def test_an_id_that_is_no_token_is_refused_and_traced_nan():
    ids = jnp.array([2, 3, 0])
    with pytest.raises(InputError, match="tokens at 1: expected an id from 0 to 2, a vocabulary of 3, got 3; mask"):
        Tokens(3).tokens(TokenPrompt(ids))
    rows = jax.jit(lambda ids: Tokens(3).tokens(TokenPrompt(ids)))(ids)
    np.testing.assert_array_equal(rows, [[0, 0, 1], [np.nan] * 3])
    np.testing.assert_array_equal(Tokens(3).tokens(TokenPrompt(jnp.array([2, 0, 3]))).sum(axis=1), 1)  # the target
