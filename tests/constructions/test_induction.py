"""The constructed head continues sequences as they were continued before, within its bounds."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.constructions import induction_bounds, induction_head
from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics import head_scores
from icllab.tasks import InContextCopying, RepeatedTokens

TASK = InContextCopying(items=6, labels=4, pairs=5)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@eqx.filter_jit
def prompts(key):
    return jax.vmap(lambda k: TASK.sample(key=k))(jax.random.split(key, 200))


@eqx.filter_jit
def answers(head, asked):
    return jax.vmap(head)(asked)


@eqx.filter_jit
def answers_to(head, sequences):
    return jax.vmap(lambda tokens: head(TokenPrompt(tokens=tokens)))(sequences)


@eqx.filter_jit
def losses_of(head, asked):
    return jax.vmap(lambda prompt: TASK.loss(head(prompt), prompt))(asked)


def followers(tokens, vocabulary):
    """What followed the earlier occurrences of each token, counted one by one."""
    counts = np.zeros((len(tokens), vocabulary))
    for i, token in enumerate(tokens):
        for j in range(1, i + 1):
            if tokens[j - 1] == token:
                counts[i, tokens[j]] += 1
    return counts


def test_the_example():
    """B, 2, A, 1, B is continued with 2."""
    head = induction_head(4, tokens=5)
    answer = np.asarray(answers_to(head, jnp.array([[3, 1, 2, 0, 3, 1]])))
    assert np.argmax(answer[0, -1]) == 1


@pytest.mark.parametrize(("previous", "match"), [(12.0, 12.0), (6.0, 5.0), (20.0, 4.0)])
def test_copying_is_solved_with_the_margin_of_the_bound(previous, match, getkey):
    head = induction_head(10, tokens=11, previous=previous, match=match, read=7.0)
    bounds = induction_bounds(tokens=11, previous=previous, match=match, read=7.0)
    drawn = prompts(getkey())
    logits, right = np.array(answers(head, drawn))[:, -1], np.asarray(drawn.tokens)[:, -1:]
    own = np.take_along_axis(logits, right, 1)[:, 0]
    np.put_along_axis(logits, right, -np.inf, 1)
    assert bounds.margin > 0
    assert (own - logits.max(axis=1)).min() >= bounds.margin - 1e-12


def test_the_loss_goes_to_zero_with_the_strength(getkey):
    drawn, losses = prompts(getkey()), []
    for strength in (5.0, 10.0, 20.0, 40.0):
        head = induction_head(10, tokens=11, previous=strength, match=strength, read=strength)
        losses.append(float(np.max(np.asarray(losses_of(head, drawn))[:, -1])))
        margin = induction_bounds(tokens=11, previous=strength, match=strength, read=strength).margin
        assert losses[-1] <= np.log1p(9 * np.exp(-margin)) + 1e-15
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-15


def test_strong_heads_are_the_frequencies_of_what_followed():
    """At every position of any sequence with an earlier occurrence, the first token included."""
    head = induction_head(5, tokens=14, previous=60.0, match=60.0, read=3.0)
    sequences = np.random.default_rng(0).integers(0, 5, (20, 15))
    found = answers_to(head, jnp.asarray(sequences))
    for tokens, answer in zip(sequences, np.asarray(found), strict=True):
        counts = followers(tokens[:-1], 5)
        seen = counts.sum(axis=1) > 0
        expected = 3.0 * counts[seen] / counts[seen].sum(axis=1, keepdims=True)
        np.testing.assert_allclose(answer[seen], expected, atol=1e-12)


def test_its_two_layers_are_a_previous_token_head_and_an_induction_head(getkey):
    task = RepeatedTokens(vocabulary=12, period=8)
    seen = 2 * 8 - 1
    strengths = {"previous": 8.0, "match": 9.0, "read": 1.0}
    scores = head_scores(induction_head(12, tokens=seen, **strengths), task, key=getkey(), prompts=64)
    bounds = induction_bounds(tokens=seen, **strengths)
    first, second = (scores.sel(attention_head=f"block{i}.0") for i in range(2))
    assert bounds.previous_attention <= float(first["previous_token_score"]) <= 1
    assert bounds.match_attention <= float(second["prefix_matching_score"]) <= 1
    assert 2 * bounds.match_attention - 1 <= float(second["induction_score"]) <= 1
    assert float(second["previous_token_score"]) < 0.2
    assert float(first["prefix_matching_score"]) < 0.2


def test_the_bounds_are_near_what_is_attained():
    """The longest wait for the worst token: attention to the one before the last of T."""
    head = induction_head(3, tokens=9, previous=3.0, match=1.0)
    trace = eqx.filter_jit(head.trace)(TokenPrompt(tokens=jnp.asarray(np.arange(10) % 3)))
    pattern = np.asarray(trace.activations["block0.attention.pattern"])[0]
    np.testing.assert_allclose(
        pattern[8, 7], induction_bounds(tokens=9, previous=3.0, match=1.0, read=1.0).previous_attention
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: induction_head(1, tokens=4), "vocabulary: expected an integer of at least 2, got 1"),
        (lambda: induction_head(3, tokens=1), "tokens: expected an integer of at least 2, got 1"),
        (lambda: induction_head(3, tokens=4, match=-1.0), "match: expected a finite number >= 0, got -1.0"),
        (lambda: induction_head(3, tokens=4, previous=1e3), "previous: expected a number of at most 700"),
    ],
)
def test_impossible_heads_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
