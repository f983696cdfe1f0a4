"""Losses by context length and likeness to n-grams of networks of tokens along training on one source."""

import jax
import numpy as np

from iclbook.claims.singular.per_length import text as trained_text
from iclbook.claims.singular.per_length.claim import ORDER, TEXT
from icllab.core.grid import tabulated

VERSION = 1


def measure(point, *, key, untrained=False):
    """One cell: networks of all seeds on one source; ``untrained``: every step has the initial network."""
    tokens, of_text = max(point.position) + 2, point.source == TEXT

    def at(seed):
        of_source, of_weights, of_training, of_test = jax.random.split(jax.random.fold_in(key, seed), 4)
        source = trained_text.text(tokens) if of_text else trained_text.chain(tokens, of_source)
        model = trained_text.network(source, width=point.width, layers=point.layers, key=of_weights)
        steps = [0] * len(point.step) if untrained else point.step
        checkpoints = trained_text.train(
            source, model, steps=steps, rate=point.learning_rate, batch=point.batch, key=of_training
        )
        results = trained_text.evaluate(source, checkpoints, windows=point.windows, key=of_test)
        shape = (len(point.step), len(point.position))
        count = len(results.ngram_loss)  # of the text no 4-grams are counted
        distance, ngram_loss = (np.full((len(point.ngram), n), np.nan) for n in shape)
        distance[:count], ngram_loss[:count] = results.divergence.mean(-1), results.ngram_loss
        curve = ("step", "position")
        return {
            "loss": (curve, results.loss),
            "standard_error": (curve, results.error),
            "divergence": (curve, np.full(shape, np.nan) if of_text else results.divergence[ORDER]),
            "entropy": (("position",), np.full(shape[1], np.nan) if of_text else source.training.entropies()),
            "ngram_distance": (("ngram", "step"), distance),
            "ngram_loss": (("ngram", "position"), ngram_loss),
        }

    facts = trained_text.text(tokens).facts if of_text else {"corpus_bytes": np.nan, "corpus_digest": np.nan}
    return {**tabulated(at, seed=point.seed), **{name: ((), value) for name, value in facts.items()}}
