"""Heads of linear attention are summed, and one head with merged or separate weights is the layer of one matrix."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest
from drawing import prompt_of, with_normal_weights
from refusals import assert_refused

from icllab.models.linear.multi_head import MultiHeadLinearAttention

DIM, LENGTH = 3, 5
FIELDS = {"dim": DIM, "layers": 2, "heads": 2, "std": 0.4, "sign": -1, "answers": "last", "normalised": True}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def prompt():
    return prompt_of(0, positions=LENGTH + 1, dim=DIM)


def drawn(rank, **fields):
    fields = FIELDS | {"causal": False, "query_is_key": False} | fields
    return with_normal_weights(
        lambda: MultiHeadLinearAttention.init(**fields, rank=rank, key=jax.random.key(0)), seed=1
    )


def by_formula(model, prompt):
    """The papers' recursion on the matrix whose columns are tokens, head by head."""
    x, y = np.asarray(prompt.x), np.asarray(prompt.y)
    n = len(y) - 1
    z = np.vstack([x.T, np.append(y[:n], 0)])
    mask = np.diag(np.append(np.ones(n), 0))
    p, keys = np.asarray(model.p), np.asarray(model.keys)
    for layer in range(len(p)):
        total = 0
        for head in range(p.shape[1]):
            q = keys[layer, head]
            q = q if model.queries is None else q @ np.asarray(model.queries)[layer, head].T
            total = total + p[layer, head] @ z @ mask @ (z.T @ q @ z) / n
        z = z + total
    return model.sign * z[-1, -1]


@pytest.mark.parametrize("rank", [None, 1, 2])
def test_it_is_the_sum_of_its_heads(rank, prompt):
    model = drawn(rank)
    trace = eqx.filter_jit(lambda m: m.trace(prompt))(model)
    np.testing.assert_allclose(trace.prediction, [by_formula(model, prompt)], rtol=1e-11)
    heads = np.asarray(trace.activations["layer1.heads"])
    np.testing.assert_allclose(heads.sum(axis=0), trace.activations["layer1.update"], rtol=1e-12)


@pytest.mark.parametrize(
    "fields", [{}, {"answers": "every"}, {"answers": "every", "causal": True, "query_is_key": True}]
)
def test_one_head_is_the_layer_of_one_matrix(fields, prompt):
    model = drawn(2, heads=1, **fields)
    answers = eqx.filter_jit(lambda m: m(prompt))
    np.testing.assert_allclose(answers(model), answers(model.one_head()), rtol=1e-12)
    merged = dataclasses.replace(model, keys=model.q, queries=None)
    np.testing.assert_allclose(answers(model), answers(merged), rtol=1e-12)


def test_what_fits_no_heads_is_refused():
    model = drawn(2)
    assert_refused(model.one_head, "heads: expected 1, got 2")
    merged = {"queries": None}
    assert_refused(lambda: dataclasses.replace(model, **merged), "keys: expected an array of the shape of p")
    fewer = {"queries": model.queries[:1]}
    assert_refused(lambda: dataclasses.replace(model, **fewer), "queries: expected an array of the shape of keys")
