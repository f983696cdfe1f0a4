"""Prompts that are written out, training on them, and responses against matrices written out."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from iclbook.claims.routing import _small_transformers as small
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics import LinearResponse, LocalPosterior, susceptibility
from icllab.diagnostics.curvature.products import GaussNewton
from icllab.tasks import StringPrograms

SIZES = {"symbols": 3, "length": 2, "width": 4, "layers": 1, "heads": 1, "noise": 0.3, "zipf_exponent": 1.0}
POINT = SimpleNamespace(**SIZES, program=("a", "b"))
KEY = jax.random.key(3)
PI = np.array([2, 1]) / 3


@pytest.fixture(scope="module")
def family():
    with jax.enable_x64(True):
        yield small.sample_family((0, 5), POINT, key=KEY)


def test_every_prompt_is_one_that_the_task_draws():
    task = StringPrograms.init(
        functions=3, symbols=3, lengths=(3,), programs=[[0], [1, 2]], turned=True, noise=0.0, key=KEY
    )
    known = small.every_prompt(task)
    assert known.shape == (2, 27, task.tokens)
    assert len(np.unique(known.reshape(-1, task.tokens), axis=0)) == 54
    there = {tuple(row) for row in known.reshape(-1, task.tokens).tolist()}
    sampled = np.asarray(task.sample_many(64, key=KEY).tokens)
    assert {tuple(row) for row in sampled.tolist()} <= there


def test_networks_and_tasks_are_those_of_their_seeds(family):
    tasks, both = family
    with jax.enable_x64(True):
        _, one = small.sample_family((5,), POINT, key=KEY)
    np.testing.assert_array_equal(one.weights[0], both.weights[1])
    np.testing.assert_array_equal(both.prompts[1], small.every_prompt(tasks[1]))
    assert np.abs(both.weights[0] - both.weights[1]).max() > 0.1


def test_losses_are_expectations_over_labels(family):
    """The task's own loss of prompts with one label replaced, averaged over all replacements."""
    tasks, networks = family
    with jax.enable_x64(True):
        found = networks.context_losses(networks.weights[0], networks.prompts[0])
        total, tokens = 0.0, np.asarray(networks.prompts[0][1])
        network = networks.network(networks.weights[0])
        logits = np.asarray(jax.vmap(lambda row: network(TokenPrompt(row)))(jnp.asarray(tokens)))[:, -2:]
    ends = logits - np.log(np.exp(logits).sum(2, keepdims=True))
    for row, of in zip(tokens, ends, strict=True):
        for place in range(2):
            q = np.full(3, 0.1)
            q[row[-2 + place]] += 0.7
            total -= q @ of[place, :3] / 2
    np.testing.assert_allclose(float(found[1]), total / 9, rtol=1e-12)
    assert tasks[0].symbols == 3


def test_batches_come_as_often_as_they_should(family):
    _, networks = family
    law = np.concatenate([np.tile([1.0, 0.0], (200, 1)), np.tile([0.25, 0.75], (200, 1))])
    some = small.Batches.from_frequencies(law, networks, batch=50, rng=np.random.default_rng(0))
    contexts, wrong = np.asarray(some.contexts), np.asarray(some.wrong)
    assert (contexts[:200] == 0).all()
    assert abs(contexts[200:].mean() - 0.75) < 4 * (0.75 * 0.25 / 10_000) ** 0.5
    assert wrong.shape == (400, 50, 2)
    assert abs((wrong >= 0).mean() - 0.3) < 4 * (0.3 * 0.7 / 40_000) ** 0.5
    np.testing.assert_array_equal(np.unique(np.asarray(some.strings)), np.arange(9))


def test_training_is_gradient_descent_on_the_batches(family):
    """Of each seed on its own batches: one step of SGD by hand, and the record is after all its steps."""
    _, networks = family
    with jax.enable_x64(True):
        rngs = [np.random.default_rng(i) for i in range(2)]
        batches = [small.Batches.from_frequencies(np.tile(PI, (2, 1)), networks, batch=4, rng=rng) for rng in rngs]
        each = small.descended(networks, batches, optimizer=optax.sgd(0.5), every=1)
        path = small.descent(networks, batches, optimizer=optax.sgd(0.5), every=2)
        last = path.weights
        w, seen = networks.weights[1], jax.tree.map(lambda row: row[0], batches[1])

        asked = np.asarray(networks.prompts)[1, np.asarray(seen.contexts), np.asarray(seen.strings)]
        labels = np.where(np.asarray(seen.wrong) < 0, asked[:, -2:], np.asarray(seen.wrong))

        def loss(w):
            ends = jax.nn.log_softmax(jax.vmap(lambda tokens: networks.logits(w, tokens))(jnp.asarray(asked)))
            return -jnp.sum(ends * np.eye(ends.shape[2])[labels]) / 8

        slope = jax.grad(loss)(w)
        wanted, first = w - 0.5 * slope, (float(loss(w)), float(jnp.sum(slope**2)))
        ones = small.descent(networks, batches, optimizer=optax.sgd(0.5), every=1)
    np.testing.assert_allclose((ones.loss[1, 0], ones.slope[1, 0] ** 2), first, rtol=1e-9)
    np.testing.assert_allclose(path.loss[:, 0], ones.loss.mean(1), rtol=1e-9)
    np.testing.assert_allclose(path.slope[:, 0] ** 2, (ones.slope**2).mean(1), rtol=1e-9)
    assert each.shape == (2, 2, networks.weights.shape[1])
    np.testing.assert_allclose(each[1, 0], wanted, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(last[:, 0], each[:, 1], rtol=1e-9, atol=1e-12)


def test_responses_are_those_of_the_fisher_matrix_written_out(family):
    """Of the Hessian at zero of the divergence of answers of shifted weights."""
    _, networks = family
    with jax.enable_x64(True):
        w, prompts, pi = networks.weights[0], networks.prompts[0], jnp.asarray(PI)
        found = small.seen(networks, w[None], prompts, pi, jnp.asarray(0.01))
        slopes = np.asarray(jax.jacrev(lambda w: networks.context_losses(w, prompts))(w))

        def apart(v, tokens):
            there, here = (jax.nn.log_softmax(networks.logits(u, tokens)) for u in (w + v, w))
            return jnp.sum(jnp.exp(here) * (here - there)) / 2

        def whole(v):
            return pi @ jnp.mean(jax.vmap(jax.vmap(lambda tokens: apart(v, tokens)))(prompts), axis=1)

        fisher = np.asarray(jax.jit(jax.hessian(whole))(jnp.zeros_like(w)))
        np.testing.assert_allclose(found.losses[0], networks.context_losses(w, prompts), rtol=1e-12)
    spread = np.linalg.inv(fisher + 0.01 * np.eye(len(fisher)))
    wanted = -slopes @ spread @ (slopes - PI @ slopes).T
    np.testing.assert_allclose(found.response[0], wanted, rtol=1e-6)


def test_sizes_of_responses_are_of_the_examples_that_came():
    """Of each record's batches, example by example, with the labels that were given and the prompts' shares."""
    point = SimpleNamespace(**SIZES | {"length": 1}, program=("a", "b"))
    with jax.enable_x64(True):
        _, networks = small.sample_family((0, 1), point, key=KEY)
        rng, law = np.random.default_rng(5), np.tile(PI, (4, 1))
        batches = small.Batches.from_frequencies(law, networks, batch=6, rng=rng)
        prompts, w = networks.prompts[1], networks.weights[1]
        ways = jnp.stack([w, 1.1 * w])
        found = small.response_sizes(networks, ways, prompts, batches, jnp.asarray(0.01))
        asked = np.asarray(prompts)[np.asarray(batches.contexts), np.asarray(batches.strings)][2:].reshape(12, -1)
        labels = np.where(np.asarray(batches.wrong)[2:] < 0, asked.reshape(2, 6, -1)[..., -1:], batches.wrong[2:])
        gradients, fisher = [], 0
        for tokens, label in zip(map(jnp.asarray, asked), labels.reshape(12), strict=True):
            slopes = np.asarray(jax.jacrev(lambda w, t=tokens: jax.nn.log_softmax(networks.logits(w, t))[0])(ways[1]))
            p = np.asarray(jax.nn.softmax(networks.logits(ways[1], tokens))[0])
            gradients.append(-slopes[label])
            fisher = fisher + (slopes.T * p) @ slopes / 12
    mean = np.mean(gradients, axis=0)
    spread = np.linalg.inv(fisher + 0.01 * np.eye(len(fisher)))
    chi = [mean @ spread @ (row - mean) for row in gradients]
    assert (np.asarray(batches.wrong)[2:] >= 0).any()
    np.testing.assert_allclose(float(found[1]), np.mean(np.square(chi)) ** 0.5, rtol=1e-6)


@pytest.mark.slow
def test_responses_are_the_first_order_of_the_librarys_linear_response(family):
    _, networks = family
    with jax.enable_x64(True):
        w, prompts, pi = networks.weights[0], networks.prompts[0], jnp.asarray(PI)
        found = small.seen(networks, w[None], prompts, pi, jnp.asarray(0.01))

        def outputs(w, _):
            return jax.vmap(jax.vmap(lambda tokens: networks.logits(w, tokens)))(prompts)

        def given(z, _):
            right = jax.nn.softmax(jax.lax.stop_gradient(z))
            return -jnp.einsum("c,csav->", pi / 18, right * jax.nn.log_softmax(z))

        def context(c):
            return lambda w: networks.context_losses(w, prompts)[c]

        route = LinearResponse(curvature=GaussNewton(given, w, jnp.zeros(1), outputs=outputs))
        both = {"a": context(0), "b": context(1)}
        whole = eqx.Partial(_whole, networks, prompts, pi)
        posterior = LocalPosterior.from_function(whole, w, nbeta=1e9, localization=1e7)
        response = susceptibility(posterior, tilted=both, observables=both, route=route, key=KEY)
        wanted = response["first_order"].values
    np.testing.assert_allclose(found.response[0], wanted, rtol=1e-6)


def _whole(networks, prompts, pi, w):
    return pi @ networks.context_losses(w, prompts)
