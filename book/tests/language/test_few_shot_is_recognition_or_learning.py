"""What is measured of few-shot prompts, with a model of bigrams; and the check on made-up scores."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from character_tokenizer import CharacterTokenizer
from judging import judged

from iclbook.claims.language.few_shot_is_recognition_or_learning import claim, measure
from icllab.core.prompt import TokenPrompt
from icllab.lab.checks import Outcome
from icllab.tasks import FewShot, pair_tables

TOKENIZER = CharacterTokenizer(" animal", " plant", " foo", " bar", " zip", " log", " mix", " tab")
LOGITS = np.random.default_rng(0).normal(size=(2 * [TOKENIZER.get_vocab_size()])).astype(np.float32)


def bigrams(prompt: TokenPrompt):
    """Logits that depend on the last token alone."""
    return jnp.asarray(LOGITS)[prompt.tokens[:-1]]


@pytest.fixture
def of_bigrams(monkeypatch):
    """The claim's model and tokenizer are those of this file."""
    monkeypatch.setattr(measure._models, "load", lambda name: bigrams)
    monkeypatch.setattr(measure._models, "tokenizer", lambda name: TOKENIZER)


def test_scores_are_those_of_the_task():
    task = FewShot.from_pairs(pair_tables.KINDS, TOKENIZER, shots=2)
    keys = list(jax.random.split(jax.random.key(1), 8))
    prompts, candidates = measure._sampled(task, keys)
    assert prompts.tokens.shape[1] % measure.STEP == 0
    likelihood, accuracy, choice = measure._scores(bigrams, prompts, candidates)
    for i, key in enumerate(keys):
        prompt = task.sample(key=key)
        logits = bigrams(prompt)
        np.testing.assert_allclose(likelihood[i], task.log_likelihood(logits, prompt), rtol=1e-5)
        assert accuracy[i] == task.exact_match(logits, prompt)
        first = np.asarray(task.answers)[:, 0]
        row, target = np.asarray(logits)[int(prompt.query)], int(prompt.tokens[int(prompt.query) + 1])
        assert bool(choice[i]) == (row[target] > max(row[t] for t in first if t != target))


def test_symbols_are_asked_only_where_they_have_an_answer_and_seeds_are_draws(of_bigrams):
    point = SimpleNamespace(
        model="glassllm-en", table="kinds", shots=(0, 2), shown=claim.LABELS, seed=(3, 5), prompts=2
    )
    scores = {name: values for name, (_, values) in measure.measure(point, key=jax.random.key(0)).items()}
    assert set(scores) == {"log_likelihood", "accuracy", "choice"}
    missing = np.isnan(scores["log_likelihood"])
    np.testing.assert_array_equal(missing[..., 0], [[False, False, True], [False, False, False]])
    # A model of bigrams knows the item's last letter alone: neither form nor labels help.
    np.testing.assert_allclose(scores["log_likelihood"][0, 0], scores["log_likelihood"][1, 1], rtol=1e-5)
    point.seed = (5,)
    alone = measure.measure(point, key=jax.random.key(0))["log_likelihood"][1]
    np.testing.assert_allclose(alone[..., 0], scores["log_likelihood"][..., 1], rtol=1e-5)


def test_the_learner_reads_the_answer_off_the_labels():
    keys = list(jax.random.split(jax.random.key(1), 12))

    def scores(labels, shots):
        task = FewShot.from_pairs(pair_tables.KINDS, TOKENIZER, shots=shots, labels=labels, balanced=True)
        return measure._learned(task, keys).mean(axis=1)

    np.testing.assert_allclose(scores("right", 0), [np.log(0.5), 0.5, 0], atol=0.3)
    for labels in ("right", "symbols"):
        np.testing.assert_allclose(scores(labels, 4), [np.log(3 / 4), 1, 1])
    assert scores("shuffled", 4)[0] < np.log(0.55)


def made_up(benefit=6.0, recognised=0.9):
    rng = np.random.default_rng(0)
    shots, tables = [0, 4, 16], ["capitals", "kinds"]
    likelihood = np.full((2, 3, 3, 16), -9.0) + 0.3 * rng.normal(size=(2, 3, 3, 16))
    likelihood[:, 1:, 0] += benefit
    likelihood[:, 1:, 1] += recognised * benefit
    dims = ("table", "shots", "shown", "seed")
    return xr.Dataset(
        {"log_likelihood": (dims, likelihood)},
        coords={"table": tables, "shots": shots, "shown": list(claim.LABELS)},
    ).expand_dims(model=["m"])


_, failing, outcome = judged(claim.check)


def test_the_check_tells_recognition_from_learning():
    assert outcome(made_up()) is Outcome.HOLDS
    assert set(failing(made_up(recognised=0.1))) == {"recognition[table=capitals]", "recognition[table=kinds]"}
    assert set(failing(made_up(benefit=0.2))) == {"helps[table=capitals]", "helps[table=kinds]"}
