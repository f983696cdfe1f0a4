"""Nine terms that add up to the scores of the network, and overlaps that are known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.diagnostics.behaviour import interactions
from icllab.models import ItemLabelNetwork
from icllab.tasks import ItemLabel


@pytest.fixture
def case(getkey):
    task = ItemLabel.init(classes=None, labels=5, pairs=3, dim=6, no_repeats=True, key=getkey())
    queries = task.sample_many(4, key=getkey())
    return ItemLabelNetwork.from_task(task, key=getkey()), task, queries, jax.tree.map(lambda leaf: leaf[0], queries)


@eqx.filter_jit
def taken_apart(network, prompt):
    trace = network.trace(prompt)
    first = interactions.terms(network.layers[0], interactions.components(prompt))
    second = interactions.terms(network.layers[1], interactions.components(prompt, trace.activations["update1"]))[:, -1]
    return trace.activations, first, second, interactions.contrasts(network, prompt)


def test_the_terms_add_up_to_the_scores(case):
    network, _, _, prompt = case
    activations, first, second, contrasts = taken_apart(network, prompt)
    np.testing.assert_allclose(first.sum(0), activations["scores1"], atol=2e-5)
    np.testing.assert_allclose(second.sum(0), activations["scores2"], atol=2e-5)
    with_buffer = ["buffer" in name for name in interactions.INTERACTIONS]
    np.testing.assert_array_equal(np.asarray(first)[with_buffer], 0)
    assert (np.abs(np.asarray(second)).max(1) > 0).all()
    scores, right = np.asarray(activations["scores2"]), np.asarray(prompt.matches)
    np.testing.assert_allclose(contrasts[1].sum(), scores[1::2][right].mean() - scores[1::2][~right].mean(), atol=2e-5)
    np.testing.assert_allclose(contrasts[2].sum(), scores[1::2].mean() - scores[::2].mean(), atol=2e-5)
    scores = np.asarray(activations["scores1"])
    rows = [scores[i, i - 1] - np.delete(scores[i, : i + 1], i - 1).mean() for i in (1, 3, 5)]
    np.testing.assert_allclose(contrasts[0].sum(), np.mean(rows), atol=2e-5)


def test_a_network_with_all_terms_is_itself(case):
    network, task, queries, prompt = case
    total = jnp.ones(9)
    indices = eqx.filter_jit(interactions.restricted)(network, prompt, (total, total))
    np.testing.assert_allclose(indices.prediction, eqx.filter_jit(network)(prompt), atol=2e-5)
    blank = interactions.with_terms(network, task, queries, (0 * total, 0 * total))
    np.testing.assert_allclose(blank[1], np.mean([1 / 2, 1 / 4, 1 / 6]), rtol=1e-6)
    np.testing.assert_allclose(blank[2], 1 / 7, rtol=1e-6)


def test_overlaps_of_known_readers():
    """Logits of readers with overlaps that are drawn, plus noise of which the spread is to be free."""
    rng = np.random.default_rng(0)
    labels = np.stack([rng.permutation(6)[:4] for _ in range(6000)])
    right = rng.integers(0, 3, 6000)
    labels = np.concatenate([labels[:, :3], labels[np.arange(6000), right][:, None]], axis=1)
    readers = 10 * np.eye(6) + rng.normal(0, 2, (6, 6))
    logits = readers[labels[:, -1]] + rng.normal(0, 3, (6000, 6))
    mean, spread, error = interactions.overlaps(logits, labels)
    gaps = (np.diagonal(readers)[None] - readers)[~np.eye(6, dtype=bool)]
    assert abs(mean - gaps.mean()) < 4 * error / np.sqrt(6)
    np.testing.assert_allclose(spread, gaps.std(ddof=1), rtol=0.1)
    equal = interactions.overlaps(10 * np.eye(6)[labels[:, -1]] + rng.normal(0, 3, (6000, 6)), labels)
    assert equal[1] < 2 * equal[2]


def test_overlaps_have_the_spread_and_the_noise_that_were_planted():
    """Logits of a label are read where it is right, and where it is not in the prompt; others may be anything."""
    rng, count, size, noise, spread = np.random.default_rng(0), 5, 4000, 0.5, 0.2
    gaps = 2 + spread * rng.normal(size=(count, count)) * ~np.eye(count, dtype=bool)
    labels = np.array([rng.permutation(count)[:2] for _ in range(size)])
    labels = np.concatenate([labels, labels[:, :1]], axis=1)
    right, level = labels[:, -1], np.arange(count) / 2
    logits = level - np.where(np.eye(count, dtype=bool)[right], 0, gaps[right]) + noise * rng.normal(size=(size, count))
    np.put_along_axis(logits, labels[:, 1:2], 1e3, axis=1)  # the other label of the prompt
    mean, width, error = interactions.overlaps(logits, labels)
    outside = ~np.eye(count, dtype=bool)
    times = size / count * (count - 2) / (count - 1)  # that a label is in no pair while another one is right
    np.testing.assert_allclose(mean, gaps[outside].mean(), atol=0.02)
    np.testing.assert_allclose(width, gaps[outside].std(ddof=1), atol=0.02)
    np.testing.assert_allclose(error, noise * np.sqrt(count / size + 1 / times), rtol=0.05)
