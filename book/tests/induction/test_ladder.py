"""What is particular to this claim: its check on made-up curves, and rungs beside the landscape and other models."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction.ladder import claim, measure, rungs
from icllab.core.prompt import ItemLabelPrompt
from icllab.lab.checks import Outcome
from icllab.models import MinimalHead
from icllab.tasks import ItemLabel
from icllab.theory import induction_landscape

SEEDS, RECORDS = 10, 61
TIMES = np.linspace(0, 100, RECORDS)


def curve(end, floor=0.0, level=2.7):
    """A plateau, and a fall at ``end``; with a ``floor`` it falls part of the way before."""
    return level / (1 + np.exp((TIMES - end) / 2)) * (1 - floor * np.clip(TIMES / end, 0, 1))


def made_up(reader=0.38, causal=0.02, ratio=1.8, same=0.0, scatter=0.02, own=0.4):
    """Networks lose a share ``own`` of their loss on the plateau, the landscape nothing, and others in between."""
    rng = np.random.default_rng(0)
    floors = dict.fromkeys(claim.RUNGS, 0.0) | {"reader": reader, "causal": causal, "network": own}
    losses = np.empty((len(claim.RUNGS), SEEDS, 2, RECORDS))
    for r, name in enumerate(claim.RUNGS):
        for s in range(SEEDS):
            shaken = scatter * rng.normal() if name == "network" else 0.0
            losses[r, s, 1] = curve(45.0 + (same if name == "even" else 0.0), floors[name] + shaken)
            losses[r, s, 0] = curve(45.0 * ratio, floors[name] + shaken)
    coords = {"rung": list(claim.RUNGS), "label_count": [5, 16], "record": np.arange(RECORDS)}
    times = np.broadcast_to(TIMES, losses.shape)
    dims = ("rung", "seed", "label_count", "record")
    values = {"label_loss": (dims, losses), "record_time": (dims, times)}
    return claim.theory(xr.Dataset(values, coords, {"configuration": json.dumps({"fixed": {"pairs": 4}})}))


_, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"reader": 0.05}, {"most"}),
        ({"causal": 0.35}, {"little"}),
        ({"ratio": 0.7}, {"ratio"}),
        ({"same": 5.0}, {"same"}),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert {name.split("[")[0] for name in failing(made_up(**changes))} == found


def test_it_fails_where_a_rung_is_the_network_that_it_is_compared_with():
    dataset = made_up(scatter=0.05)
    losses = dataset["label_loss"].copy()
    losses.loc[{"rung": "labels"}] = losses.sel(rung="network").roll(seed=1, roll_coords=False).values
    found = failing(claim.theory(dataset.assign(label_loss=losses)))
    assert {"misfit[rung=labels]", "little[rung=labels]"} == set(found)


def test_networks_that_differ_as_much_as_the_landscape_tell_nothing():
    assert outcome(made_up(scatter=0.4)) is not Outcome.HOLDS


def test_a_plateau_that_has_not_ended_is_longer_than_its_record():
    """Five of ten without an end: the ratio has a lower limit, and no upper one."""
    dataset = made_up()
    ends = dataset["plateau_time"].copy()
    ends.loc[{"rung": "network", "label_count": 5, "seed": list(range(5))}] = np.nan
    found = {f.id: f for f in claim.check(dataset.assign(plateau_time=ends))}
    assert found["ratio[rung=network]"].outcome is Outcome.HOLDS
    ends = dataset["plateau_time"].copy()
    ends.loc[{"rung": "network", "label_count": 16}] = np.nan
    found = {f.id: f for f in claim.check(dataset.assign(plateau_time=ends))}
    assert found["ratio[rung=network]"].outcome is Outcome.UNDECIDED


def test_a_leaked_rung_is_the_network_of_the_seed_before(monkeypatch):
    asked = []

    def trained(rung, point, key, label_count, times, start):
        asked.append((rung, jax.random.key_data(key).tolist()))
        return times

    monkeypatch.setattr(measure, "trained", trained)
    for rung, seeds in (("labels", (1, 0)), ("network", (0, claim.LEAKED - 1))):
        point = SimpleNamespace(rung=rung, seed=seeds, label_count=(16,), record=(0, 1), faster=10.0, pairs=4)
        measure.measure(point, key=jax.random.key(len(rung)), leaked="labels")
    assert asked[:2] == asked[2:]
    assert {name for name, _ in asked} == {"network"}


def test_a_misfit_does_not_depend_on_the_unit_of_time_and_is_that_to_another_seed():
    dataset = made_up()
    slower = dataset.assign(record_time=dataset["record_time"] * xr.where(dataset.rung == "landscape", 0.04, 1.0))
    np.testing.assert_allclose(claim.theory(slower)["misfit"], dataset["misfit"], atol=2e-3)
    network = dataset["label_loss"].sel(rung="network", label_count=16)
    known = [claim._misfit(TIMES, network.values[s], TIMES, network.values[s - 1]) for s in range(SEEDS)]
    np.testing.assert_allclose(dataset["misfit"].sel(rung="network"), known)
    assert float(dataset["misfit"].sel(rung="network").min()) > 0


def test_a_plateau_ends_where_the_loss_first_falls_through_the_level():
    assert claim._falls(np.arange(4.0), np.array([3.0, 2.0, 1.0, 2.0]), 1.5) == 1.5
    assert np.isnan(claim._falls(np.arange(3.0), np.array([3.0, 2.0, 1.8]), 1.5))


def test_even_attention_is_the_landscape_and_causal_attention_the_minimal_head():
    """Token by token, on orthogonal items and labels, over every query."""
    w = jnp.array([1.0, 2.0, 4.0])
    even = rungs.strengths_loss(w, "even", 4, 16)
    np.testing.assert_allclose(even, induction_landscape.loss(*w, pairs=4, labels=16), rtol=1e-6)
    pairs, labels = 3, 5
    head, losses = MinimalHead.reading(labels=labels, beta1=w[0], alpha=w[1], xi=w[2]), []
    content = jnp.eye(2 * pairs, dtype=jnp.float32)
    for query in range(pairs):
        prompt = ItemLabelPrompt(
            items=jnp.concatenate([content[0::2], content[2 * query][None]]),
            label_vectors=content[1::2],
            labels=jnp.asarray([*range(pairs), query]),
            classes=jnp.zeros(pairs + 1, int),
            shift=jnp.zeros((), int),
            position_dim=2 * pairs + 1,
        )
        logits = head(prompt)[-1]
        losses.append(jax.nn.logsumexp(logits) - logits[query])
    np.testing.assert_allclose(rungs.strengths_loss(w, "causal", pairs, labels), np.mean(losses), rtol=1e-5)


def test_descent_with_small_steps_is_the_flow():
    flow = induction_landscape.flow((0.01, 0.01, 0.01), pairs=4, labels=16, time=60.0)
    times = np.linspace(0, 60, 31)
    exact = induction_landscape.loss(
        *[np.interp(times, flow.time, row) for row in flow.parameters.T], pairs=4, labels=16
    )
    how = {"kind": "even", "pairs": 4, "labels": 16, "records": 31, "between": 40}
    found = rungs.descended(jnp.full(3, 0.01), jnp.asarray(0.05), **how)
    assert np.sqrt(np.mean((found - exact) ** 2)) < 0.02


def test_separate_buffers_are_two_softmaxes_and_a_linear_reader():
    task = ItemLabel.init(classes=None, labels=5, pairs=2, dim=4, no_repeats=True, key=jax.random.key(0))
    model, prompt = rungs.SeparateBuffers.from_task(task, key=jax.random.key(1)), task.sample(key=jax.random.key(2))
    x = np.asarray(prompt.tokens(), float)
    (q1, q2, q3), (k1, k2, k3) = np.asarray(model.queries, float), np.asarray(model.keys, float)

    def softmax(scores):
        weights = np.exp(scores - scores.max())
        return weights / weights.sum()

    buffer = np.stack([softmax((x[i] @ q1) @ (x[: i + 1] @ k1.T.T).T) @ x[: i + 1] for i in range(len(x))])
    row = softmax((x @ k2) @ (x[-1] @ q2) + (buffer @ k3) @ (x[-1] @ q3))
    logits = np.concatenate([x[-1], row @ x]) @ np.asarray(model.readout)
    np.testing.assert_allclose(model(prompt)[-1], logits, rtol=2e-4, atol=1e-5)


def test_without_labels_the_preference_for_labels_stays():
    head = MinimalHead.reading(labels=3)
    assert len(measure.without_labels(head)) == 3
    assert not any(leaf is head.beta2 for leaf in measure.without_labels(head))
