"""The interpreter of codes and its guesses, what is trained, and the check on made-up accuracies."""

import itertools
from collections import Counter, defaultdict
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.routing import _codes
from iclbook.claims.routing.codes import claim, measure
from icllab.lab.checks import Outcome

POINT = SimpleNamespace(longest=3, slots=4, code_length=(2, 3, 4), codes=5)


@pytest.mark.parametrize(
    ("code", "data", "answer"),
    [
        ("", (0, 1, 2), (0, 1, 2)),
        ("f", (0, 1, 2), (1, 2, 0)),
        ("fg", (0, 1, 2), (0, 2, 1)),
        ("gf", (0, 1, 2), (2, 1, 0)),
        ("r", (0, 1, 2), (1, 2, 0)),
        ("?", (0, 1, 2), (0, 1, 2)),
        ("+?", (0, 1, 2), (0, 0, 2)),
        ("++?", (0, 1, 2), (0, 1, 2)),
        ("+r?", (0, 1, 2), (1, 1, 0)),
        ("+?r", (0, 1, 2), (0, 2, 0)),
    ],
)
def test_the_interpreter(code, data, answer):
    assert _codes.run(code, data) == answer


def test_guesses_are_those_of_all_codes_counted_one_by_one():
    for length in (1, 3):
        alone, blind = defaultdict(Counter), defaultdict(Counter)
        for code in _codes.all_codes([length]):
            for data in itertools.product(range(3), repeat=3):
                answer = _codes.run(code, data)
                alone[data][answer] += 1
                blind[tuple(sorted(code)), data][answer] += 1
        total = len(_codes.INSTRUCTIONS) ** length * 27
        best = [sum(max(counts.values()) for counts in table.values()) / total for table in (alone, blind)]
        assert _codes.guesses(length) == pytest.approx(best)
    assert _codes.guesses(1)[1] == 1


def test_a_prompt_has_its_code_in_order_and_the_answer_of_the_interpreter():
    task = _codes.Codes.init(["", "r", "+?", "fgr?"], slots=5)
    prompts = jax.vmap(lambda key: task.sample(key=key))(jax.random.split(jax.random.key(0), 200))
    tokens, seen = np.asarray(prompts.tokens), Counter()
    for row in tokens:
        code = "".join(_codes.INSTRUCTIONS[t - 3] for t in row[:5] if t != _codes.NOTHING + 3)
        assert row[8] == task.vocabulary - 1
        assert tuple(row[9:].tolist()) == _codes.run(code, row[5:8].tolist())
        seen[code] += 1
    assert set(seen) == {"", "r", "+?", "fgr?"}
    assert seen["fgr?"] > seen["+?"] > seen[""]  # 5, 3 and 1 of 11
    assert len({tuple(row[:5]) for row in tokens}) > 12  # slots are random


def test_the_loss_is_that_of_the_answer():
    task = _codes.Codes.init(["f"], slots=2)
    prompt = task.prompt(jnp.array(0), jnp.array(5), jnp.array([0.1, 0.2]))
    logits = jnp.zeros((task.tokens - 1, task.vocabulary))
    assert np.flatnonzero(task.loss(logits, prompt)).tolist() == [5, 6, 7]


def test_the_truth_is_accurate_and_a_copy_runs_the_empty_code_alone():
    task = _codes.Codes.init(["", "f", "ff"], slots=2)

    def copy(prompt):
        return jax.nn.one_hot(jnp.roll(prompt.tokens, 3)[:-1], task.vocabulary)

    def right(prompt):
        return jax.nn.one_hot(prompt.tokens[1:], task.vocabulary)

    keys = jax.random.split(jax.random.key(0), 3)
    assert _codes.accuracies(right, task, jnp.arange(3), keys).tolist() == [1, 1, 1]
    assert _codes.accuracies(copy, task, jnp.arange(3), keys).tolist() == [1, 0, 0]


def test_no_new_code_is_trained_and_longer_ones_are_new():
    trained, new = measure.split(np.random.default_rng(0), POINT, None)
    assert len(trained) == 77
    assert not {*trained} & {*new}
    assert {len(code) for code in trained} <= {1, 2, 3}
    assert sum(len(code) == 4 for code in new) == POINT.codes
    few, others = measure.split(np.random.default_rng(0), POINT, 8)
    assert few == trained[:8]
    assert others == new


def test_scrambled_answers_are_those_of_codes_of_the_same_length():
    codes = _codes.all_codes([1, 2])
    others = measure.permuted(np.random.default_rng(0), codes)
    assert [len(code) for code in others] == [len(code) for code in codes]
    assert sorted(others) == sorted(codes)
    assert sum(a != b for a, b in zip(codes, others, strict=True)) > 20


def test_longer_codes_exchange_with_the_longest_of_training():
    table = np.array([[0.9, 0.8, np.nan], [0.7, 0.6, 0.1]])
    np.testing.assert_array_equal(measure.exchange(table, POINT), [[0.9, 0.8, np.nan], [0.7, 0.1, 0.6]])


def made_up(new=0.85, trained=0.87, longer=0.3):
    """Accuracies with small differences between seeds."""
    rng, shape = np.random.default_rng(0), (1, 6, 2, 8)
    values = np.empty(shape)
    values[..., 0, :], values[..., 1, :5], values[..., 1, 5:] = trained, new, longer
    values[..., 0, 5:] = np.nan
    values += 0.01 * rng.normal(size=(1, 6, 1, 1))
    coordinates = {"network": [claim.DEEP], "seed": range(6), "group": list(claim.GROUPS)}
    coordinates["code_length"] = list(claim.LENGTHS)
    dataset = xr.Dataset({"code_accuracy": (tuple(coordinates), values)}, coords=coordinates)
    return claim.theory(dataset)


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        ({}, set()),
        ({"new": 0.6}, {"as_well"}),
        ({"longer": 0.8}, {"longer"}),
        ({"longer": 0.11}, {"guess"}),
    ],
)
def test_the_check(change, failed):
    outcomes, _, _ = judged(claim.check)
    found = outcomes(made_up(**change))
    assert {name for name, outcome in found.items() if outcome is not Outcome.HOLDS} == failed
