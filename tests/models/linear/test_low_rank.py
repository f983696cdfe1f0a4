"""Heads that read labels by themselves: the layer with all its matrices, whose other entries have no gradient."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import prompt_of, with_normal_weights
from refusals import assert_refused

from icllab.models import MultiHeadLinearAttention
from icllab.models.linear.low_rank import LowRankAttention
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression

DIM, LENGTH = 3, 5
FIELDS = {"sign": 1, "answers": "last", "normalised": True, "causal": False, "query_is_key": False}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def drawn(rank, softmax=False):
    def build():
        return LowRankAttention.init(dim=DIM, heads=2, rank=rank, std=0.4, softmax=softmax, key=jax.random.key(0))

    return with_normal_weights(build, seed=1)


def whole_layer(model):
    """The same function with all matrices of a layer."""
    heads = len(model.values)
    p = jnp.zeros((heads, DIM + 1, DIM + 1)).at[:, DIM, DIM].set(model.values)
    keys, queries = (
        None if a is None else jnp.pad(jnp.swapaxes(a, 1, 2), ((0, 0), (0, 1), (0, 0)))
        for a in (model.keys, model.queries)
    )
    if queries is None:
        keys = jnp.pad(model.keys, ((0, 0), (0, 1), (0, 1)))
    return MultiHeadLinearAttention(p[None], keys[None], None if queries is None else queries[None], **FIELDS)


@pytest.mark.parametrize("rank", [None, 1, 2])
@pytest.mark.parametrize("softmax", [False, True])
def test_it_is_the_formula(rank, softmax):
    model, prompt = drawn(rank, softmax), prompt_of(0, positions=LENGTH + 1, dim=DIM)
    x, y = np.asarray(prompt.x), np.asarray(prompt.y)
    answer = 0.0
    for h, value in enumerate(np.asarray(model.values)):
        keys = np.asarray(model.keys)[h]
        query = x[-1] if rank is None else np.asarray(model.queries)[h] @ x[-1]
        scores = np.array([(keys.T @ row if rank is None else keys @ row) @ query for row in x[:-1]])
        weights = np.exp(scores) / np.exp(scores).sum() if softmax else scores / LENGTH
        answer += value * (weights @ y[:-1])
    np.testing.assert_allclose(model(prompt), [answer], rtol=1e-12)
    assert model(dataclasses.replace(prompt, y=prompt.y.at[-1].add(5.0))) == model(prompt)


@pytest.mark.parametrize("rank", [None, 2])
def test_the_other_entries_of_a_whole_layer_have_no_gradient_on_prompts_and_their_mirror_images(rank):
    model = drawn(rank)
    layer = whole_layer(model)
    task = LinearRegression(DIM, LENGTH, GaussianInputs(jnp.array([1.0, 0.5, 0.2])), GaussianWeights(1.0), 0.1)
    prompts = jax.vmap(lambda key: task.sample(key=key))(jax.random.split(jax.random.key(3), 40))
    mirrored = jax.tree.map(lambda x, y: -y if y.ndim == 2 else x, prompts, prompts)

    @eqx.filter_value_and_grad
    def loss(model):
        errors = [jax.vmap(model)(batch)[:, 0] - batch.y[:, -1] for batch in (prompts, mirrored)]
        return jnp.mean(jnp.stack(errors) ** 2)

    (value, small), (same, whole) = loss(model), loss(layer)
    np.testing.assert_allclose(value, same, rtol=1e-12)
    embedded = whole_layer(small)
    np.testing.assert_allclose(whole.p, embedded.p, atol=1e-12 * np.abs(embedded.p).max())
    np.testing.assert_allclose(whole.keys, embedded.keys, atol=1e-12 * np.abs(embedded.keys).max())
    if rank:
        np.testing.assert_allclose(whole.queries, embedded.queries, atol=1e-12 * np.abs(embedded.queries).max())


def test_a_softmax_from_a_small_start_is_linear_attention_to_centred_examples():
    model, prompt = drawn(2, softmax=True), prompt_of(0, positions=LENGTH + 1, dim=DIM)
    tiny = dataclasses.replace(model, keys=1e-6 * model.keys)
    x = prompt.x.at[:-1].add(-prompt.x[:-1].mean(axis=0))
    linear = dataclasses.replace(tiny, softmax=False)(dataclasses.replace(prompt, x=x))
    mean = jnp.sum(model.values) * jnp.mean(prompt.y[:-1])
    np.testing.assert_allclose(tiny(prompt) - mean, linear, rtol=1e-4)


def test_what_fits_no_heads_is_refused():
    model = drawn(2)
    assert_refused(lambda: dataclasses.replace(model, queries=None), "keys: expected square matrices")
    assert_refused(lambda: dataclasses.replace(model, values=jnp.ones(3)), "keys: expected an array [head, row, dim]")
    assert_refused(lambda: dataclasses.replace(model, queries=model.queries[:, :1]), "queries: expected an array of")
    assert_refused(lambda: dataclasses.replace(model, softmax=1), "softmax: expected")
