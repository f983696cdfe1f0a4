"""What is particular to this claim: its check on made-up curves, and what it measures on known predictions."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged, theory_under

from iclbook.claims.induction import _chains
from iclbook.claims.induction.plateaus_are_ngrams import claim, measure
from icllab.algorithms import markov_strategies
from icllab.lab.checks import Outcome
from icllab.tasks import MarkovPool
from icllab.theory import markov_pools

STEPS = np.array(claim.STEPS)
FIXED = {"states": 3, "concentration": 0.5, "tokens": 20}
LEVELS = dict(zip(claim.NAMES, markov_pools.fresh_levels(**FIXED, unigram_concentration=1.5, draws=3000), strict=False))


def made_up(theory=None, *, phases=(10, 200), shift=0.0, end=0.0, flat=True, runs=12, counts=0.0):
    """Runs that go to unigrams at the first step of ``phases`` and to bigrams at the second."""
    rng, fall = np.random.default_rng(0), LEVELS["uniform"] - LEVELS["bigram"]
    near = np.searchsorted(phases, STEPS, side="right")
    if flat:
        values = np.array([LEVELS["uniform"], LEVELS["unigram"] + shift * fall, LEVELS["bigram"] + end * fall])
        loss = values[near]
    else:
        x = np.log(STEPS) / np.log(STEPS[-1])
        loss = LEVELS["uniform"] - fall * (3 * x**2 - 2 * x**3)  # steepest in the middle
    distance = np.where(np.arange(3) == near[:, None], 0.01, 0.2)
    axes = {"seed": np.arange(runs), "step": STEPS, "predictor": list(claim.NAMES)}
    dataset = xr.Dataset(
        {
            "loss_curve": (("seed", "step"), loss + 1e-3 * rng.normal(size=(runs, len(STEPS)))),
            "predictor_divergence": (("seed", "step", "predictor"), np.broadcast_to(distance, (runs, *distance.shape))),
            "predictor_loss": (
                ("seed", "predictor"),
                np.array([LEVELS[name] for name in claim.NAMES])
                + counts * np.array([0, 1, 1])
                + 1e-3 * rng.normal(size=(runs, 3)) * np.array([0, 1, 1]),
            ),
        },
        coords=axes,
        attrs={"configuration": json.dumps({"fixed": FIXED})},
    )
    levels = xr.DataArray([LEVELS[name] for name in claim.NAMES], coords={"predictor": list(claim.NAMES)})
    return dataset.assign(predictor_loss_theory=levels) if theory is None else theory(dataset)


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_it_holds_where_all_is_as_claimed():
    assert outcome(made_up()) is Outcome.HOLDS


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"phases": (10, 12)}, {"length"}),
        ({"phases": (10, 9999), "end": 0.55}, {"order", "end"}),
        ({"phases": (0, 200)}, {"order"}),
        ({"flat": False}, {"slower"}),
        ({"shift": 0.3}, {"excess"}),
        ({"end": 0.3}, {"end"}),
        ({"counts": 0.1}, {"level"}),
    ],
)
def test_it_fails_where_one_thing_is_otherwise(changes, found):
    assert names(made_up(**changes)) >= found
    assert outcome(made_up(**changes)) is Outcome.FAILS


def test_it_fails_where_bigrams_come_before_unigrams():
    dataset = made_up()
    exchanged = dataset["predictor_divergence"].sel(predictor=["uniform", "bigram", "unigram"])
    dataset["predictor_divergence"] = exchanged.assign_coords(predictor=list(claim.NAMES))
    assert "order" in names(dataset)
    assert outcome(dataset) is Outcome.FAILS


def test_it_fails_under_other_formulas():
    assert outcome(made_up(claim.theory)) is Outcome.HOLDS
    assert names(made_up(theory_under(claim, "endless"))) == {"level", "end"}
    assert names(made_up(theory_under(claim, "exchanged"))) == {"level", "excess", "end"}


POINT = SimpleNamespace(states=3, tokens=20, concentration=0.5)


def test_balanced_chains_are_doubly_stochastic_and_differ(getkey):
    pool = np.asarray(measure.task_of(POINT, "balanced", key=getkey()).pool)
    np.testing.assert_allclose(pool.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(pool.sum(axis=2), 1, atol=1e-5)
    assert pool.std(axis=0).min() > 0.1
    assert measure.task_of(POINT, "urns", key=getkey()).order == 0
    assert measure.task_of(POINT, "fresh", key=getkey()).pool is None


def test_losses_and_divergences_of_known_predictions(getkey):
    """Losses are the task's; a divergence is 0 from itself, and ln S less the entropy from uniform."""
    task = MarkovPool(3, 20, 1, 0.5)
    prompts = _chains.sample(task, 40, key=getkey())
    strategies = markov_strategies(task)
    references = {name: _chains.log_probabilities(law, prompts) for name, law in strategies.items()}
    loss = _chains.losses(references["Bi-G"], prompts)
    direct = jax.vmap(lambda prompt: task.loss(strategies["Bi-G"](prompt), prompt))(prompts)
    assert loss == pytest.approx(float(direct.mean()), rel=1e-5)
    answers = np.stack([references["Bi-G"], references["uniform"]])
    distance = _chains.divergences(references, answers)
    assert distance.shape == (2, 3)
    names = list(references)
    assert distance[0, names.index("Bi-G")] == pytest.approx(0, abs=1e-6)
    p = references["Bi-G"]
    entropy = -np.mean(np.sum(np.exp(p) * p, axis=-1))
    assert distance[1, names.index("Bi-G")] == pytest.approx(np.log(3) - entropy, rel=1e-4)


def test_sliding_predictions_begin_uniform_and_end_at_bigrams(getkey):
    task = MarkovPool(3, 12, 1, 0.5)
    prompts = _chains.sample(task, 8, key=getkey())
    strategies = markov_strategies(task)
    references = {n: _chains.log_probabilities(strategies[n], prompts) for n in ("uniform", "Uni-G", "Bi-G")}
    answers = measure.slide(references, (0, 1, 3, 8))
    np.testing.assert_allclose(answers[0], references["uniform"], atol=1e-6)
    # ln 4 of ln 9 is 0.631 of the way, 0.262 of that from unigrams to bigrams.
    part = 2 * np.log(4) / np.log(9) - 1
    unigram, bigram = (np.exp(references[name]) for name in ("Uni-G", "Bi-G"))
    np.testing.assert_allclose(np.exp(answers[2]), (1 - part) * unigram + part * bigram, atol=1e-5)
    np.testing.assert_allclose(answers[3], references["Bi-G"], atol=1e-5)
    np.testing.assert_allclose(np.exp(answers).sum(-1), 1, atol=1e-5)
