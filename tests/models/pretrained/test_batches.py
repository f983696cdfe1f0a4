"""A batch of prompts of different lengths has the answers of its members one by one.

Each question takes a language model and several sequences of ids, and returns the answers to each. Those that need a
model of their own kind join ``QUESTIONS`` with one line.
"""

import equinox as eqx
import jax
import numpy as np
import pytest

pytest.importorskip("tokenizers")

from token_transformers import FAMILIES, VOCABULARY, language_model, sampling

from icllab import tasks
from icllab.core.prompt import TokenPrompt
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


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name != "gpt2")) for name in FAMILIES]
)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_batch_has_the_answers_of_its_members(question, family):
    lm, ask = language_model(family), QUESTIONS[question]
    together = ask(lm, IDS)
    for answers, ids in zip(together, IDS, strict=True):
        np.testing.assert_allclose(answers, ask(lm, [ids])[0], rtol=0, atol=1e-5)
