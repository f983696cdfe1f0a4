"""What is measured of losses after short and long contexts; and the check on made-up falls."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from character_tokenizer import CharacterTokenizer
from judging import judged

from iclbook.claims.language.loss_by_context_length import claim, measure
from icllab.lab.checks import Outcome
from icllab.tasks import Text
from icllab.tasks.text_files import Documents

TOKENIZER = CharacterTokenizer()
TEXT = b"a man, a plan, a canal: Panama! Was it a car or a cat I saw? No lemon, no melon. " * 2
POINT = SimpleNamespace(model="glassllm-en", context=(2, 4, 12), near=4, targets=3, windows=4, seed=(0, 1))


def cache(prompt):
    """Logits of a token grow with how often it has come in the context."""
    seen = jax.nn.one_hot(prompt.tokens[:-1], TOKENIZER.get_vocab_size())
    return jnp.log(0.1 + jnp.cumsum(seen, axis=0))


@pytest.fixture
def of_cache(monkeypatch):
    """The claim's model counts tokens, and its text is that of this file."""
    monkeypatch.setattr(measure._models, "load", lambda name: cache)
    monkeypatch.setattr(measure._models, "tokenizer", lambda name: TOKENIZER)
    text = Text.from_documents(Documents(("a",), (TEXT,)), tokens=15, tokenizer=TOKENIZER)
    monkeypatch.setattr(measure, "_text", lambda model, tokens, tokenizer: (text, {"corpus_bytes": 1.0}))
    return text


def measured(**control):
    return {
        name: np.asarray(values)
        for name, (_, values) in measure.measure(POINT, key=jax.random.key(0), **control).items()
    }


def test_losses_are_those_of_the_same_targets_and_parts_of_the_fall_add_up(of_cache):
    results = measured()
    np.testing.assert_allclose(results["fall"].sum(axis=1), results["loss"][:, 1] - results["loss"][:, 2], atol=1e-6)
    np.testing.assert_allclose(results["share"].sum(axis=1), 1)
    rows = np.asarray(of_cache.sample_many(4, key=jax.random.fold_in(jax.random.key(0), 1)).tokens)
    for j, size in enumerate(POINT.context):
        losses = []
        for row in rows:
            for i in range(12, 15):
                seen = row[12 - size : i]
                weights = 0.1 + np.bincount(seen, minlength=TOKENIZER.get_vocab_size())
                losses.append(-np.log(weights[row[i]] / weights.sum()))
        np.testing.assert_allclose(results["loss"][1, j], np.mean(losses), rtol=1e-5)
    far = [row[i] in row[:i] and row[i] not in row[8:i] for row in rows for i in range(12, 15)]
    np.testing.assert_allclose(results["share"][1, 0], np.mean(far))


def test_a_model_that_counts_gains_from_far_repeats_and_from_its_own_text(of_cache):
    results = measured()
    assert results["fall"][:, 0].min() > 0 > results["fall"][:, 2].max()
    exchanged = measured(exchanged=True)
    np.testing.assert_allclose(exchanged["elsewhere_fall"].sum(1), results["fall"].sum(1), atol=1e-6)
    np.testing.assert_allclose(exchanged["fall"].sum(1), results["elsewhere_fall"].sum(1), atol=1e-6)
    negated = measured(negated=True)
    np.testing.assert_allclose(negated["fall"][:, 2], results["fall"][:, :2].sum(axis=1), atol=1e-6)
    np.testing.assert_allclose(negated["fall"][:, 0], results["fall"][:, 2], atol=1e-6)


def test_the_text_of_the_small_model_is_the_same_under_every_python():
    text = measure._sentences()
    assert b"The capital of France is Paris." in text.contents[0]
    assert text.digest()[:13] == "632cd2099fef6"


def made_up(fall=(0.8, 0.2, 0.1), elsewhere=0.1):
    rng = np.random.default_rng(0)
    parts = np.array(fall) + 0.05 * rng.normal(size=(12, 3))
    others = elsewhere / 3 + 0.02 * rng.normal(size=(12, 3))
    dims = ("seed", "target")
    return xr.Dataset(
        {"fall": (dims, parts), "elsewhere_fall": (dims, others)},
        coords={"target": list(claim.TARGETS), "context": [16, 256]},
        attrs={"configuration": json.dumps({"fixed": {"near": 16}})},
    ).expand_dims(model=["m"])


_, failing, outcome = judged(claim.check)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert failing(made_up(fall=(0.15, 0.0, 0.0), elsewhere=-0.5)) == ["falls"]
    assert failing(made_up(fall=(0.2, 0.2, 0.8))) == ["repetition"]
    assert failing(made_up(elsewhere=1.0)) == ["elsewhere"]
