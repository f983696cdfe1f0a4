"""What is particular to this claim: its check on made-up times, what is masked, and what is supplied and trained."""

import dataclasses
import json
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction import _networks
from iclbook.claims.induction.what_the_curriculum_does import claim, measure
from icllab.lab.checks import Outcome

STEPS = np.arange(0, 4001, 50)
TIMES = {claim.MORE: 900.0, claim.MASKED: 9000.0, claim.EQUAL: 9000.0, claim.HELD: 600.0, claim.FREE: 9000.0}
TIMES |= {claim.SHUFFLED: 2500.0}


def made_up(times=None, outside=0.0, last=4000, seeds=10, arms=claim.ARMS):
    """Jumps at times that scatter; labels out of context are left at so much of the time of the jump."""
    rng = np.random.default_rng(0)
    accuracy, probability = np.empty((2, 1, seeds, len(arms), len(STEPS)))
    for i, arm in enumerate(arms):
        for seed in range(seeds):
            at = (TIMES | (times or {}))[arm] * np.exp(0.2 * rng.normal())
            accuracy[0, seed, i] = 1 / 4 + 3 / 4 / (1 + np.exp((at - STEPS) / 30))
            left = 0.75 / (1 + np.exp((STEPS - 0.7 * at) / 60))
            probability[0, seed, i] = left if arm == claim.MORE else outside
    axes = ("dim", "seed", "intervention", "step")
    dataset = xr.Dataset(
        {"accuracy": (axes, accuracy), "outside_probability": (axes, probability)},
        coords={"dim": [31], "seed": np.arange(seeds), "intervention": list(arms), "step": STEPS},
        attrs={"configuration": json.dumps({"fixed": {"pairs": 4, "label_count": 16, "prompts": 512}})},
    )
    return dataset.sel(step=slice(0, last))


outcomes, failing, outcome = judged(claim.check)


def named(ids):
    return sorted({id.split("[")[0] for id in ids})


def test_it_holds_where_all_is_as_claimed():
    found = outcomes(made_up())
    assert set(found.values()) == {Outcome.HOLDS}, found
    ratios = ["ratio_held", "ratio_removed", "ratio_taught"]
    assert named(found) == ["before", "learned", "outside", *ratios, "restored"]


def test_it_fails_where_masking_changes_nothing_or_brings_it_forward():
    assert {"before", "ratio_removed"} <= set(named(failing(made_up({claim.MASKED: 900.0}))))
    assert {"before", "ratio_removed"} <= set(named(failing(made_up({claim.MASKED: 300.0}))))


def test_it_fails_where_the_readout_that_is_held_does_not_help():
    assert "restored" in named(failing(made_up({claim.HELD: 9000.0})))
    assert named(failing(made_up({claim.EQUAL: 150.0}))) == ["ratio_held"]
    assert named(failing(made_up({claim.SHUFFLED: 600.0}))) == ["ratio_taught"]


def test_it_fails_where_a_network_with_more_labels_does_not_learn():
    assert "learned" in named(failing(made_up({claim.MORE: 9000.0})))


def test_it_fails_where_labels_out_of_context_are_answers():
    assert "outside" in named(failing(made_up(outside=0.01)))


def test_arms_are_compared_whether_or_not_others_are_there():
    found = set(named(outcomes(made_up(arms=claim.ARMS[:3]))))
    assert found == {"before", "learned", "outside", "ratio_removed"}


@pytest.fixture(scope="module")
def begin():
    return _networks.start(0, key=jax.random.key(3), labels=6, pairs=2, dim=5)


def test_masked_losses_are_those_of_the_labels_in_the_context(begin):
    task, logits = begin.task, jnp.asarray(np.random.default_rng(0).normal(size=(1, 6)), jnp.float32)
    prompts = task.sample_many(8, key=jax.random.key(0))
    among = measure.among_context(task)
    for i in range(8):
        prompt = jax.tree.map(lambda leaf, i=i: leaf[i], prompts)
        shown, right = np.asarray(prompt.labels[:-1]), int(prompt.labels[-1])
        kept = np.asarray(logits, float)[0, shown]
        expected = np.log(np.exp(kept).sum()) - float(logits[0, right])
        np.testing.assert_allclose(among.loss(logits, prompt), [expected], rtol=1e-5)
        assert float(among.accuracy(logits, prompt)[0]) == (shown[kept.argmax()] == right)
        slopes = np.asarray(jax.grad(lambda f, p=prompt: among.loss(f, p)[0])(logits))[0]
        assert np.all(np.delete(slopes, shown) == 0)
        assert np.all(slopes[shown] != 0)


def test_the_probability_of_other_labels_and_the_accuracy_of_chance(begin):
    """With equal logits: (L - N)/L in the task, none where it is masked; one of equal labels is right in 1/N."""
    blank = jax.tree.map(lambda leaf: 0 * leaf if eqx.is_array(leaf) else leaf, begin.network)
    how = {"key": jax.random.key(1), "prompts": 2000}
    found = measure.measured([blank, blank], begin.task, **how)
    np.testing.assert_allclose(found["outside_probability"], 4 / 6, rtol=1e-5)
    np.testing.assert_allclose(found["accuracy"], 1 / 2, atol=4 * 0.5 / 2000**0.5)
    among = measure.measured([blank, blank], measure.among_context(begin.task), **how)
    np.testing.assert_array_equal(among["outside_probability"], 0.0)
    np.testing.assert_array_equal(among["accuracy"], found["accuracy"])


def test_the_readout_that_is_supplied_is_the_donors_and_all_else_the_networks(begin):
    other = _networks.start(1, key=jax.random.key(3), labels=6, pairs=2, dim=5).network
    fewer = eqx.tree_at(measure.last_matrix, begin.network, measure.last_matrix(begin.network)[:, :2])
    made = measure.with_reading(fewer, other)
    np.testing.assert_array_equal(made.layers[1].value, other.layers[1].value)
    np.testing.assert_array_equal(made.classifier.readout, other.classifier.readout[:, :2])
    for ours, theirs in zip(made.classifier.weights, other.classifier.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(*map(jax.tree.leaves, map(measure.all_else, (made, fewer))), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    mixed = measure.with_reading(fewer, other, jax.random.key(0))
    value, known = (np.asarray(one.layers[1].value) for one in (mixed, made))
    assert np.abs(value - known).max() > 0.1
    np.testing.assert_array_equal(np.sort(value.ravel()), np.sort(known.ravel()))


def test_what_is_held_stays_and_all_else_is_trained(begin):
    few = dataclasses.replace(begin.task, label_vectors=begin.task.label_vectors[:2])
    fewer = eqx.tree_at(measure.last_matrix, begin.network, measure.last_matrix(begin.network)[:, :2])
    point = SimpleNamespace(step=(0, 3), batch=8, learning_rate=0.3)
    first, last = measure.trained(few, fewer, point, begin.of_prompts, free=measure.all_else)
    for before, after in zip(*map(jax.tree.leaves, map(measure.reading, (first, last))), strict=True):
        np.testing.assert_array_equal(before, after)
    for before, after in zip(*map(jax.tree.leaves, map(measure.all_else, (first, last))), strict=True):
        assert np.abs(np.asarray(before) - np.asarray(after)).max() > 0


@pytest.mark.parametrize(("jump", "expected"), [(5, 4), (10, 8), (3, 2), (None, 8)])
def test_the_donor_is_from_before_the_jump(jump, expected):
    point = SimpleNamespace(step=tuple(range(0, 501, 50)), pairs=4)
    accuracy = np.full(11, 0.25)
    accuracy[11 if jump is None else jump :] = 0.9
    assert measure.before_the_jump(accuracy, point) == expected


def test_every_arm_is_what_it_says(monkeypatch):
    """Who is trained on what, from which start, and from which step of which run the readout is."""
    steps, calls = (0, 50, 100, 150, 200, 250), []

    def trained(task, network, point, key, free=None):
        calls.append((task, network, key, free))
        grown = [eqx.tree_at(measure.last_matrix, network, measure.last_matrix(network) + i) for i in range(len(steps))]
        return [eqx.tree_at(lambda n: n.layers[1].value, one, one.layers[1].value + 1) for one in grown]

    def measured(networks, task, key, prompts):
        keys.append(key)
        return {"accuracy": np.where(np.array(steps) < 250, 0.5, 1.0), "outside_probability": np.zeros(len(steps))}

    keys = []
    monkeypatch.setattr(measure, "trained", trained)
    monkeypatch.setattr(measure, "measured", measured)
    sizes = {"pairs": 2, "label_count": 6, "dim": 5, "prompts": 8, "step": steps}
    axes, found = measure.measure(
        SimpleNamespace(**sizes, intervention=claim.ARMS, seed=(0, 1)), key=jax.random.key(0)
    )["accuracy"]
    assert axes == ("seed", "intervention", "step")
    assert found.shape == (2, len(claim.ARMS), len(steps))
    known = [jax.random.key_data(key).tolist() for *_, key, _ in calls]
    assert known[0] != known[len(claim.ARMS)]
    first = calls[: len(claim.ARMS)]
    assert all(one == known[0] for one in known[: len(claim.ARMS)])
    assert not {tuple(jax.random.key_data(key).tolist()) for key in keys} & {tuple(one) for one in known}
    masked = [isinstance(task, measure.AmongContext) for task, *_ in first]
    assert sum(masked) == 1
    (more, network), (_, other) = [(task, start) for task, start, *_ in first if task.labels == 6]
    assert network is other
    few = [(start, free) for task, start, _, free in first if task.labels == 2]
    assert len(few) == 4
    np.testing.assert_array_equal(more.label_vectors[:2], next(t for t, *_ in first if t.labels == 2).label_vectors)
    plain = np.asarray(measure.last_matrix(network))[:, :2]
    # The donor is from step 200, the last within 0.8 of the jump at 250.
    kinds = {}
    for start, free in few:
        last = np.asarray(measure.last_matrix(start))
        kind = "untouched" if np.array_equal(last, plain) else "donor's"
        kind = kind if kind == "untouched" or np.allclose(last, plain + 4) else "shuffled"
        kinds[kind, free is not None] = start
        for ours, theirs in zip(*map(jax.tree.leaves, map(measure.all_else, (start, network))), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert set(kinds) == {("untouched", False), ("donor's", True), ("donor's", False), ("shuffled", True)}
    np.testing.assert_allclose(kinds["donor's", True].layers[1].value, network.layers[1].value + 1, rtol=1e-6)


def test_with_equal_labels_the_first_arm_is_the_other(monkeypatch):
    calls = []
    monkeypatch.setattr(measure, "trained", lambda task, network, *_: calls.append((task, network)) or [network])
    rows = {"accuracy": np.zeros(1), "outside_probability": np.zeros(1)}
    monkeypatch.setattr(measure, "measured", lambda *_: rows)
    sizes = {"pairs": 2, "label_count": 6, "dim": 5, "prompts": 8, "step": (0,)}
    point = SimpleNamespace(**sizes, intervention=(claim.MORE, claim.EQUAL), seed=(0,))
    for equal in (False, True):
        measure.measure(point, key=jax.random.key(0), equal=equal)
    assert [task.labels for task, _ in calls] == [6, 2, 2, 2]
    assert eqx.tree_equal(calls[2][1], calls[3][1])
