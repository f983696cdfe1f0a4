"""Contexts and queries as prompts: what is joined, what is cut, and where it stands."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import tasks
from icllab.core.errors import InputError
from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt, TokenPrompt
from icllab.diagnostics.contexts import queries
from icllab.diagnostics.contexts.queries import (
    answers_after,
    answers_alone,
    halve_context,
    join_prompt,
    place_query,
    queries_for,
    queries_near,
    unpadded,
)
from icllab.models import BlockOptions, Tokens, Transformer, edited
from icllab.tasks.few_shot import FewShotPrompt


def regression(length, seed=0):
    rng = np.random.default_rng(seed)
    return RegressionPrompt(x=jnp.asarray(rng.normal(size=(length + 1, 2))), y=jnp.asarray(rng.normal(size=length + 1)))


def item_label(pairs, shift, places=11):
    rng = np.random.default_rng(pairs)
    numbers = jnp.arange(pairs + 1)
    return ItemLabelPrompt(
        items=jnp.asarray(rng.normal(size=(pairs + 1, 2))),
        label_vectors=jnp.asarray(rng.normal(size=(pairs, 2))),
        labels=numbers,
        classes=numbers,
        shift=jnp.asarray(shift),
        position_dim=places,
    )


def test_a_context_is_what_stands_before_the_last_query():
    context, query = regression(3), regression(0, seed=1)
    pair = join_prompt(context, query)
    np.testing.assert_array_equal(pair.x, [*context.x[:3], *query.x])
    np.testing.assert_array_equal(pair.y, [*context.y[:3], *query.y])
    tokens = join_prompt(TokenPrompt(tokens=jnp.arange(5)), TokenPrompt(tokens=jnp.asarray([7, 8, 9])))
    np.testing.assert_array_equal(tokens.tokens, [0, 1, 2, 7, 8, 9])


def test_joining_a_prompt_to_its_own_query_gives_it_back():
    for prompt in (regression(4), TokenPrompt(tokens=jnp.arange(6)), item_label(3, 2)):
        last = prompt.positions - 1
        context = prompt.alone(last - 1, size=last)
        result = join_prompt(context, place_query(context, prompt.alone(last, size=2)))
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(prompt), strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_item_label_query_keeps_its_place_after_every_part_of_the_context():
    context = item_label(4, 1)
    query = place_query(context, item_label(0, 0))
    assert int(query.shift) == 9
    earlier, later = halve_context(context)
    for part in (context, earlier, later):
        pair = join_prompt(part, query)
        assert int(pair.shift) + 2 * pair.pairs == 9
    assert int(join_prompt(later, query).shift) == 5  # where it stood


@pytest.mark.parametrize("length", [2, 3])
def test_halves_make_up_the_context(length):
    context = regression(length)
    earlier, later = halve_context(context)
    assert earlier.length == length // 2
    np.testing.assert_array_equal([*earlier.x[:-1], *later.x[:-1]], context.x[:-1])
    np.testing.assert_array_equal([*earlier.y[:-1], *later.y[:-1]], context.y[:-1])


def test_half_of_the_queries_are_held_out():
    task = tasks.LinearRegression.convention("timaeus", dim=2, length=3)
    prompts = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(regression(3, seed=i) for i in range(6)))
    result = queries_for(regression(2), task, count=prompts, size=2, key=jax.random.key(0))
    np.testing.assert_array_equal(result.fitted.x, prompts.x[:3, -2:])
    np.testing.assert_array_equal(result.held_out.x, prompts.x[3:, -2:])
    target = {"query_length": 2, "queries": 3, "query_source": "given", "context_length": 2, "positions": "restart"}
    assert result.description == target


def test_queries_near_a_context_are_items_of_its_classes():
    """Their correlation with the item of their class is rho, within 4 standard errors of at most 0.01."""
    rng = np.random.default_rng(0)
    prompt = item_label(3, 0)
    items = jnp.asarray(rng.normal(size=(4, 400)) / 20, jnp.float32)
    labels = jnp.zeros((3, 400), jnp.float32)
    context = ItemLabelPrompt(items, labels, prompt.labels, prompt.classes, prompt.shift, prompt.position_dim)
    result = queries_near(context, noise=0.5, count=200, key=jax.random.key(0))
    which = np.asarray(result.classes[:, 0])
    assert set(which) == {0, 1, 2}
    inner = np.sum(np.asarray(result.items[:, 0]) * np.asarray(items)[which], axis=1)
    sizes = np.sum(np.asarray(items)[which] ** 2, axis=1)
    ratio = inner / sizes
    error = ratio.std() / len(ratio) ** 0.5
    assert error < 0.01
    assert abs(ratio.mean() - 1 / 1.25) < 4 * error
    np.testing.assert_array_equal(result.labels[:, 0], which)


def test_what_does_not_fit_is_refused():
    task, options = tasks.LinearRegression.convention("timaeus", dim=2, length=3), {"size": 1, "key": jax.random.key(0)}
    items = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), item_label(0, 0))
    with pytest.raises(InputError, match="context: expected at most 11 places, query included, got 13"):
        queries_for(item_label(4, 4), task, count=items, **options)
    item = jax.tree.map(lambda leaf: leaf[None], regression(1))
    with pytest.raises(InputError, match="at least four prompts"):
        queries_for(regression(2), task, count=item, **options)
    with pytest.raises(InputError, match="context: expected two regression prompts or two prompts of token ids"):
        join_prompt(TokenPrompt(tokens=jnp.arange(3)), regression(0))


KEY = jax.random.key(0)
TOKENS = tasks.RepeatedTokens(vocabulary=7, period=3)
BLOCK = BlockOptions(heads=2, mlp=(8,), norm="pre")
SHAPE = {"dim": 7, "width": 8, "layers": 2, "block": BLOCK, "positions": "rotary"}
MODEL = eqx.filter_jit(lambda key: Transformer(Tokens(7), **SHAPE, key=key))(jax.random.key(0))
CONTEXT = TokenPrompt(jnp.asarray([1, 2, 3, 4, 5, 0]))
ROWS = ([1, 2, 3], [4, 5], [6, 1, 2, 3, 4], [3, 2, 1, 6])


@eqx.filter_jit
def last_answer(tokens):
    return MODEL(TokenPrompt(tokens))[-1]


def test_queries_of_different_lengths_end_at_their_last_target(monkeypatch):
    """Of at most three positions each: the answers are those to each query alone, and after the context."""
    monkeypatch.setattr(queries, "LARGE", 0)
    prompts = TokenPrompt.from_ragged(ROWS)
    asked = queries_for(CONTEXT, TOKENS, count=prompts, size=3, key=jax.random.key(0))
    answers = [answers_alone(MODEL, asked.fitted), answers_alone(MODEL, asked.held_out)]
    context = [answers_after(MODEL, CONTEXT, part) for part in (asked.fitted, asked.held_out)]
    for i, row in enumerate(ROWS):
        query = TokenPrompt(jnp.asarray(row[-4:]))
        np.testing.assert_allclose(np.concatenate(answers)[i], last_answer(query.tokens), rtol=1e-4, atol=1e-5)
        joined = last_answer(join_prompt(CONTEXT, query).tokens)
        np.testing.assert_allclose(np.concatenate(context)[i], joined, rtol=1e-4, atol=1e-5)
    assert queries_for(CONTEXT, TOKENS, count=prompts, size=1, key=jax.random.key(0)).fitted.mask is None


def test_a_few_shot_query_ends_before_its_answer():
    tokens, answer = jnp.asarray([[1, 2, 3, 4, 5]] * 4), jnp.asarray([[False, False, False, True, True]] * 4)
    prompts = jax.vmap(FewShotPrompt)(tokens, jnp.ones((4, 5), bool), answer)
    asked = queries_for(CONTEXT, TOKENS, count=prompts, size=2, key=jax.random.key(0))
    np.testing.assert_array_equal(asked.held_out.tokens, [[2, 3, 4]] * 2)
    example = jax.tree.map(lambda leaf: leaf[0], prompts)
    with pytest.raises(InputError, match="context: expected a prompt of examples, got 'a few-shot prompt with"):
        queries_for(example, TOKENS, count=prompts, size=2, key=jax.random.key(0))


def test_the_padding_of_a_context_is_cut():
    padded = jax.tree.map(lambda leaf: leaf[0], TokenPrompt.from_ragged([[1, 2, 3], [1] * 6]))
    assert (unpadded(padded).mask, unpadded(padded).tokens.tolist()) == (None, [1, 2, 3])
    pairs = [(np.ones((2, 3)), np.arange(2)), (np.ones((4, 3)), np.arange(4))]
    padded = jax.tree.map(lambda leaf: leaf[0], RegressionPrompt.from_ragged(pairs))
    cut = unpadded(padded)
    assert (cut.mask, cut.x.shape, cut.y.tolist()) == (None, (2, 3), [0, 1])
    asked = queries_for(padded, tasks.LinearRegression.convention("timaeus", dim=3, length=3), count=2, size=1, key=KEY)
    assert asked.description["context_length"] == 1


def test_one_row_of_logits_is_that_of_all_after_a_context_too(monkeypatch):
    """The shortcut of a transformer against a wrapped one, which has none."""
    monkeypatch.setattr(queries, "LARGE", 0)
    plain = edited(MODEL, lambda name, value: value + 0 if name == "embedding" else value)
    asked = jax.vmap(TokenPrompt)(jnp.asarray([[1, 2, 3], [4, 5, 6]]))
    for answers in (answers_alone, lambda model, asked: answers_after(model, CONTEXT, asked)):
        np.testing.assert_allclose(answers(MODEL, asked), answers(plain, asked), rtol=1e-4, atol=1e-5)
