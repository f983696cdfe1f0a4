"""Strings of different tokens that are repeated: periods, pairs that are held out, and how evenly tokens come."""

import jax
import numpy as np
import pytest
from drawing import sampled_many

from icllab.tasks import PeriodicStrings

PLAIN = PeriodicStrings(vocabulary=9, shortest=2, longest=4, tokens=11)
HELD = PeriodicStrings(vocabulary=9, shortest=2, longest=4, tokens=11, held_out=2)


def drawn(task, count, key):
    prompts = sampled_many(task, count, key)
    shown = [jax.vmap(of)(prompts) for of in (task.period, task.copied, task.of_held_out_pairs)]
    return [np.asarray(x) for x in (prompts.tokens, *shown)]


@pytest.fixture(scope="module")
def samples():
    return {task.held_out: drawn(task, 4000, jax.random.key(7 + task.held_out)) for task in (PLAIN, HELD)}


@pytest.mark.parametrize("held_out", [0, 2])
def test_a_prompt_repeats_a_string_of_different_tokens(samples, held_out):
    tokens, period, copied, _ = samples[held_out]
    for row, p, seen in zip(tokens[:300], period[:300], copied[:300], strict=True):
        assert len(set(row[:p])) == p
        np.testing.assert_array_equal(row[p:], row[:-p])
        np.testing.assert_array_equal(seen, np.arange(10) >= p)


@pytest.mark.parametrize("held_out", [0, 2])
def test_periods_and_first_tokens_are_uniform(samples, held_out):
    tokens, period, _, _ = samples[held_out]
    for values, kinds, least in ((period, 3, 2), (tokens[:, 0], 9, 0)):
        wanted = 4000 / kinds
        counts = np.bincount(values - least, minlength=kinds)
        assert np.sum((counts - wanted) ** 2 / wanted) < kinds + 4 * (2 * kinds) ** 0.5


def test_held_out_pairs_never_come_and_all_others_do(samples):
    """Also where the string begins anew. Without any held out, all differences but 0 come alike in a string."""
    tokens, _, _, held_out = samples[2]
    pairs = (tokens[:, 1:] - tokens[:, :-1]) % 9
    assert not held_out.any()
    assert set(np.unique(pairs)) == set(range(3, 9))
    plain = samples[0][0]
    counts = np.bincount((plain[:, 1] - plain[:, 0]) % 9, minlength=9)
    assert counts[0] == 0
    assert np.sum((counts[1:] - 500) ** 2 / 500) < 8 + 4 * 16**0.5


def test_whether_a_pair_is_held_out_is_asked_of_any_prompt():
    prompts = sampled_many(PLAIN, 4000, jax.random.key(8))
    difference = np.diff(np.asarray(prompts.tokens), axis=1) % 9
    found = np.asarray(jax.vmap(HELD.of_held_out_pairs)(prompts))
    np.testing.assert_array_equal(found, (difference == 1) | (difference == 2))
