"""What networks are trained on and asked, the entropy of the tail, and the check on made-up accuracies."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from first_updates import adam_rate
from judging import judged

import icllab as icl
from iclbook.claims.routing.long_tail import claim, measure
from icllab.lab.checks import Outcome

KEY = jax.random.key(0)
FIXED = {"items": 6, "label_count": 3, "pairs": 2, "zipf_exponent": 1.75, "shown": 0.5}
SIZES = {"width": 4, "layers": 1, "heads": 1, "batch": 4, "prompts": 8}
POINT = SimpleNamespace(**FIXED, **SIZES, lengths=claim.LENGTHS, step=(0, 2), test_set=claim.TESTS, seed=(0, 1))


def at(**changes):
    return SimpleNamespace(**{**vars(POINT), **changes})


@pytest.fixture(scope="module")
def fitted():
    """The tasks that networks are trained on, and the networks before training, of each pool or control."""
    tasks, fit = {}, icl.fit

    def noted(which, **how):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(icl, "fit", lambda n, t, **k: tasks.setdefault(which, []).append((t, n, k)) or fit(n, t, **k))
            return measure.measure(at(pool=which.split()[0], **how.pop("point", {})), key=KEY, **how)

    found = {"few": noted("few"), "few shown": noted("few shown", shown=1.0, point={"seed": (0,)})}
    return tasks, found


def test_lengths_and_fractions_of_shown_queries_are_those_of_training(fitted):
    tasks, found = fitted
    own = [task for task, *_ in tasks["few"]]
    assert [task.lengths for task in own] == [(2,), (1, 2)] * 2
    assert {float(task.shown) for task in own} == {0.5}
    assert {float(task.shown) for task, *_ in tasks["few shown"]} == {1.0}
    for name, (dims, values) in found["few"].items():
        lengths = ("lengths", "step") if name == "accuracy" else ()
        assert dims == ("seed", *lengths, "test_set")
        assert values.shape == (2, *((2, 2) if lengths else ()), 4)
    # One start for both lengths, another for another seed.
    starts = [np.asarray(network.readout.weight) for _, network, _ in tasks["few"]]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])
    assert {how["positions"] for *_, how in tasks["few"]} == {"last"}
    assert [adam_rate(how["optimizer"]) for *_, how in tasks["few"]] == pytest.approx([0.003] * 4, rel=1e-4)
    recall = dict(zip(claim.TESTS, found["few"]["recall_accuracy"][1].T, strict=True))
    assert recall["known"].min() == 1.0


def test_pools_are_equally_frequent_or_a_tail_of_the_same_entropy():
    numbers = claim.claim.fixed
    for name, (count, tailed) in claim.POOLS.items():
        task = measure.pool(at(pool=name, **numbers), KEY)
        frequencies = np.asarray(task.frequencies, float)
        assert task.table.shape == (count, numbers["items"])
        assert frequencies.sum() == pytest.approx(1, abs=1e-4)
        expected = np.arange(1, count + 1.0) ** (-1.75 if tailed else 0.0)
        np.testing.assert_allclose(frequencies / frequencies[0], expected, rtol=1e-4)
    perplexity = np.exp(-np.sum(frequencies * np.log(frequencies)))
    assert name == "tail"
    assert perplexity == pytest.approx(8.337, abs=0.001)
    assert round(perplexity) == claim.POOLS["few"][0]


def test_tests_are_of_the_longest_context_and_differ_in_what_they_ask():
    task = measure.pool(at(pool="few"), KEY)
    tests = measure.tests_of(task, leaked=False, shuffled=False)
    assert tuple(tests) == claim.TESTS
    assert {one.lengths for one in tests.values()} == {(2,)}
    assert [float(one.shown) for one in tests.values()] == [1, 0, 1, 1]
    assert [one.table is None for one in tests.values()] == [False, False, True, False]
    assert [one.edited for one in tests.values()] == [False, False, False, True]
    leaked = measure.tests_of(task, leaked=True, shuffled=True)
    assert all(one.shuffled and not one.edited and one.table is task.table for one in leaked.values())
    assert dataclasses.replace(leaked["new"], shuffled=False) == tests["known"]


def made_up(pools=tuple(claim.POOLS), steps=claim.STEPS, further=0.3, **accuracies):
    """Accuracies by pool, on each test; ``further``: of many functions at several lengths. So the claim is true."""
    rng = np.random.default_rng(0)
    true = {"few": (1, 0.97, 0.35, 0.3), "some": (1, 0.2, 0.97, 0.97)}
    true |= {"many": (0.45, 0.13, 0.45, 0.45), "tail": (1, 0.8, 0.95, 0.95)}
    rows = np.array([(true | accuracies)[name] for name in pools])[:, None, None, None]
    values = rows + 0.02 * rng.normal(size=(len(pools), 8, 2, len(steps), 4))
    if "many" in pools:
        values[pools.index("many"), :, 1] += further
    values[:, :, :, 0] = 0.05
    coords = {"pool": list(pools), "seed": range(8), "lengths": list(claim.LENGTHS), "step": list(steps)}
    recall = np.tile([1, 1, 0.5, 0.1], (len(pools), 8, 1)) + 0.01 * rng.normal(size=(len(pools), 8, 4))
    data = {"accuracy": ((*coords, "test_set"), values), "recall_accuracy": (("pool", "seed", "test_set"), recall)}
    attrs = {"configuration": json.dumps({"fixed": claim.claim.fixed})}
    return claim.theory(xr.Dataset(data, coords={**coords, "test_set": list(claim.TESTS)}, attrs=attrs))


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_the_line_is_that_of_naming_a_label_of_the_context():
    rng = np.random.default_rng(1)
    labels = rng.integers(8, size=(20000, 4))
    right = labels[:, 0] == labels[np.arange(20000), rng.integers(4, size=20000)]
    line = float(made_up()["accuracy_line"][0])
    assert abs(right.mean() - line) < 4 * (line * (1 - line) / 20000) ** 0.5


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(made_up(tail=(1, 0.8, 0.95, 0.5))) == {"learned"}
    assert names(made_up(some=(1, 0.8, 0.5, 0.95))) == {"learned"}
    assert names(made_up(many=(1, 0.1, 0.95, 0.4))) == {"not_learned"}
    several = made_up()
    several["accuracy"].loc[{"pool": ["some", "many"], "lengths": "several"}] = 0.75
    assert outcome(several) is Outcome.HOLDS
    assert names(made_up(few=(1, 0.97, 0.4, 0.95))) == {"not_learned"}
    assert names(made_up(few=(1, 0.2, 0.4, 0.3))) == {"recalled"}
    assert names(made_up(many=(0.1, 0.1, 0.1, 0.1))) == {"begun"}
    assert names(made_up(further=-0.1)) == {"several_lengths"}
    recalls = made_up()
    recalls["recall_accuracy"][:] = 0.9
    assert names(recalls) == {"level"}


def test_later_steps_and_smaller_sizes_are_not_judged():
    later = made_up(steps=(*claim.STEPS, 8000))
    later["accuracy"][..., -1, :] = 1.0
    assert outcome(later) is Outcome.HOLDS
    for part in (made_up(pools=("few",)), made_up(steps=(0, 250)), made_up().isel(lengths=[0])):
        assert outcome(part) is Outcome.UNDECIDED
        assert not failing(part)
    shuffled = made_up(pools=("few",), steps=(0, 150), few=(0.125,) * 4).sel(test_set=["known"])
    assert names(shuffled) == {"begun"}
