"""Claims about one network: they are asked of planted networks of known answer, by name and as objects."""

import os
import tomllib
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import icllab as icl
from iclbook.claims.induction.plateaus_are_ngrams.claim import phases
from icllab import algorithms
from icllab.algorithms import markov_strategies
from icllab.core.errors import InputError
from icllab.examination import claims as examined
from icllab.lab import records, registry
from icllab.lab.subjects import LanguageModel
from icllab.models import pretrained
from icllab.tasks import MarkovPool

DOCS = Path(__file__).parents[3] / "docs"
UNCONTROLLED = {"routing/one_by_one"}
"""Claims whose controls are all other trainings."""
SUBJECTS = {name: subject for name in registry.claims() if (subject := records.statement(name).get("subject"))}


def test_fifteen_claims_and_all_of_language_speak_of_a_network():
    assert len(SUBJECTS) >= 15
    assert {name for name in registry.claims() if name.startswith("language/")} <= set(SUBJECTS)
    for name, subject in SUBJECTS.items():
        claim = registry.load(name)
        assert records.about(claim)["subject"] == subject
        assert "network" in claim.sentence or "blocks" in claim.sentence
        assert "SmolLM2" not in claim.sentence
        assert "network" in registry.parameters(claim)
        assert bool(claim.subject.controls) == (name not in UNCONTROLLED)


def test_the_docs_say_why_the_others_take_none():
    reasons = tomllib.loads((DOCS / "subjects.toml").read_text("utf-8"))["reason"]
    listed = [name for reason in reasons for name in reason["claims"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(registry.claims()) - set(SUBJECTS)


def half(prompt):
    """Half of ridge, and half of the label of the nearest example."""
    distance = jnp.sum((prompt.x[:, None] - prompt.x[None]) ** 2, -1)
    earlier = jnp.tril(jnp.ones(distance.shape, bool), -1)
    nearest = jnp.argmin(jnp.where(earlier, distance, jnp.inf), 1)
    return 0.5 * algorithms.Ridge(0.5)(prompt) + 0.5 * jnp.where(jnp.arange(len(prompt.y)) > 0, prompt.y[nearest], 0.0)


@pytest.mark.claims
@pytest.mark.parametrize(
    ("network", "accepted"),
    [
        (algorithms.Ridge(0.3), "ridge"),
        (algorithms.GradientDescent(0.4, layers=1, dim=2, normalised=True, half=True), "1 step"),
        (half, None),
    ],
)
def test_which_algorithm_is_asked_of_the_network_that_is_given(network, accepted, tmp_path):
    axes = {"network": ["transformer"], "prompts": [256], "fitting": [128]}
    dataset = icl.run("descent/which_algorithm", "smoke", out=tmp_path, network=network, axes=axes, seeds=2)
    rows = dataset["accepted"].sel(input_scale=1).isel(layers=0, rho=0, step=0, network=0)
    for candidate in ("ridge", "1 step"):
        assert (rows.sel(candidate=candidate).values == (candidate == accepted)).all(), candidate


@pytest.mark.claims
def test_the_curve_of_a_network_is_its_own(tmp_path):
    axes = {"predictor": ["ridge", "Bayes", "no positions"]}
    options = {"out": tmp_path, "axes": axes, "network": algorithms.Ridge(0.25)}
    loss = icl.run("asymptotics/in_context_curve", "smoke", **options)["loss"]
    np.testing.assert_allclose(loss.sel(predictor="no positions"), loss.sel(predictor="ridge"), rtol=1e-5)


@pytest.mark.claims
def test_phases_of_a_planted_run_come_in_its_order(tmp_path):
    task = MarkovPool(3, 64, 1, 0.5)
    strategies = markov_strategies(task, unigram_concentration=1.5)
    names = ("uniform", "Uni-G", "Bi-G")
    for order, expected in ((names, True), (names[::-1], False)):
        run = {10**i: strategies[name] for i, name in enumerate(order)}
        options = {"out": tmp_path / order[0], "axes": {"prompts": [16]}, "network": run}
        dataset = icl.run("induction/plateaus_are_ngrams", "smoke", **options)
        assert dataset["step"].values.tolist() == [1, 10, 100]
        assert (phases(dataset)["ordered"].values == expected).all()


@pytest.mark.claims
def test_a_language_model_that_knows_nothing_has_the_loss_of_guessing(tmp_path):
    folder = Path(os.environ.get("ICLLAB_MODELS", "models")) / "glassllm-en"
    if not folder.is_dir():
        pytest.skip("no glassllm-en; `make models` brings it")
    model, tokenizer = pretrained.load(folder), pretrained.tokenizer(folder)
    zero = jax.tree.map(lambda leaf: 0 * leaf if eqx.is_inexact_array(leaf) else leaf, model)
    options = {"out": tmp_path, "seeds": 2, "axes": {"context": [16], "near": [16]}}
    name = "language/loss_by_context_length"
    dataset = icl.run(name, "smoke", network=LanguageModel(zero, tokenizer), **options)
    np.testing.assert_allclose(dataset["loss"], np.log(model.embedding.arrangement.vocabulary), rtol=1e-5)
    with pytest.raises(InputError, match="expected a language model"):
        icl.run(name, "smoke", network=algorithms.Ridge(1.0), **options)


def test_networks_of_another_kind_are_refused_in_one_line(tmp_path):
    ridge = algorithms.Ridge(1.0)
    for name, network, message in (
        ("induction/plateaus_are_ngrams", ridge, "a training run of a predictor of tokens"),
        ("induction/plateaus_are_ngrams", {1: ridge}, "expected an answer to a prompt of the task"),
        ("context_map/rank_one_patch", ridge, "expected a Transformer"),
        ("descent/which_algorithm", {1: ridge}, "got 'a training run'"),
        ("asymptotics/double_descent", ridge, "a claim that speaks of one network"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            icl.run(name, "smoke", out=tmp_path, network=network)
        assert "\n" not in str(caught.value)


def test_the_claims_of_a_kind_are_listed_without_their_files(monkeypatch):
    monkeypatch.setattr(registry, "load", lambda *_: pytest.fail("a claim is imported"))
    rows = {kind: [row["claim"] for row in examined.applicable(kind, False)] for kind in ("regression", "tokens")}
    assert "descent/which_algorithm" in rows["regression"]
    assert not rows["tokens"]
    assert "induction/plateaus_are_ngrams" in [row["claim"] for row in examined.applicable("tokens", True)]
    text = str(examined.part(examined.applicable("regression", False)))
    assert "not asked: icl run descent/which_algorithm --network" in text


def test_sizes_of_a_task_take_the_place_of_a_claims_own():
    task = MarkovPool(4, 32, 1, 0.5)
    axes = examined.axes_of("induction/plateaus_are_ngrams", "small", task)
    assert axes == {"states": [4], "tokens": [32]}
    assert examined.axes_of("descent/which_algorithm", "small", task) == {}


@pytest.mark.claims
def test_an_examination_asks_a_claim_of_its_network():
    task = MarkovPool(3, 16, 1, 0.5)
    strategies = markov_strategies(task, unigram_concentration=1.5)
    run = {10**i: strategies[name] for i, name in enumerate(("uniform", "Uni-G", "Bi-G"))}
    row = next(r for r in examined.applicable("tokens", True) if r["claim"] == "induction/plateaus_are_ngrams")
    answer = examined.asked(row | {"size": "smoke"}, None, task, run)
    assert answer["verdict"] in ("holds", "fails", "undecided"), answer
    refused = examined.asked(row | {"size": "smoke"}, None, task, {1: algorithms.Ridge(1.0)})
    assert refused["verdict"] is None
    assert "expected an answer" in refused["reason"]
