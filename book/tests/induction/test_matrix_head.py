"""The head of matrices against its formula written out, and against a head of three strengths."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclbook.claims.induction import _networks
from iclbook.claims.induction._matrix_head import MatrixHead, SquaredError
from iclbook.claims.induction.cliff import measure as cliff
from icllab.core.prompt import ItemLabelPrompt

PAIRS, LABELS, DIM = 3, 5, 11
TOKENS = 2 * PAIRS + 1


@pytest.fixture(scope="module")
def task():
    return _networks.task(key=jax.random.key(0), labels=LABELS, pairs=PAIRS, dim=DIM)


@pytest.fixture(scope="module")
def prompt(task):
    return task.sample(key=jax.random.key(1))


def drawn(task, attention, factors, scale=1.5):
    return MatrixHead.init(task, attention=attention, factors=factors, scale=scale, key=jax.random.key(2))


def pattern(scores, attention):
    weights = np.exp(scores) if attention == "softmax" else 1 + scores
    return weights / (weights.sum() if attention == "softmax" else len(scores))


@pytest.mark.parametrize("attention", ["softmax", "first order"])
def test_logits_are_those_of_the_formula_with_one_matrix_or_two(task, prompt, attention):
    heads = [drawn(task, attention, factors) for factors in (1, 2)]
    found = [np.asarray(eqx.filter_jit(head)(prompt)) for head in heads]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)
    first, second, readout = (
        np.asarray(one[0], float) for one in (heads[0].previous, heads[0].match, heads[0].readout)
    )
    x, content = np.asarray(prompt.tokens(), float), np.asarray(prompt.content(), float)
    stored = np.stack([pattern(x[i] @ first @ x[: i + 1].T, attention) @ x[: i + 1] for i in range(TOKENS)])
    expected = pattern(x[-1] @ second @ stored.T, attention) @ content @ readout
    np.testing.assert_allclose(found[0][0], expected, rtol=1e-4, atol=1e-5)


def test_its_three_strengths_are_those_of_the_head_of_strengths():
    """Orthogonal items and labels; every query once. Only the contents' match counts, and what labels have stored."""
    beta, alpha, xi = 1.3, 2.1, 3.7
    width = TOKENS + PAIRS + LABELS
    first, second = np.zeros((2, width, width))
    first[np.arange(1, TOKENS), np.arange(TOKENS - 1)] = beta
    contents = np.arange(TOKENS, TOKENS + PAIRS)  # items; labels come after them
    second[contents, contents] = alpha
    readout = np.zeros((PAIRS + LABELS, LABELS))
    readout[np.arange(PAIRS, PAIRS + LABELS), np.arange(LABELS)] = xi
    head = MatrixHead(*((jnp.asarray(one, jnp.float32),) for one in (first, second, readout)), "softmax")
    items, vectors = np.eye(PAIRS + LABELS)[:PAIRS], np.eye(PAIRS + LABELS)[PAIRS : 2 * PAIRS]
    call, losses = eqx.filter_jit(head), []
    for query in range(PAIRS):
        prompt = ItemLabelPrompt(
            items=jnp.asarray(np.concatenate([items, items[[query]]]), jnp.float32),
            label_vectors=jnp.asarray(vectors, jnp.float32),
            labels=jnp.asarray([*range(PAIRS), query]),
            classes=jnp.asarray([*range(PAIRS), query]),
            shift=jnp.asarray(0),
            position_dim=TOKENS,
        )
        logits = np.asarray(call(prompt), float)[0]
        losses.append(np.log(np.exp(logits).sum()) - logits[query])
    w = jnp.asarray([beta, alpha, xi], jnp.float32)
    known = cliff.loss(w, jnp.asarray(True), jnp.asarray(float(LABELS), jnp.float32), pairs=PAIRS)
    assert np.mean(losses) == pytest.approx(float(known), rel=1e-5)


def test_entries_at_the_start_have_the_variance_of_a_product_of_two(task):
    entries = np.asarray(drawn(task, "softmax", 1, scale=0.7).match[0])
    expected = 0.7**4 / task.width
    assert entries.var() == pytest.approx(expected, rel=6 * (2 / entries.size) ** 0.5)
    assert [part.shape for part in drawn(task, "softmax", 2).readout] == [(DIM, DIM), (DIM, LABELS)]


def test_the_squared_error_is_half_the_distance_from_one_and_zero(task, prompt):
    squared = SquaredError(task)
    logits = np.random.default_rng(0).normal(size=(1, LABELS)).astype(np.float32)
    expected = ((logits[0] - np.eye(LABELS)[int(prompt.labels[-1])]) ** 2).sum() / 2
    np.testing.assert_allclose(squared.loss(jnp.asarray(logits), prompt), [expected], rtol=1e-6)
