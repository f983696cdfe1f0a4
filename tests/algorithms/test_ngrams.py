"""n-grams of a chain are the best there are, and those of a text are its counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import NGram
from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics import per_length
from icllab.tasks import HigherOrderChain, Text
from icllab.tasks.text_files import Documents


def test_of_a_chain_they_reach_the_least_losses_of_their_contexts(getkey):
    rows = np.random.default_rng(0).dirichlet(np.full(3, 0.5), 9)
    chain = HigherOrderChain(rows, order=2, tokens=6)
    known = {str(n): NGram.knowing(chain, n=n) for n in (1, 3)}
    found = per_length(known, chain, key=getkey(), prompts=1500, block=1500)
    least = chain.least_losses()
    expected = [[least[min(n - 1, i + 1)] for i in range(5)] for n in (1, 3)]
    assert np.all(np.abs(found.loss - expected) < 4.5 * found.standard_error)
    assert float(found.standard_error.max()) < 0.03
    assert float(found.loss_mean.sel(predictor="1") - found.loss_mean.sel(predictor="3")) > 0.05


def test_a_position_uses_as_many_tokens_as_there_are():
    with jax.enable_x64(True):
        laws = [
            np.array([[0.2, 0.8]]),
            np.array([[0.1, 0.9], [0.6, 0.4]]),
            np.array([[0.3, 0.7], [0.5, 0.5], [0.9, 0.1], [0.8, 0.2]]),
        ]
        answer = NGram.from_laws(laws)(TokenPrompt(jnp.array([1, 0, 1, 1, 0])))
        rows = [laws[1][1], laws[2][2], laws[2][1], laws[2][3]]
        np.testing.assert_allclose(np.exp(answer), rows, rtol=1e-12)
        alone = NGram.from_laws(laws).shorter(1)(TokenPrompt(jnp.array([1, 0, 1])))
        np.testing.assert_allclose(np.exp(alone), np.tile(laws[0], (2, 1)), rtol=1e-12)


def test_counts_of_a_text_with_the_order_below_as_a_prior():
    text = Text.from_documents(Documents(("a",), (b"abab",)), tokens=2, alphabet=b"ab")
    found = NGram.counted(text, n=2, smoothing=3.0)
    unigram = (np.array([2, 2, 0]) + 3 / 3) / 7
    bigram = (np.array([0, 2, 0]) + 3 * unigram) / 5
    np.testing.assert_allclose(np.exp(found.tables[0][0]), unigram, rtol=1e-6)
    np.testing.assert_allclose(np.exp(found.tables[1][0]), bigram, rtol=1e-6)
    # Nothing is known of what follows the third token: the unigrams answer.
    np.testing.assert_allclose(np.exp(found.tables[1][2]), unigram, rtol=1e-6)


CHAIN = HigherOrderChain(np.full((4, 2), 0.5), order=2, tokens=4)
TEXT = Text.from_documents(Documents(("a",), (b"abab",)), tokens=2, alphabet=b"ab")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda: NGram.from_laws([np.full((1, 2), 0.5), np.ones((3, 2))]),
            "distributions[1]: expected a table of shape (2, 2), got (3, 2)",
        ),
        (lambda: NGram.from_laws([]), "distributions: expected at least one table, for unigrams, got []"),
        (lambda: NGram.from_laws([np.full((1, 2), 0.5)]).shorter(2), "n: expected an integer from 1 to 1, got 2"),
        (lambda: NGram.counted(TEXT, n=0), "n: expected an integer of at least 1, got 0"),
        (lambda: NGram.knowing(CHAIN, n=0), "n: expected an integer from 1 to 3, one more than the order of the chain"),
        (lambda: NGram.knowing(CHAIN, n=9), "n: expected an integer from 1 to 3, one more than the order of the chain"),
    ],
)
def test_bad_questions(ask, said):
    with pytest.raises(InputError) as error:
        ask()
    assert said in str(error.value)


def test_of_a_chain_n_is_at_most_what_it_depends_on():
    assert NGram.knowing(CHAIN).n == NGram.knowing(CHAIN, n=3).n == 3


def test_an_id_that_is_no_token_is_refused_and_traced_nan_where_it_is_looked_up():
    law = np.full((1, 2), 0.5)
    bigram = NGram.from_laws([law, np.array([[0.9, 0.1], [0.2, 0.8]])])
    ids = jnp.asarray([1, -1, 0, 1])
    with pytest.raises(InputError, match="tokens at 1: expected an id from 0 to 1, a vocabulary of 2, got -1"):
        bigram(TokenPrompt(ids))
    answers = jax.jit(lambda ids: bigram(TokenPrompt(ids)))(ids)
    assert np.isnan(answers).any(axis=1).tolist() == [False, True, False]
    np.testing.assert_allclose(np.exp(answers[2]), [0.9, 0.1], rtol=1e-6)
    trigram = NGram.from_laws([law, np.full((2, 2), 0.5), np.full((4, 2), 0.5)])
    answers = jax.jit(lambda ids: trigram(TokenPrompt(ids)))(jnp.asarray([1, -1, 0, 1, 1]))
    assert np.isnan(answers).any(axis=1).tolist() == [False, True, True, False]  # two tokens are looked up
    unigram = bigram.shorter(1)
    assert np.isfinite(jax.jit(lambda ids: unigram(TokenPrompt(ids)))(ids)).all()  # it looks nothing up
