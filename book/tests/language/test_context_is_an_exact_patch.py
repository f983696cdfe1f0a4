"""What is measured of patches, against patches one by one; the texts; and the check on made-up errors."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged
from scipy.special import log_softmax

from iclbook.claims.language import _models
from iclbook.claims.language.context_is_an_exact_patch import claim
from iclbook.claims.language.context_is_an_exact_patch import measure as measured
from icllab.lab.checks import Outcome
from icllab.models import BlockOptions, Tokens, Transformer, best_patch, rank_one_patch

POINT = SimpleNamespace(model="smollm2-135m", context_tokens=5, query_tokens=2, queries=3, fitted=6, seed=(1,))


class Letters:
    """A tokenizer with an id from 1 for each letter, and 0 for the beginning."""

    def encode(self, text):
        return SimpleNamespace(ids=[1 + ord(letter.lower()) % 11 for letter in text if letter.isalpha()])

    def token_to_id(self, token):
        return {"<|endoftext|>": 0}[token]


def small_model():
    block = BlockOptions(
        heads=2, mlp=(24,), norm="pre", norm_kind="rms", gated=True, nonlinearity="silu", mlp_bias=False
    )
    return Transformer(
        Tokens(12), dim=12, width=16, layers=2, block=block, positions="rotary", std=0.5, key=jax.random.key(3)
    )


def kl(wanted, given):
    wanted, given = (log_softmax(np.asarray(logits, np.float64)) for logits in (wanted, given))
    return np.sum(np.exp(wanted) * (wanted - given))


@pytest.mark.slow
def test_fractions_are_those_of_patches_made_for_a_query_at_a_time(monkeypatch):
    with jax.enable_x64(True):
        model = small_model()
        monkeypatch.setattr(_models, "load", lambda name: model)
        monkeypatch.setattr(_models, "tokenizer", lambda name: Letters())
        key = jax.random.key(0)
        values = measured.measure(POINT, key=key)
        fractions = dict(zip(claim.PATCHES, values["effect_left"][1][0], strict=True))
        rng = np.random.default_rng([1, *np.asarray(jax.random.key_data(key))])
        text, other = (Letters().encode(measured.passage(rng)).ids for _ in range(2))
        answer, patch = jax.jit(lambda prompt: model(prompt)[-1]), jax.jit(lambda *pair: rank_one_patch(model, *pair))
        with_patch = jax.jit(lambda patch, prompt: patch.applied(model)(prompt)[-1])
        prompt = lambda ids: jax.tree.map(lambda leaf: leaf[0], measured.stacked([[*ids, 0]]))  # noqa: E731
        bare = [prompt([0, *text[i + 5 : i + 7]]) for i in range(6)]
        full = [prompt([0, *text[i : i + 7]]) for i in range(6)]
        foreign = [prompt([0, *other[i : i + 5], *text[i + 5 : i + 7]]) for i in range(3)]
        wanted = [answer(each) for each in full]
        effects = np.array([kl(a, answer(b)) for a, b in zip(wanted, bare, strict=True)])
        patches = [patch(full[i], bare[i]) for i in range(3)]
        left = np.array([[kl(wanted[j], with_patch(patches[i], bare[j])) for j in range(3)] for i in range(3)])
        of_foreign = [kl(wanted[i], with_patch(patch(foreign[i], bare[i]), bare[i])) for i in range(3)]
        stack = lambda prompts: jax.tree.map(lambda *leaves: np.stack(leaves), *prompts)  # noqa: E731
        best = best_patch(model, stack(full[::2]), stack(bare[::2]), affine=False)
        between = [kl(wanted[j], with_patch(best, bare[j])) for j in (1, 3, 5)]
    assert fractions[claim.OWN] < 1e-12
    assert fractions[claim.FITTED] < 1e-10
    neighbours = (left[0, 1] + left[1, 0] + left[1, 2] + left[2, 1]) / (effects[0] + 2 * effects[1] + effects[2])
    np.testing.assert_allclose(fractions[claim.NEXT], neighbours, rtol=1e-8)
    further = (left[0, 2] + left[2, 0]) / (effects[0] + effects[2])
    np.testing.assert_allclose(fractions[claim.FURTHER], further, rtol=1e-8)
    np.testing.assert_allclose(fractions[claim.SIMILAR], np.sum(of_foreign) / effects[:3].sum(), rtol=1e-8)
    np.testing.assert_allclose(fractions[claim.BETWEEN], np.sum(between) / effects[1::2].sum(), rtol=1e-6)
    np.testing.assert_allclose(values["effect"][1][0], effects.mean(), rtol=1e-8)
    errors = dict(zip(claim.PATCHES, values["logit_error"][1][0], strict=True))
    assert errors[claim.OWN] < 1e-12
    given = [[with_patch(patches[i], bare[j]) for j in range(3)] for i in range(3)]
    further = [np.abs(given[i][j] - wanted[j]).max() / np.abs(wanted[j]).max() for i, j in ((0, 2), (2, 0))]
    np.testing.assert_allclose(errors[claim.FURTHER], max(further), rtol=1e-8)


def test_a_text_has_a_few_people_and_no_holes():
    first, second = (measured.passage(np.random.default_rng(seed)) for seed in (0, 1))
    assert first != second
    for text in (first, second):
        assert "{" not in text
        assert len(text.split()) > 150
        for kind, words in measured.WORDS.items():
            used = {word for word in words.split() if word in text}
            assert len(used) == measured.CAST[kind]


def test_a_query_follows_its_own_context_or_another():
    text, other, point = list(range(10, 40)), list(range(50, 80)), SimpleNamespace(context_tokens=4, query_tokens=2)
    full, bare = measured.prompts(text, other, [0, 3], point, 7)
    np.testing.assert_array_equal(full.tokens, [[7, 50, 51, 52, 53, 14, 15, 0], [7, 53, 54, 55, 56, 17, 18, 0]])
    np.testing.assert_array_equal(bare.tokens, [[7, 14, 15, 0], [7, 17, 18, 0]])


def made_up(error=1e-6, **left):
    fractions = dict(zip(claim.PATCHES, (0.0, 0.65, 0.8, 0.7, 0.8, 0.01, 0.7), strict=True)) | left
    rng = np.random.default_rng(0)
    values = np.array(list(fractions.values())) * np.exp(0.01 * rng.normal(size=(4, len(fractions))))
    return xr.Dataset(
        {"effect_left": (("seed", "patch"), values), "logit_error": (("seed", "patch"), np.full(values.shape, error))},
        coords={"seed": range(4), "patch": list(fractions)},
    )


_, failing, outcome = judged(claim.check)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert failing(made_up(error=1e-2)) == ["exact"]
    for patch, name in zip(
        claim.PATCHES[1:], ("next", "further", "similar", "unrelated", "fitted", "between"), strict=True
    ):
        assert failing(made_up(**{patch: 0.05 if name == "between" else 0.3})) == [name]
