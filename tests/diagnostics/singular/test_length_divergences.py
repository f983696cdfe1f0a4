"""The divergence of a window is the sum over its lengths, exactly and as it is estimated."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.algorithms import NGram
from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics import divergences
from icllab.diagnostics.behaviour.answers import EveryPosition, answers_to
from icllab.tasks import HigherOrderChain, Text
from icllab.tasks.text_files import Documents

TOKENS = 5


def pair():
    """A chain of order two, and a model of it that knows another chain."""
    generator = np.random.default_rng(0)
    truth, other = (generator.dirichlet(np.full(3, 0.7), 9) for _ in range(2))
    chain = HigherOrderChain(truth, order=2, tokens=TOKENS)
    model = NGram.knowing(HigherOrderChain(0.7 * truth + 0.3 * other, order=2, tokens=TOKENS))
    return chain, NGram.knowing(chain), model


def exact(chain, model):
    """K of every length, and of the window given its first token, over all windows: two sums of one table."""
    windows = np.array(list(itertools.product(range(3), repeat=TOKENS)))
    losses = answers_to(EveryPosition(), model, chain, jax.vmap(TokenPrompt)(jnp.asarray(windows)), block=243)
    t, start = np.asarray(chain.transition, float), np.asarray(chain.start, float)
    weight = start[windows[:, 0] * 3 + windows[:, 1]]
    for i in range(2, TOKENS):
        weight = weight * t[windows[:, i - 2] * 3 + windows[:, i - 1], windows[:, i]]
    first = start.reshape(3, 3).sum(axis=1)[windows[:, 0]]
    given = weight / first
    whole = np.sum(weight * (np.log(given) + losses.sum(axis=1)))
    return weight @ losses - chain.entropies(), whole


def test_the_sum_over_lengths_is_the_divergence_of_the_window():
    with jax.enable_x64(True):
        chain, truth, model = pair()
        each, whole = exact(chain, model)
        assert each.sum() == pytest.approx(whole, rel=1e-10)
        assert np.all(each > 0)
        np.testing.assert_allclose(exact(chain, truth)[0], 0, atol=1e-12)


def test_estimates_agree_with_the_exact_ones_with_and_without_the_truth(getkey):
    chain, truth, model = pair()
    with jax.enable_x64(True):
        each, whole = exact(*(pair()[i] for i in (0, 2)))
    key = getkey()
    paired = divergences({"truth": truth, "model": model}, chain, key=key, truth="truth", prompts=2000, block=2000)
    plain = divergences({"model": model}, chain, key=key, prompts=2000, block=2000)
    for found in (paired, plain):
        one = found.sel(predictor="model")
        assert np.all(np.abs(one["divergence"] - each) < 4.5 * one["divergence_error"])
        assert abs(float(one["divergence_sum"]) - whole) < 4.5 * float(one["divergence_sum_error"])
        assert float(one["divergence_sum"]) == pytest.approx(float(one["divergence"].sum()), rel=1e-6)
    np.testing.assert_array_equal(plain["entropy"], chain.entropies())
    errors = (float(found.sel(predictor="model")["divergence_sum_error"]) for found in (paired, plain))
    assert next(errors) < 0.5 * next(errors)
    assert np.all(paired["divergence"].sel(predictor="truth") == 0)


def test_lengths_that_count_unequally(getkey):
    chain, truth, model = pair()
    counts, key = [1.0, 0.0, 2.0, 0.5], getkey()
    found = divergences({"model": model}, chain, key=key, prompts=64, counts=counts, block=64)
    one = found.sel(predictor="model")
    assert float(one["divergence_sum"]) == pytest.approx(float(one["divergence"].values @ np.array(counts)), rel=1e-6)
    assert float(one["divergence_mean"]) == pytest.approx(float(one["divergence_sum"]) / 3.5, rel=1e-9)
    with pytest.raises(InputError) as error:
        divergences({"model": truth}, chain, key=key, prompts=4, counts=[0.0] * 4)
    assert "counts: expected 4 finite numbers of at least 0, one for each length, not all 0" in str(error.value)


def test_of_a_text_the_truth_is_not_known(getkey):
    text = Text.from_documents(Documents(("a",), (b"abracadabra",)), tokens=4)
    with pytest.raises(InputError) as error:
        divergences({"nothing": lambda prompt: jnp.zeros((3, 256))}, text, key=getkey())
    assert "truth: expected the name of a predictor that knows the distribution" in str(error.value)
