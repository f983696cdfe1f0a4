"""The lens of one prompt against the network's own answers, and the read-out of every layer."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.special import softmax
from tests.diagnostics.circuits.networks import language_model, network

from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics import token_lens
from icllab.diagnostics.circuits import block_runs

IDS = [1, 4, 7, 2, 5]


@pytest.mark.parametrize("options", [{"cap": 2.0}, {"norm": "post", "positions": "learned"}])
def test_the_last_layer_is_the_answer_of_the_network(options):
    model = network(**options)
    lens = token_lens(model, IDS, [6, 0])
    expected = softmax(np.asarray(model.logits(IDS), float), axis=1)
    assert lens.sizes == {"layer": 4, "position": 5, "chosen": 2}
    assert np.allclose(lens.probability[:, -1], expected[:, [6, 0]].T, atol=1e-5)
    assert np.array_equal(lens.top_token[-1].astype(int), expected.argmax(1))
    assert np.allclose(lens.top_probability[-1], expected.max(1), atol=1e-5)
    ranks = 1 + (expected[:, None] > expected[:, [6, 0], None]).sum(2).T
    assert np.array_equal(lens["rank"][:, -1], ranks)
    assert np.allclose(lens.next_probability[-1, :-1], expected[np.arange(4), IDS[1:]], atol=1e-5)
    assert np.isnan(lens.next_probability[:, -1]).all()
    assert (lens.next_rank[:, -1] == 0).all()
    assert (lens.next_rank[-1, 0] == 1) == (expected[0].argmax() == IDS[1])


def test_every_layer_is_the_readout_of_the_stream_after_it():
    model = network(layers=2)
    trace = eqx.filter_jit(lambda m: m.trace(TokenPrompt(jnp.asarray([*IDS, 0]))).activations)(model)
    streams = [trace["embedding"], trace["block0"], trace["block1"]]
    lens = token_lens(model, IDS, [3])
    for layer, stream in enumerate(streams):
        probabilities = softmax(np.asarray(model.answers(model.final_norm(stream)), float), axis=1)
        assert np.allclose(lens.probability[0, layer], probabilities[:, 3], atol=1e-5)


def test_without_chosen_tokens_it_follows_the_answer_of_the_model():
    lm = language_model()
    lens = token_lens(lm, "behcf")
    answer = lm.tokenizer.decode([int(jnp.argmax(lm.model.logits(IDS)[-1]))])
    assert lens.chosen.values.tolist() == [answer]
    assert lens["rank"][0, -1, -1] == 1
    assert lens.token.values.tolist() == list("behcf")
    assert lens.top_token[-1, -1] == answer


def test_rows_that_do_not_fit_in_memory_are_read_in_parts(monkeypatch):
    whole = token_lens(network(), IDS, [3])
    monkeypatch.setattr(block_runs, "NUMBERS", 2 * 12)
    assert block_runs.most_at_once(network(), 1) == 2
    xr.testing.assert_allclose(token_lens(network(), IDS, [3]), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("behcf", ["ab"]), "tokens: expected answers of one token, not 'ab'"),
        (("behcf", "a"), "tokens: expected a list of tokens"),
        (("",), "prompt: expected a text or a sequence of token ids"),
        (([1.5],), "prompt: expected a text or a sequence of token ids"),
    ],
)
def test_what_cannot_be_followed_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        token_lens(language_model(), *arguments)
