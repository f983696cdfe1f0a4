"""Losses of the same tokens after short and long contexts, and which tokens the long context repeats."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.language import _models
from icllab.core.prompt import TokenPrompt
from icllab.tasks import Text, pair_tables, text_files
from icllab.tasks.text_files import Documents

VERSION = 1
BATCH = 4


def measure(point, *, key, exchanged=False, negated=False, network=None):
    """Losses [seed, context] of a window's last tokens, and parts of their fall [seed, target].

    ``exchanged``: another window's far context is called the text's, and the text's another's. ``negated``: new
    targets are called far, and all others new. ``network``: a user's language model.
    """
    model, tokenizer, _ = _models.opened(point.model, network)
    text, facts = _text(point.model, point.context[-1] + point.targets, tokenizer)
    keys = [jax.random.fold_in(key, seed) for seed in point.seed]
    windows = np.stack([np.asarray(text.sample_many(point.windows, key=k).tokens) for k in keys])
    longest, near = point.context[-1], point.near
    other = windows.copy()
    other[..., : longest - near] = np.roll(windows, 1, axis=1)[..., : longest - near]
    if exchanged:
        windows, other = other, windows
    losses = {size: _losses(model, windows[..., longest - size :], point.targets) for size in point.context}
    fall = losses[near] - losses[longest]
    near_repeats, repeats = (_repeated(part, point.targets) for part in (windows[..., longest - near :], windows))
    kinds = np.stack([repeats & ~near_repeats, near_repeats, ~repeats], axis=1)
    if negated:
        kinds = np.stack([~repeats, np.zeros_like(repeats), repeats], axis=1)
    elsewhere = losses[near] - _losses(model, other, point.targets)
    return {
        "loss": (("seed", "context"), np.stack([v.mean(axis=(1, 2)) for v in losses.values()], axis=1)),
        "fall": (("seed", "target"), (kinds * fall[:, None]).mean(axis=(2, 3))),
        "elsewhere_fall": (("seed", "target"), (kinds * elsewhere[:, None]).mean(axis=(2, 3))),
        "share": (("seed", "target"), kinds.mean(axis=(2, 3))),
        **{name: ((), value) for name, value in facts.items()},
    }


@functools.cache
def _text(model, tokens, tokenizer):
    """Windows of a model's text, and which text it is."""
    # A tenth of the library, of files that surely have a window.
    library = text_files.standard_library
    documents = _sentences() if model == "glassllm-en" else library().split(held_out=0.1)[1].at_least(16 * tokens)
    facts = {"corpus_bytes": float(documents.size), "corpus_digest": float(int(documents.digest()[:13], 16))}
    return Text.from_documents(documents, tokens=tokens, tokenizer=tokenizer), facts


def _sentences():
    """A text that stays the same: the model of stories reads no programs, and a test of it no version of Python."""
    capitals = " ".join(f"The capital of {a} is {b}." for a, b in pair_tables.CAPITALS)
    antonyms = " ".join(f"If it is not {a}, it is {b}." for a, b in pair_tables.ANTONYMS)
    return Documents(("capitals", "antonyms"), (capitals.encode(), antonyms.encode()))


def _losses(model, windows, targets):
    """Losses in nats of the last tokens of windows [seed, window, token]."""
    rows = jnp.asarray(windows.reshape(-1, windows.shape[-1]))
    return np.asarray(_of_rows(model, rows, targets)).reshape(*windows.shape[:-1], targets)


@eqx.filter_jit
def _of_rows(model, rows, targets):
    def losses(row):
        logs = jax.nn.log_softmax(model(TokenPrompt(row))[-targets:])
        return -jnp.take_along_axis(logs, row[-targets:, None], axis=1)[:, 0]

    return jax.lax.map(losses, rows, batch_size=BATCH)


def _repeated(windows, targets):
    """Whether each of the last tokens is one of those before it."""
    size = windows.shape[-1]
    last = range(size - targets, size)
    return np.stack([(windows[..., :i] == windows[..., i : i + 1]).any(axis=-1) for i in last], axis=-1)
