"""A batch of prompts of different lengths has the answers of its members one by one.

Each question takes a language model and several sequences of ids, and returns the answers to each. Those that need a
model of their own kind join ``QUESTIONS`` with one line.
"""

import dataclasses
import itertools

import equinox as eqx
import jax
import numpy as np
import pytest

pytest.importorskip("tokenizers")

from tests.diagnostics.circuits.networks import Letters
from token_transformers import FAMILIES, VOCABULARY, language_model, sampling

from icllab import diagnostics, tasks
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.circuits import task_vectors
from icllab.models.pretrained.generation import written

IDS = [[3, 1, 4, 1, 5, 9, 2], [6]]


def padded(ids, side):
    """Ids and mask of a batch as tokenizers give it, with an id that acts in the padding."""
    size = max(map(len, ids))
    pads = [((size - len(row), 0) if side == "left" else (0, size - len(row))) for row in ids]
    mask = [np.pad(np.ones(len(row), int), pad) for row, pad in zip(ids, pads, strict=True)]
    rows = [np.pad(row, pad, constant_values=7) for row, pad in zip(ids, pads, strict=True)]
    return TokenPrompt.from_ids(np.stack(rows), np.stack(mask))


@eqx.filter_jit
def answered(model, prompts):
    return jax.vmap(model)(prompts)


def logits(side):
    def answers(lm, ids):
        rows = answered(lm.model, padded(ids, side))
        return [row[: len(part)] for row, part in zip(rows, ids, strict=True)]

    return answers


def losses(side):
    def answers(lm, ids):
        task = tasks.RepeatedTokens(vocabulary=VOCABULARY, period=2)
        prompts = padded(ids, side)
        rows = jax.vmap(task.loss)(answered(lm.model, prompts), prompts)
        counted = [int(np.isfinite(row).sum()) for row in rows]
        assert counted == [len(part) - 1 for part in ids]
        return [row[: len(part)] for row, part in zip(rows, ids, strict=True)]

    return answers


def stacked(name):
    def answers(lm, ids):
        rows = getattr(lm, name)(ids).values
        return [row[: len(part)] for row, part in zip(rows, ids, strict=True)]

    return answers


def tokens(lm, ids):
    *_, rows = written(lm.model, ids, 9, sampling(0.0, len(ids)), 9)
    return list(rows)


def texts(lm, ids):
    return [[ord(character) for character in text] for text in lm.generate(ids, 9)]


QUESTIONS = {
    "logits, padding on the right": logits("right"),
    "logits, padding on the left": logits("left"),
    "losses, padding on the right": losses("right"),
    "losses, padding on the left": losses("left"),
    "logits of the language model": stacked("__call__"),
    "losses of the language model": stacked("loss"),
    "tokens that are written": tokens,
    "text that is written": texts,
}


each_family = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name != "gpt2")) for name in FAMILIES]
)


@each_family
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_batch_has_the_answers_of_its_members(question, family):
    lm, ask = language_model(family), QUESTIONS[question]
    together = ask(lm, IDS)
    for answers, ids in zip(together, IDS, strict=True):
        np.testing.assert_allclose(answers, ask(lm, [ids])[0], rtol=0, atol=1e-5)


def values(dataset):
    """The numbers of a dataset, without errors and attributes."""
    return {name: array.values for name, array in dataset.items() if not str(name).endswith("_error")}


REPEATED = [[3, 1, 4, 3, 1, 4, 3], [5, 2, 5]]
MEANS = {
    "logit lens": lambda *arguments, **options: diagnostics.logit_lens(*arguments, **options, query_length=2),
    "head scores": diagnostics.head_scores,
}


@each_family
@pytest.mark.parametrize("side", ["left", pytest.param("right", marks=pytest.mark.slow)])
@pytest.mark.parametrize("question", [pytest.param("logit lens", marks=pytest.mark.slow), "head scores"])
def test_a_mean_over_a_batch_is_that_of_its_members(question, side, family):
    model, key = language_model(family).model, jax.random.key(1)
    loss = tasks.RepeatedTokens(vocabulary=VOCABULARY, period=2)

    def measured(prompts, count):
        task = tasks.FixedPrompts(loss, prompts, count)
        return values(MEANS[question](model, task, key=key, prompts=16)), task

    together, task = measured(padded(REPEATED, side), 2)
    drawn = np.asarray(sample_prompts(task, key=key, prompts=16).mask).sum(1)
    shares = [np.mean(drawn == drawn.max()), np.mean(drawn == drawn.min())]
    assert min(shares) > 0.1
    alone = [measured(TokenPrompt.from_ids(np.array([ids])), 1)[0] for ids in REPEATED]
    for name, array in together.items():
        mean = sum(share * row[name] for share, row in zip(shares, alone, strict=True))
        np.testing.assert_allclose(array, mean, rtol=0, atol=1e-5, err_msg=name)


@each_family
@pytest.mark.parametrize("direction", [pytest.param("denoising", marks=pytest.mark.slow), "noising"])
def test_a_patch_of_several_pairs_is_the_mean_of_their_patches(direction, family):
    lm, metric = language_model(family), diagnostics.logit_difference(1, 2)
    clean, corrupted = [[3, 1, 4, 1, 5, 9, 2], [6, 8, 3]], [[3, 1, 7, 1, 5, 9, 2], [6, 2, 3]]
    together = diagnostics.patch(lm, clean, corrupted, metric=metric, direction=direction)
    alone = [
        diagnostics.patch(lm, *pair, metric=metric, direction=direction) for pair in zip(clean, corrupted, strict=True)
    ]
    for name in ("residual", "attention", "mlp"):
        long, short = (row[f"{name}_metric"].values for row in alone)
        ours = together[f"{name}_metric"].values
        np.testing.assert_allclose(ours[:, -3:], (long[:, -3:] + short) / 2, rtol=0, atol=1e-5)
        np.testing.assert_allclose(ours[:, :-3], long[:, :-3], rtol=0, atol=1e-5)
    heads = sum(row.heads_metric.values for row in alone) / 2
    np.testing.assert_allclose(together.heads_metric, heads, rtol=0, atol=1e-5)


WORDS = ["".join(letters) for letters in itertools.product("abc", "defg")]
FEW_SHOT = tasks.FewShot.from_pairs(
    [(word, word[1] + "i" * (word[0] == "a")) for word in WORDS],
    Letters(),
    shots=2,
    template="{}j{}k",
    vocabulary=VOCABULARY,
)


@pytest.mark.slow
@each_family
@pytest.mark.parametrize("method", task_vectors.METHODS)
def test_task_vectors_depend_neither_on_blocks_of_prompts_nor_on_their_padding(method, family, monkeypatch):
    lm = language_model(family)
    if method == "heads" and not all(block.adds_heads for block in lm.model.blocks):
        pytest.skip("a norm follows the sum of the heads")

    def measured(task):
        options = {"layers": [0, 1], "method": method, "prompts": 12, "heads": 2}
        return values(diagnostics.task_vector(lm, task, key=jax.random.key(0), **options))

    together = measured(FEW_SHOT)
    monkeypatch.setattr(task_vectors, "most_at_once", lambda *arguments: 1)
    padded_more = measured(dataclasses.replace(FEW_SHOT, tokens=FEW_SHOT.tokens + 5))
    for name, array in together.items():
        np.testing.assert_allclose(padded_more[name], array, rtol=0, atol=1e-5, err_msg=name)
