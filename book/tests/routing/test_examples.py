"""Prompts of functions by examples against what defines them, accuracies against a loop, and recall by hand."""

import dataclasses
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import icllab as icl
from iclbook.claims.routing import _examples, _transformers
from icllab.core.prompt import TokenPrompt
from icllab.training import Record

KEY = jax.random.key(3)
TABLE = np.array([[0, 1, 2, 0, 1], [2, 2, 0, 1, 1], [1, 0, 0, 2, 2]], np.int32)
FREQUENCIES = np.array([0.5, 0.3, 0.2])
PROMPTS = 2000
SIGN = 8


def task(**changes):
    fields = {"lengths": (1, 3), "items": 5, "labels": 3} | changes
    frequencies = jnp.asarray(FREQUENCIES, jnp.float32)
    return _examples.ShownFunctions(jnp.asarray(TABLE), frequencies, jnp.asarray(0.5), **fields)


def tokens_of(task):
    return np.asarray(_transformers.sample(task, PROMPTS, KEY).tokens)


@pytest.fixture(scope="module")
def tokens():
    return tokens_of(task())


def within(counts, probabilities):
    """Fractions of prompts within four standard errors."""
    p = np.asarray(probabilities)
    assert (np.abs(counts / PROMPTS - p) <= 4 * np.sqrt(p * (1 - p) / PROMPTS)).all()


def test_prompts_are_functions_of_the_pool_at_different_items(tokens):
    sign = tokens[:, :6] == SIGN
    pairs = 3 - sign.sum(axis=1) // 2
    within(np.bincount(pairs, minlength=4), [0, 0.5, 0, 0.5])
    shown, found = 0, np.zeros(3)
    for row, n in zip(tokens, pairs, strict=True):
        assert (row[: 6 - 2 * n] == SIGN).all()
        items, labels = row[6 - 2 * n : 6 : 2], row[7 - 2 * n : 6 : 2] - 5
        assert len(set(items)) == n
        of = [f for f in TABLE if (f[[*items, row[6]]] == [*labels, row[7] - 5]).all()]
        assert of
        shown += row[6] in items
        if n == 3 and len(of) == 1:
            found += (of[0] == TABLE).all(axis=1)
    within(np.array([shown]), [0.5])
    assert found.argsort().tolist() == [2, 1, 0]
    within(np.bincount(tokens[:, 6], minlength=5), [0.2] * 5)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_queries_are_shown_or_not(p):
    rows = tokens_of(eqx.tree_at(lambda t: t.shown, task(), jnp.asarray(p)))
    assert {row[6] in row[:6:2] for row in rows} == {bool(p)}


def test_edited_labels_are_those_of_the_query_alone():
    rows = tokens_of(eqx.tree_at(lambda t: t.shown, task(edited=True, lengths=(3,)), jnp.asarray(1.0)))
    shifts = []
    for row in rows:
        items, labels, query = row[:6:2], row[1:6:2] - 5, row[6]
        assert labels[items == query][0] == row[7] - 5
        others = items != query
        of = [f for f in TABLE if (f[items[others]] == labels[others]).all() and f[query] != row[7] - 5]
        assert of
        if len(of) == 1:
            shifts.append((row[7] - 5 - of[0][query]) % 3)
    assert abs(np.mean(shifts) - 1.5) < 4 * 0.5 / len(shifts) ** 0.5


def test_new_functions_and_shuffled_labels_are_uniform():
    new = tokens_of(dataclasses.replace(task(lengths=(3,)), table=None))
    for column in (1, 3, 5):
        within(np.bincount(new[:, column] - 5, minlength=3), [1 / 3] * 3)
    same = [row[7] == row[1:6:2][row[:6:2] == row[6]] for row in new if row[6] in row[:6:2]]
    assert np.all(same)
    shuffled = tokens_of(task(lengths=(3,), shuffled=True))
    same = [row[7] == row[1:6:2][row[:6:2] == row[6]][0] for row in shuffled if row[6] in row[:6:2]]
    assert abs(np.mean(same) - 1 / 3) < 4 * (2 / 9 / len(same)) ** 0.5


def test_accuracies_are_those_of_each_prompt():
    pool, steps = task(), (0, 3)
    network = _transformers.transformer(pool, SimpleNamespace(width=4, layers=1, heads=1), key=KEY)
    how = {"batch": 8, "optimizer": optax.sgd(1.0), "positions": "last"}
    run = icl.fit(network, pool, steps=3, key=KEY, record=Record([0], keep=steps, progress=False), **how)
    rows = np.asarray(_transformers.sample(pool, 40, KEY).tokens).reshape(2, 20, 8)
    # Half of the answers are those of the network, so that accuracies are no zeros.
    ask = eqx.filter_jit(lambda model, tokens: model(TokenPrompt(tokens))[-1].argmax())
    given = np.array(
        [[[ask(run.trajectory.at(s).member(0), jnp.asarray(r)) for r in some] for some in rows] for s in steps]
    )
    rows = np.concatenate([rows[..., :7], given[1][..., None]], axis=-1)
    rows[0, ::2, 7] = (rows[0, ::2, 7] + 1) % 9
    found = _examples.accuracies(run, jax.vmap(jax.vmap(TokenPrompt))(jnp.asarray(rows, jnp.int32)))
    np.testing.assert_allclose(found, (given == rows[None, ..., 7]).mean(axis=2), atol=1e-6)
    assert found[1].tolist() == pytest.approx([0.5, 1.0])


def test_recall_answers_by_the_functions_that_agree_with_most_pairs():
    def recalled(rows, weights=FREQUENCIES):
        pool = eqx.tree_at(lambda t: t.frequencies, task(lengths=(3,)), jnp.asarray(weights, jnp.float32))
        return _examples.recalled(pool, jax.vmap(TokenPrompt)(jnp.asarray(rows, jnp.int32)))

    known = [0, 5 + 2, 1, 5 + 2, 2, 5 + 0, 3, 5 + 1]  # the second function, of an item not shown
    assert recalled([known]) == 1.0
    assert recalled([known, [*known[:-1], 5 + 0]]) == 0.5
    assert recalled([known], weights=[0.5, 0.0, 0.5]) == 0.0
    tied = [4, 5 + 1, 2, 5 + 1, 3, 5 + 2, 0, 5]  # the first two agree with one pair, the third with one
    assert recalled([[*tied[:-1], 5 + 0]], weights=[0.5, 0.3, 0.2]) == 1.0
    assert recalled([[*tied[:-1], 5 + 1]], weights=[0.3, 0.2, 0.5]) == 1.0
