"""What is particular to this claim: what it calls a mean at the query, and its check on made-up rises of losses."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from judging import judged

from iclbook.claims.language import _heads
from iclbook.claims.language.function_vectors_or_induction import claim, measure
from icllab.lab.checks import Outcome
from icllab.models import BlockOptions, Tokens, Transformer
from icllab.tasks import FewShot
from icllab.tasks.few_shot import FewShotPrompt

BLOCK = BlockOptions(heads=4, mlp=None, norm="pre")
MODEL = Transformer(Tokens(7), dim=7, width=8, layers=2, block=BLOCK, positions="rotary", key=jax.random.key(0))
TOKENS = np.array([[1, 2, 3, 4, 0, 0], [2, 3, 4, 5, 6, 1]])
LENGTHS, ANSWERS = np.array([4, 6]), np.array([3, 4])  # the last token of the second answer stands after another


def prompts():
    at = np.arange(6)
    mask = at < LENGTHS[:, None]
    return jax.vmap(FewShotPrompt)(jnp.asarray(TOKENS), jnp.asarray(mask), jnp.asarray(mask & (at >= ANSWERS[:, None])))


def test_means_are_over_real_tokens_or_the_last_before_the_answer():
    outputs = jax.jit(jax.vmap(lambda prompt: MODEL.trace(prompt).activations["block1.attention.heads"]))(prompts())
    outputs = np.asarray(outputs, float)
    real = np.concatenate([outputs[0, :4], outputs[1, :5]])
    np.testing.assert_allclose(_heads.mean_outputs(MODEL, prompts())[1], real.mean(0), rtol=1e-4, atol=1e-6)
    at_query = (outputs[0, 2] + outputs[1, 3]) / 2
    result = _heads.mean_outputs(MODEL, prompts(), measure._at_query)[1]
    np.testing.assert_allclose(result, at_query, rtol=1e-4, atol=1e-6)


def test_the_answer_of_a_copied_query_is_the_label_that_its_example_shows():
    words = [(f"w{i}", f"v{i}") for i in range(6)]
    ids = {text: i for i, text in enumerate([part for pair in words for part in pair] + ["->", "\n"])}

    class Spelled:
        def encode(self, text, add_special_tokens=False):
            return SimpleNamespace(ids=[ids[part] for part in text.replace("\n", " \n ").split(" ") if part])

        def get_vocab_size(self):
            return len(ids)

    task = FewShot.from_pairs(words, Spelled(), shots=4, labels="shuffled")
    batch = measure._copied(task, 5, jax.random.key(0))
    for tokens, mask, answer in zip(batch.tokens, batch.mask, batch.answer, strict=True):
        *rows, last = np.split(np.asarray(tokens)[np.asarray(mask)], [4, 8, 12, 16])
        assert list(last[[0, 2]]) == list(rows[2][[0, 2]])  # item -> label
        assert last[0] + 1 != last[2]  # which is not its own
        assert list(np.flatnonzero(answer)) == [18]


RISES = {"few-shot": (0.5, 0.2, 0.9, 0.1, 0.1), "repeated": (0.2, 6.0, 0.3, 0.4, 0.5)}


def made_up(task="few-shot", change=None):
    """Rises of the losses, with some of one task changed."""
    rises = {name: dict(zip(claim.SETS, row, strict=True)) for name, row in RISES.items()}
    rises[task] |= change or {}
    table = np.array([[rises[task][name] for task in claim.TASKS] for name in claim.SETS])
    noise = 0.01 * np.random.default_rng(0).normal(size=(6, *table.shape))
    coords = {"head_set": list(claim.SETS), "task": list(claim.TASKS)}
    return xr.Dataset({"loss_rise": (("seed", "head_set", "task"), table + noise)}, coords=coords)


_, failing, outcome = judged(claim.check)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    for task, change, names in (
        ("repeated", {"beside induction": 5.0}, ["repeated"]),
        ("repeated", {"induction": 0.1}, ["repeated"]),
        ("few-shot", {"induction": 2.0}, ["spared"]),
    ):
        assert failing(made_up(task, change)) == names
