"""What is measured of changed weights, against layers by hand; and the check on made-up nats."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged
from scipy.special import log_softmax

from iclbook.claims.language import _models
from iclbook.claims.language.context_as_weights import claim
from iclbook.claims.language.context_as_weights import measure as measured
from icllab.lab.checks import Outcome
from icllab.models import BlockOptions, Tokens, Transformer


class Characters:
    """A tokenizer with an id for each character; a space belongs to the next one."""

    vocabulary = ("<", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", *"->\n")

    def encode(self, text, **_):
        return SimpleNamespace(ids=[self.vocabulary.index(letter) for letter in text.replace(" ", "")])

    def token_to_id(self, token):
        return 0

    def get_vocab_size(self):
        return len(self.vocabulary)


def test_pairs_of_one_token_each_are_kept():
    questions, answers, end = measured.single_tokens((("a", "A"), ("bc", "B"), ("d", "EF"), ("g", "G")), Characters())
    vocabulary = Characters.vocabulary
    assert ["".join(vocabulary[i] for i in row) for row in questions] == ["a->", "g->"]
    assert [vocabulary[i] for i in answers[:, 0]] == ["A", "G"]
    assert [vocabulary[i] for i in end] == ["\n"]


def test_fits_give_the_stream_what_it_gains_and_ranks_are_cut():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        reads, gains = rng.normal(size=(5, 2, 9)), rng.normal(size=(5, 2, 4))
        one, full = np.moveaxis(np.asarray(measured.fits(jnp.asarray(reads), jnp.asarray(gains))), 1, 0)
    for block in range(2):
        np.testing.assert_allclose(reads[:, block] @ full[block], gains[:, block], atol=1e-10)
        left, sizes, right = np.linalg.svd(gains[:, block], full_matrices=False)
        np.testing.assert_allclose(reads[:, block] @ one[block], sizes[0] * np.outer(left[:, 0], right[0]), atol=1e-9)
        assert np.linalg.matrix_rank(one[block], tol=1e-9) == 1


@pytest.mark.slow
def test_nats_are_those_of_the_model_with_these_weights(monkeypatch):
    """The answers after a prompt, and with the full change of its own context in one block, written out."""
    block = BlockOptions(
        heads=2, mlp=(24,), norm="pre", norm_kind="rms", gated=True, nonlinearity="silu", mlp_bias=False
    )
    size, point = Characters().get_vocab_size(), SimpleNamespace(model="smollm2-135m", table="letters", shots=2)
    point.queries, point.block, point.context, point.seed = 8, (0, 1), claim.CONTEXTS, (3,)
    with jax.enable_x64(True):
        model = Transformer(
            Tokens(size), dim=size, width=16, layers=2, block=block, positions="rotary", std=0.5, key=jax.random.key(1)
        )
        monkeypatch.setattr(_models, "load", lambda name: model)
        monkeypatch.setattr(_models, "tokenizer", lambda name: Characters())
        key = jax.random.key(4)
        values = measured.measure(point, key=key)
        rng = np.random.default_rng([3, *np.asarray(jax.random.key_data(key))])
        order = rng.permutation(26)
        ask = lambda i: [1 + i, *Characters().encode("->").ids]  # noqa: E731
        before = [0, *(token for i in order[:2] for token in [*ask(i), 27 + i, Characters.vocabulary.index("\n")])]
        trace = jax.jit(lambda model, prompt: model.trace(prompt))
        prompt = lambda ids: jax.tree.map(lambda leaf: leaf[0], measured.stacked([[*ids, 0]]))  # noqa: E731
        pairs = [(trace(model, prompt([*before, *ask(i)])), trace(model, prompt([0, *ask(i)]))) for i in order[4:12]]
        last = lambda trace, name: np.asarray(trace.activations[name][-1])  # noqa: E731
        reads = np.stack([last(bare, "block0.mlp.hidden0") for _, bare in pairs[:4]])
        gains = np.stack([last(full, "block0") - last(bare, "block0") for full, bare in pairs[:4]])
        weight = model.blocks[0].mlp.layers[-1].weight + np.linalg.lstsq(reads, gains, rcond=None)[0]
        network = eqx.tree_at(lambda m: m.blocks[0].mlp.layers[-1].weight, model, weight)
        logits = {
            "after": [full.prediction[-1] for full, _ in pairs[4:]],
            "alone": [bare.prediction[-1] for _, bare in pairs[4:]],
            "changed": [trace(network, prompt([0, *ask(i)])).prediction[-1] for i in order[8:12]],
        }
    nats = {
        name: -np.mean([log_softmax(np.asarray(row))[27 + i] for row, i in zip(rows, order[8:12], strict=True)])
        for name, rows in logits.items()
    }
    np.testing.assert_allclose(values["nats_after"][1][0, 0], nats["after"], rtol=1e-6)
    np.testing.assert_allclose(values["nats_alone"][1][0], nats["alone"], rtol=1e-6)
    np.testing.assert_allclose(values["nats"][1][0, 0, 0, 1], nats["changed"], rtol=1e-6)


def made_up(seeds=4, **carried):
    values = dict(zip(claim.CONTEXTS, (0.9, 0.8, 0.4, 0.1, 0.8), strict=True)) | carried
    early = values.pop("early", 0.3)
    rng = np.random.default_rng(0)
    fractions = np.array([[[early] * 2, [values[name]] * 2] for name in claim.CONTEXTS])
    nats = 5 - 4 * (fractions + 0.01 * rng.normal(size=(seeds, *fractions.shape)))
    dataset = xr.Dataset(
        {
            "nats": (("seed", "context", "block", "map_rank"), nats),
            "nats_after": (("seed", "context"), np.ones((seeds, len(claim.CONTEXTS)))),
            "nats_alone": (("seed",), np.full(seeds, 5.0)),
        },
        coords={"seed": range(seeds), "context": list(claim.CONTEXTS), "block": [claim.EARLY, claim.BLOCK]}
        | {"map_rank": list(claim.RANKS)},
    )
    return claim.theory(dataset)


_, failing, outcome = judged(claim.check)


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert failing(made_up(early=1.0)) == ["late"]
    assert failing(made_up(**{"other table": 0.8})) == ["table"]
    assert failing(made_up(own=0.41, early=0.2)) == ["own"]
