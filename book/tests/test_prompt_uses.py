"""What watches the prompts and keys of claims catches each fault that is planted, and nothing where there is none."""

import ast

import jax
import numpy as np
import pytest
from prompt_uses import watched

import icllab as icl
from icllab.algorithms import Ridge
from icllab.diagnostics import per_length
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.lab import registry
from icllab.tasks import LinearRegression
from icllab.training import Record

TASK = LinearRegression.convention("raventos", dim=2, length=4)
HOW = {"steps": 2, "batch": 8}


def measure(key, *, fixed=False, held_out_is_training=False, test_is_training=False, one_start=False):
    """Two networks of one number, trained and judged on sets of prompts of their own."""
    of_start, of_training, of_held_out, of_test = jax.random.split(key, 4)

    def build(key):
        return Ridge(1.0 if one_start else jax.random.uniform(key, minval=0.5, maxval=2.0))

    members = icl.ensemble(build, seeds=2, key=of_start)
    training = sample_prompts(TASK, key=of_training, prompts=16) if fixed else None
    other = sample_prompts(TASK, key=of_training if held_out_is_training else of_held_out, prompts=16)
    run = icl.fit(
        members, TASK, key=of_training, data=training, record=Record(1, held_out=other, progress=False), **HOW
    )
    return per_length(run, TASK, key=of_training if test_is_training else of_test, prompts=16)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_sound_measurement_has_no_faults_and_is_the_same_when_watched(fixed, getkey):
    key = getkey()
    with watched() as uses:
        found = measure(key, fixed=fixed)
    assert uses.faults() == []
    assert len(uses.trained) == 2
    assert all(uses.trained)
    assert sum(len(rows) for rows in uses.judged) == 16
    assert len(uses.held_out[0]) == 16
    np.testing.assert_array_equal(found["loss"], measure(key, fixed=fixed)["loss"])


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        ({"fixed": True, "held_out_is_training": True}, "prompts that are trained on are held out"),
        ({"fixed": True, "test_is_training": True}, "prompts that are trained on are judged on"),
        ({"one_start": True}, "two seeds start from the same parameters"),
    ],
)
def test_a_planted_fault_is_told(bug, said, getkey):
    with watched() as uses:
        measure(getkey(), **bug)
    assert uses.faults() == [said]


def test_seeds_that_share_their_prompts_are_told(getkey, monkeypatch):
    """A fault within ``fit``: no member's key depends on its seed any more."""
    from icllab.training import fitting, plans

    member_keys = plans._member_keys
    monkeypatch.setattr(plans, "_member_keys", lambda key, seeds: member_keys(key, 0 * seeds))
    assert fitting.member_constants is plans.member_constants
    with watched() as uses:
        measure(getkey())
    assert uses.faults() == ["two seeds are trained on the same prompts"]


def split_and_more(source):
    """The keys that a function splits and splits or folds once more, in the source of a module.

    A parameter of an inner function is a key of its own.
    """
    found = []
    for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        uses, inner = {}, [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef | ast.Lambda)]
        own = {call for node in inner if node is not function for call in key_uses(node) & of_parameters(node)}
        for call in key_uses(function) - own:
            uses.setdefault(ast.unparse(call.args[0]), []).append(ast.unparse(call.func))
        found += [f"{function.name}: {key}" for key, names in uses.items() if "jax.random.split" in names and names[1:]]
    return found


def key_uses(function):
    """The calls in a function that split or fold a key."""
    names = ("jax.random.split", "jax.random.fold_in")
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call) and node.args)
    return {call for call in calls if ast.unparse(call.func) in names}


def of_parameters(function):
    """Those of them whose key is a parameter of the function."""
    parameters = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    return {call for call in key_uses(function) if ast.unparse(call.args[0]) in parameters}


def test_a_key_that_is_split_and_folded_too_gives_the_same_keys_twice(getkey):
    key = getkey()
    folded = jax.random.key_data(jax.random.fold_in(key, 1))
    np.testing.assert_array_equal(jax.random.key_data(jax.random.split(key))[1], folded)


def test_no_claim_splits_a_key_and_splits_or_folds_it_once_more():
    files = [path for entry in registry.books() for path in sorted(entry.folder.rglob("*.py"))]
    assert len(files) > 100
    assert {str(path): split_and_more(path.read_text("utf-8")) for path in files} == {str(path): [] for path in files}


@pytest.mark.parametrize(
    ("second", "bad"), [("fold_in(other, 1)", False), ("fold_in(key, 1)", True), ("split(key, 3)", True)]
)
def test_a_key_that_is_used_in_both_ways_is_found(second, bad):
    source = f"def measure(key, other):\n    a, b = jax.random.split(key)\n    return jax.random.{second}\n"
    assert split_and_more(source) == (["measure: key"] if bad else [])


@pytest.mark.parametrize(("parameter", "bad"), [("key", False), ("other", True)])
def test_a_parameter_of_an_inner_function_is_another_key(parameter, bad):
    inner = f"    def one({parameter}):\n        return jax.random.split(key)\n"
    source = f"def measure(key):\n    a, b = jax.random.split(key)\n{inner}    return one(a)\n"
    assert split_and_more(source) == (["measure: key"] if bad else [])
