"""Losses by context length and likeness to n-grams of networks of tokens along training on one source."""

import jax
import numpy as np

from iclbook.claims.singular.per_length import text as trained_text
from iclbook.claims.singular.per_length.claim import ORDER, TEXT
from icllab.core.errors import expected
from icllab.core.grid import tabulated
from icllab.lab.networks import require_answers

VERSION = 1


def measure(point, *, key, untrained=False, network=None, task=None):
    """One cell: networks of all seeds on one source; ``untrained``: every step has the initial network.

    ``network``: a user's networks by step, in the place of those of the text, and ``task``: their windows.
    """
    tokens, of_text = max(point.position) + 2, point.source == TEXT
    if network is not None and of_text:
        return of_run(point, network, task, key=key)

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


def of_run(point, networks, task, *, key):
    """One cell of a user's networks, on windows of their ``task``; None: of the claim's text."""
    source = trained_text.text(max(point.position) + 2) if task is None else trained_text.of_task(task)
    if source.held_out.tokens <= len(point.position):
        raise expected("tokens of the task", f"at least {len(point.position) + 1}", source.held_out.tokens)
    require_answers(networks[point.step[0]], source.held_out)

    def at(seed):
        of_test = jax.random.fold_in(key, seed)
        parts = [
            trained_text.evaluate(source, trained_text.stacked(networks[step]), windows=point.windows, key=of_test)
            for step in point.step
        ]
        places, count = slice(len(point.position)), len(parts[0].ngram_loss)
        loss, error = (np.concatenate([getattr(p, name)[:, places] for p in parts]) for name in ("loss", "error"))
        divergence = np.concatenate([p.divergence for p in parts], axis=1)[..., places]
        distance, ngram_loss = (np.full((len(point.ngram), n), np.nan) for n in loss.shape)
        distance[:count], ngram_loss[:count] = divergence.mean(-1), parts[0].ngram_loss[:, places]
        curve = ("step", "position")
        return {
            "loss": (curve, loss),
            "standard_error": (curve, error),
            "divergence": (curve, np.full(loss.shape, np.nan)),
            "entropy": (("position",), np.full(loss.shape[1], np.nan)),
            "ngram_distance": (("ngram", "step"), distance),
            "ngram_loss": (("ngram", "position"), ngram_loss),
        }

    facts = source.facts or {"corpus_bytes": np.nan, "corpus_digest": np.nan}
    return {**tabulated(at, seed=point.seed), **{name: ((), value) for name, value in facts.items()}}
