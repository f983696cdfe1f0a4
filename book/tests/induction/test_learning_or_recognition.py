"""What is particular to this claim: its check on made-up accuracies, fractions, crossings, and its recognition."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.induction import _accuracy, _networks
from iclbook.claims.induction.learning_or_recognition import claim, measure
from icllab.lab.checks import Outcome
from icllab.models import ItemLabelNetwork
from icllab.tasks import LabelRelations, Mixture
from icllab.theory import label_relations

RELATIONS = (1, 2, 4, 8, 16, 64, 1024)
FIXED = {"label_count": 16, "pairs": 4, "prompts": 2048}


def made_up(lost=0.8, learned=2.5, width=0.5, own=0.99, noise=0.01, seeds=10, recognition=None):
    """The recognised fraction falls through 1/2 at log2 M = ``lost``; the learned one rises at ``learned``."""
    rng = np.random.default_rng(0)
    x = np.log2(RELATIONS)
    sizes = {"pairs": 4, "labels": 16}
    new = np.asarray(label_relations.recognition_on_a_new_relation(np.array(RELATIONS), **sizes))
    unseen = np.asarray(label_relations.recognition_on_an_unseen_item(np.array(RELATIONS), **sizes))
    share = 1 / (1 + np.exp(-(x - learned) / width))
    known = 1 / (1 + np.exp((x - lost) / width * 3))
    last = np.stack([np.full(len(x), own), new + (1 - new) * share, 1 / 12 + (unseen - 1 / 12) * known], axis=1)
    accuracy = np.full((len(x), 3, 2, seeds), 1 / 16)
    accuracy[:, :, 1] = last[..., None]
    accuracy += noise * rng.normal(size=accuracy.shape)
    measured = new if recognition is None else recognition(new)
    dataset = xr.Dataset(
        {
            "accuracy": (("relations", "test_set", "step", "seed"), accuracy),
            "recognition_accuracy": (
                ("relations", "seed"),
                measured[:, None] + 0.01 * rng.normal(size=(len(x), seeds)),
            ),
        },
        coords={
            "relations": list(RELATIONS),
            "test_set": list(claim.TESTS),
            "step": [0, 6000],
            "seed": np.arange(seeds),
        },
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    return claim.theory(dataset)


outcomes, failing, outcome = judged(claim.check)


def test_it_holds_where_all_is_as_claimed():
    assert set(outcomes(made_up()).values()) == {Outcome.HOLDS}


def test_it_fails_where_one_relation_is_learned_or_many_are_recognised():
    found = failing(made_up(lost=-9.0, learned=-9.0))
    assert {"recognised[relations=1]", "learned[relations=1]"} <= set(found)
    found = failing(made_up(lost=99.0, learned=99.0))
    assert {"learned[relations=1024]", "recognised[relations=1024]"} <= set(found)


def test_it_fails_where_a_relation_is_recognised_or_learned_in_part():
    """Three quarters is not all, and a quarter is not nothing."""
    whole = made_up()
    for name, at, value in (
        ("recognised", 1, 0.75),
        ("learned", 1, 0.25),
        ("learned", 1024, 0.75),
        ("recognised", 1024, 0.25),
    ):
        fractions = whole[f"{name}_fraction"].copy()
        fractions.loc[{"relations": at}] += value - fractions.sel(relations=at).mean("seed")
        assert f"{name}[relations={at}]" in failing(whole.assign({f"{name}_fraction": fractions}))


def test_it_fails_where_recognition_outlasts_learning_and_where_learning_takes_many_relations():
    assert failing(made_up(lost=4.0, learned=2.0)) == ["neither"]
    assert failing(made_up(learned=7.5)) == ["learned_from"]


@pytest.mark.parametrize("level", [1 / 16, 1.0])
def test_it_fails_where_recognition_does_not_follow_its_formula(level):
    """Any relation, whatever the context shows; or the answer of the context."""
    found = failing(made_up(recognition=lambda new: np.full_like(new, level)))
    assert found
    assert all(name.startswith("recognition[") for name in found)


def test_it_is_undecided_where_networks_have_not_learned_or_the_data_cannot_tell():
    assert outcome(made_up(own=0.5)) is Outcome.UNDECIDED
    assert outcome(made_up(seeds=1)) is Outcome.UNDECIDED


def test_errors_of_three_seeds_are_those_of_their_scatter():
    """Where both fractions are lines of slope 1/4 and cross half-way between two points, to first order in the noise.

    Resampled as they are, three seeds vary by a third of the variance too little.
    """
    dataset, slope, noise = made_up(noise=0.0, seeds=3), 0.25, 0.005
    x = xr.DataArray(np.log2(RELATIONS), {"relations": list(RELATIONS)}, "relations")
    scatter = noise * np.random.default_rng(0).normal(size=(2, len(x), 3))
    learned, recognised = (xr.zeros_like(dataset["learned_fraction"]).copy(data=some) for some in scatter)
    dataset["learned_fraction"] = 0.5 + slope * (x - 2.5) + learned
    dataset["recognised_fraction"] = 0.5 - slope * (x - 0.5) + recognised
    of_learned = learned.sel(relations=[4, 8]).var("seed", ddof=1).sum() / 3 / (2 * slope) ** 2
    of_lost = recognised.sel(relations=[1, 2]).var("seed", ddof=1).sum() / 3 / (2 * slope) ** 2
    found = {finding.id: finding.standard_error**2 for finding in claim.check(dataset)}
    reached = {"rel": 4 * (2 / claim.RESAMPLED) ** 0.5}  # standard errors of a variance over resampled seeds
    assert found["learned_from"] == pytest.approx(float(of_learned), **reached)
    assert found["neither"] == pytest.approx(float(of_learned + of_lost), **reached)


def test_fractions_are_zero_and_one_for_who_recognises_and_who_learns():
    dataset = made_up(noise=0.0)
    recognition = dataset["recognition_accuracy_theory"].broadcast_like(dataset["accuracy"])
    found = claim.theory(dataset.assign(accuracy=recognition))
    np.testing.assert_allclose(found["learned_fraction"], 0.0, atol=1e-12)
    np.testing.assert_allclose(found["recognised_fraction"], 1.0, rtol=1e-12)
    learner = xr.DataArray([1.0, 1.0, 1 / 12], dims="test_set", coords={"test_set": list(claim.TESTS)})
    found = claim.theory(dataset.assign(accuracy=learner.broadcast_like(dataset["accuracy"])))
    np.testing.assert_allclose(found["learned_fraction"], 1.0, rtol=1e-12)
    np.testing.assert_allclose(found["recognised_fraction"], 0.0, atol=1e-12)


def cell(point=None, **changes):
    """Of untrained networks, which recognition does not ask, unless the ``point`` has other steps."""
    sizes = {"classes": 16, "label_count": 16, "pairs": 4, "dim": 4, "rows": 64, "loss": 0.05, "prompts": 256}
    sizes |= {"relations": 64, "test_set": (claim.TESTS[1],), "step": (0,), "seed": (0, 1)}
    point = SimpleNamespace(**sizes | (point or {}))
    return {name: values for name, (_, values) in measure.measure(point, key=jax.random.key(0), **changes).items()}


def test_recognition_is_right_on_leaked_relations_alone():
    """Of 64 relations no two agree on four of sixteen items: a prompt of one of them names it."""
    new = float(label_relations.recognition_on_a_new_relation(64, pairs=4, labels=16))
    found = cell()["recognition_accuracy"]
    assert np.all(np.abs(found - new) < 4 * (new * (1 - new) / 256) ** 0.5)
    np.testing.assert_array_equal(cell(leaked=True)["recognition_accuracy"], 1.0)


def test_networks_are_trained_on_their_relations_and_asked_all_others(monkeypatch):
    """A network that is trained answers by its relation; accuracies are those of the network of the step."""
    trained, tests = [], []

    def until(task, network, **how):
        assert isinstance(network, ItemLabelNetwork)
        trained.append((task, how))
        return SimpleNamespace(member=lambda i: None)

    def accuracy(network, test, *, key, prompts):
        tests.append((test, tuple(jax.random.key_data(key).tolist())))
        return 0.5 if network is None else 0.25

    monkeypatch.setattr(_accuracy, "train_until", until)
    monkeypatch.setattr(_accuracy, "accuracy", accuracy)
    changes = {"test_set": claim.TESTS, "step": (0, 9)}
    for how in ({}, {"fresh": True}, {"leaked": True}):
        np.testing.assert_array_equal(cell(**how, point=changes)["accuracy"], [[[0.25, 0.5]] * 3] * 2)
    (task, kept), (other, _), *fresh = trained[:4]
    assert (kept["steps"], kept["loss"]) == (9, 0.05)
    assert task.table.shape == (64, 16)
    assert not np.array_equal(task.table, other.table)
    assert [one.table for one, _ in fresh] == [None, None]
    np.testing.assert_array_equal(trained[4][0].table, task.table)
    seeds = {tuple(jax.random.key_data(how["key"]).tolist()) for _, how in trained}
    keys = {key for _, key in tests}
    assert (len(seeds), len(keys), len(seeds & keys)) == (2, 6, 0)
    of_first_seed = {"usual": tests[:6:2], "leaked": tests[24:30:2]}  # 2 seeds, 3 tests, 2 steps, 3 controls
    for name, asked in of_first_seed.items():
        assert [test.unseen for test, _ in asked] == [False, False, True]
        assert [test.table is None for test, _ in asked] == [False, name == "usual", False]


def test_recognition_by_hand():
    """Two relations of three labels; the second agrees with both pairs, and of a new one both agree with none."""
    table = np.array([[0, 1, 2], [1, 2, 0]])
    prompts = SimpleNamespace(classes=np.array([[0, 1, 1], [2, 0, 0]]), labels=np.array([[1, 2, 2], [1, 2, 2]]))
    assert measure.recognised(table, prompts, seed=0) == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("both", [True, False], ids=["both ways", "one way"])
def test_a_network_answers_the_converse_of_a_symmetric_relation_if_it_was_asked_converses(both):
    """On new relations; converses whose item is not in the context. Without them it names a label of the context."""
    begin = _networks.start(4, key=jax.random.key(7), classes=8, labels=8, pairs=2, dim=31)
    pairs = LabelRelations.init(begin.task, None, symmetric=True, key=begin.of_task)
    converses = pairs.converses()
    task = Mixture((pairs, converses), [1.0, 1.0 if both else 0.0])
    network = _accuracy.train_until(
        task, begin.network, loss=0.05, memory=100, steps=4000, key=begin.of_prompts
    ).member(0)
    assert _accuracy.accuracy(network, pairs, key=jax.random.key(1), prompts=1024) > 0.99
    prompts = _accuracy.sample(converses, key=jax.random.key(2), prompts=1024)
    answers = np.asarray(jax.jit(jax.vmap(network))(prompts))[:, -1].argmax(axis=-1)
    labels, items = np.asarray(prompts.labels), np.asarray(prompts.classes)
    asked = (items[:, :-1] != items[:, -1:]).all(axis=1)
    accuracy = (answers == labels[:, -1])[asked].mean()
    named = (answers[:, None] == labels[:, :-1]).any(axis=1)[asked].mean()
    assert accuracy > 0.99 if both else accuracy < 0.05 and named > 0.9
