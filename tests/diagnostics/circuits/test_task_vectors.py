"""Task vectors against whole runs under edits, splits that share no pair, and means over known scores."""

import dataclasses
import functools
import itertools
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from tests.diagnostics.circuits.networks import Letters, network

from icllab.core.errors import InputError, ResultWarning
from icllab.diagnostics import task_vector
from icllab.diagnostics.circuits import task_vectors
from icllab.tasks import FewShot

ITEMS = ["".join(letters) for letters in itertools.product("abc", "defgh")]
PAIRS = [(item, item[1] + ("i" if item[0] == "a" else "")) for item in ITEMS[:5]]
PAIRS += [(item, item[0] + item[1]) for item in ITEMS[5:]]
TASK = FewShot.from_pairs(PAIRS, Letters(), shots=2, template="{}j{}k")
OTHER = FewShot.from_pairs([(b, a) for a, b in PAIRS], Letters(), shots=2, template="{}j{}k")
MODEL, LAYERS, KEY = network(layers=2), [0, 1], jax.random.key(4)
PARTS = task_vectors._parts(TASK, jax.random.key(0))


@functools.cache
def split(method, with_other=False):
    tasks = {"right": TASK, "other": OTHER} if with_other else {"right": TASK}
    return split_of(method, tasks)


def split_of(method, tasks):
    return task_vectors._Split(MODEL, tasks, dict.fromkeys(tasks, PARTS), LAYERS, method, 2, KEY)


@eqx.filter_jit
def run(prompt, factors, added):
    """Activations of a whole run in which the stream after a block is scaled and changed at the query."""

    def edit(name, value):
        if name not in ("block0", "block1"):
            return value
        block = int(name[-1])
        return value.at[prompt.query].set(factors[block] * value[prompt.query] + added[block])

    return MODEL.trace(prompt, edit).activations


def activations(prompt, layer=0, factor=1.0, vector=0.0):
    factors, added = jnp.ones(2).at[layer].set(factor), jnp.zeros((2, 12)).at[layer].add(jnp.asarray(vector, float))
    return run(prompt, factors, added)


def each(prompts):
    return [jax.tree.map(lambda leaf, i=i: leaf[i], prompts) for i in range(len(prompts.tokens))]


def examples(labels="right"):
    task = dataclasses.replace(TASK, labels=labels)
    return each(task_vectors._with_examples(task, PARTS[0], PARTS[0], jax.random.split(KEY, 3)[1]))


def at_queries(prompts, name):
    return np.stack([np.asarray(activations(prompt)[name][prompt.query], float) for prompt in prompts])


def test_parts_share_no_pair_and_rotate_through_the_table():
    assert sorted(np.concatenate(PARTS)) == list(range(15))
    assert [len(part) for part in PARTS] == [5, 5, 5]
    repeated = [(item, "ab"[i % 2]) for i, item in enumerate(ITEMS[:12])]
    kinds = FewShot.from_pairs(repeated, Letters(), shots=2, template="{}j{}k")
    for part in task_vectors._parts(kinds, KEY):
        assert np.bincount(np.asarray(kinds.classes)[part]).tolist() == [2, 2]


def test_examples_are_drawn_from_the_pool_without_the_query():
    for prompt, query in zip(examples(), PARTS[0], strict=True):
        text = Letters().decode(prompt.tokens[prompt.mask])
        *shown, asked = text.split("k")
        assert asked == "j".join(PAIRS[query])
        assert {tuple(pair.split("j")) for pair in shown} <= {PAIRS[i] for i in PARTS[0] if i != query}
        assert len(set(shown)) == 2


def test_the_stream_is_the_mean_at_the_query_of_prompts_of_the_first_part():
    found = split("stream")
    for layer in LAYERS:
        for name in ("right", "shuffled"):
            mean = at_queries(examples(name), f"block{layer}").mean(0)
            assert np.allclose(found.vectors[name][layer], mean, atol=1e-5)
    assert not np.allclose(found.vectors["right"][1], found.vectors["shuffled"][1], atol=1e-3)


def test_heads_are_summed_through_their_output_weights():
    found = split("heads")
    assert len(found.heads) == 2
    total = 0
    for name in found.heads:
        block, head = map(int, name.removeprefix("block").split("."))
        mean = at_queries(examples(), f"block{block}.attention.heads").mean(0)[head]
        total = total + mean @ np.asarray(MODEL.blocks[block].attention.output, float)[head]
    assert np.allclose(found.vectors["right"][1], total, atol=1e-5)


def test_the_map_is_a_ridge_regression_of_the_effect_of_examples():
    found = split("regression")
    before = at_queries(each(task_vectors._without_examples(TASK, PARTS[0])), "block1")
    effect = at_queries(examples(), "block1") - before
    ridge = task_vectors.RIDGE * (before**2).sum() / len(before)
    gradient = before.T @ (before @ found.vectors["right"][1] - effect) + ridge * found.vectors["right"][1]
    assert np.abs(gradient).max() < 1e-4 * np.abs(before.T @ effect).max()


def score(prompt, *change):
    """Accuracy and nats of the answer, from a run of the whole network."""
    logs = log_softmax(np.asarray(activations(prompt, *change)["prediction"], float), axis=1)
    places = np.flatnonzero(np.asarray(prompt.answer)) - 1
    targets = np.asarray(prompt.tokens)[places + 1]
    return (logs[places].argmax(1) == targets).all(), logs[places, targets].sum()


@pytest.mark.parametrize("method", ["stream", "heads", "regression"])
def test_scores_are_those_of_runs_with_the_vector_after_its_block_at_the_query(method):
    found = split(method, with_other=True)
    scores = found.scores()
    assert scores["test"].shape == (2, 5, 2, 5)  # measures; none, right, shuffled, other, examples; layers; pairs
    assert scores["choice"].shape == (2, 4, 2, 5)
    shown = each(task_vectors._with_examples(TASK, PARTS[2], PARTS[0], found.of_examples))
    for i, prompt in enumerate(each(task_vectors._without_examples(TASK, PARTS[2]))):
        assert np.allclose(scores["test"][:, 0, 1, i], score(prompt), atol=1e-4)
        assert np.allclose(scores["test"][:, 4, 1, i], score(shown[i]), atol=1e-4)
        for number, name in enumerate(("right", "shuffled", "other"), 1):
            for layer in LAYERS:
                vector = found.vectors[name][layer]
                if method == "regression":
                    vector = np.asarray(activations(prompt)[f"block{layer}"][prompt.query]) @ vector
                change = layer, 0.0 if method == "stream" else 1.0, vector
                assert np.allclose(scores["test"][:, number, layer, i], score(prompt, *change), atol=1e-4)


def test_pairs_of_the_test_leave_the_vectors_alone():
    """The answers of the second and third part are exchanged among each other."""
    late = np.concatenate(PARTS[1:])
    other = eqx.tree_at(lambda t: t.classes, TASK, TASK.classes.at[late].set(TASK.classes[late[::-1]]))
    for method in ("stream", "heads", "regression"):
        before, after = split(method), split_of(method, {"right": other})
        assert np.array_equal(before.vectors["right"][1], after.vectors["right"][1])
        assert before.heads == after.heads
    assert not np.array_equal(before.scores()["test"], after.scores()["test"])


class Known:
    """Splits with known scores: the best block is 0 by the choice and 1 by the test."""

    def __init__(self, model, tasks, parts, layers, method, heads, key):
        del model, tasks, method, heads, key
        self.parts, self.heads, self.vectors = parts["right"], [], {"right": dict.fromkeys(layers, np.zeros(2))}

    def scores(self):
        choice = np.zeros((2, 3, 2, len(self.parts[1])))
        choice[1, 1:, 0] = 1
        test = np.zeros((2, 4, 2, len(self.parts[2])))
        test[1, 1] = 10 * np.arange(2)[:, None] + self.parts[2]
        test[1, 3] = 5
        return {"choice": choice, "test": test}


def test_blocks_are_chosen_on_other_pairs_and_each_pair_is_tested_as_often(monkeypatch):
    monkeypatch.setattr(task_vectors, "_Split", Known)
    result = task_vector(MODEL, TASK, layers=[0, 1], key=KEY, prompts=20)
    assert result.attrs["prompts"] == 30
    assert result.vector.values.tolist() == ["none", "right", "shuffled", "examples"]
    right = result.sel(vector="right")
    assert right.log_likelihood.values == pytest.approx([7, 17])
    assert float(right.chosen_log_likelihood) == pytest.approx(7)
    assert right.chosen_share.values.tolist() == [1, 0]
    assert result.chosen_log_likelihood_advantage.values == pytest.approx([7, 0, 7, 2])
    assert result.log_likelihood_gain.sel(vector="examples").values == pytest.approx([5, 5])
    of_pairs = np.arange(15).std(ddof=1) / 15**0.5
    assert of_pairs < float(right.chosen_log_likelihood_error) < 1.5 * of_pairs


def test_calls_in_any_order_are_equal():
    with pytest.warns(ResultWarning, match="nats more than that of shuffled prompts"):
        first = task_vector(SimpleNamespace(model=MODEL, tokenizer=Letters()), TASK, layers=[0, 1], key=KEY, prompts=2)
    with pytest.warns(ResultWarning):
        task_vector(MODEL, TASK, layers=[1], key=jax.random.key(1), prompts=2)
    with pytest.warns(ResultWarning):
        second = task_vector(MODEL, TASK, layers=[1, 0], key=KEY, prompts=2)
    assert first.sortby("block").equals(second.sortby("block"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": [2]}, "layers: expected different numbers of blocks from 0 to 1"),
        ({"layers": [1, 1]}, "layers: expected different numbers"),
        ({"layers": []}, "layers: expected different numbers"),
        ({"method": "mean"}, "unknown method 'mean'"),
        ({"few_shot": dataclasses.replace(TASK, labels="shuffled")}, 'few_shot: expected labels="right"'),
        ({"few_shot": dataclasses.replace(TASK, shots=4)}, "at least 6 pairs in each third of the table"),
        ({"other": dataclasses.replace(TASK, vocabulary=12)}, "vocabulary of other: expected 11"),
        ({"few_shot": PAIRS}, "few_shot: expected tasks.FewShot"),
        ({"lm": network(norm="output"), "method": "heads"}, "norm="),
    ],
)
def test_what_has_no_task_vector_is_refused(change, message):
    arguments = {"lm": MODEL, "few_shot": TASK, "layers": [0], "key": KEY, **change}
    with pytest.raises(InputError, match=message):
        task_vector(arguments.pop("lm"), arguments.pop("few_shot"), **arguments)
