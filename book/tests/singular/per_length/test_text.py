"""Networks of tokens that are trained and measured, against the same numbers by other routes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclbook.claims.singular.per_length import text as trained_text


@pytest.mark.slow
def test_what_is_learned_is_measured_on_the_windows_that_are_asked():
    key = jax.random.key(0)
    source = trained_text.chain(6, key)
    model = trained_text.network(source, width=8, layers=1, key=key)
    kept = trained_text.train(source, model, steps=[0, 60], rate=0.01, batch=32, key=key)
    found = trained_text.evaluate(source, kept, windows=256, key=key)
    asked = source.held_out.sample_many(256, key=key)
    start = jax.vmap(lambda p: source.held_out.loss(model(p), p))(asked)
    np.testing.assert_allclose(found.loss[0], jnp.mean(start, 0), rtol=1e-4)
    np.testing.assert_allclose(found.error[0], np.std(np.asarray(start), 0, ddof=1) / 16, rtol=1e-3)
    assert found.loss[1].mean() < found.loss[0].mean() - 0.1
    # A divergence of distributions is that of losses in the mean, and is never negative.
    apart = found.loss - found.ngram_loss[-1] - found.divergence[-1]
    assert np.all(np.abs(apart) < 4.5 * 2 * found.error)
    assert found.divergence.min() > 0
    # Without steps there is the network as it began.
    alone = trained_text.evaluate(
        source, trained_text.train(source, model, steps=[0], rate=0.01, batch=32, key=key), windows=256, key=key
    )
    np.testing.assert_allclose(alone.loss[0], found.loss[0], rtol=1e-5)


@pytest.mark.slow
def test_the_text_is_split_by_file_and_its_ngrams_are_better_in_order():
    source = trained_text.text(17)
    assert source.training.vocabulary == source.held_out.vocabulary == 97
    assert source.facts["corpus_bytes"] == len(source.training.symbols) + len(source.held_out.symbols)
    asked = source.held_out.sample_many(512, key=jax.random.key(1))
    losses = [
        float(jnp.mean(jax.vmap(lambda p, law=law: source.held_out.loss(law(p), p))(asked))) for law in source.ngrams
    ]
    assert losses[0] - losses[1] > 0.3
    assert losses[1] - losses[2] > 0.3
