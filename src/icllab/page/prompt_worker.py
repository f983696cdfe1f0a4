r"""The process that reads texts for the page: it has JAX, and answers each line of JSON with one.

.. math:: \ell_i = -\ln p(t_i \mid t_1 \cdots t_{i-1}), \qquad \ell_i^{(k)} = -\ln p(t_i \mid t_{i-k} \cdots t_{i-1})

are the losses of token i after its whole context, and without context: after only the k tokens just before it, as a
text of their own (:meth:`.TokenPrompt.alone`). The first token has neither.

Texts are padded on the right to one of four lengths, so that typing compiles nothing; no token sees what follows it.
"""

import contextlib
import functools
import json
import os
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from icllab.core.errors import IclError, expected
from icllab.core.files import parse_json
from icllab.core.prompt import TokenPrompt
from icllab.core.vocabularies import in_vocabulary
from icllab.models import Transformer, pretrained
from icllab.training.compilation import cache_compilations

LENGTHS = (32, 64, 128, 256)
"""Lengths to which texts are padded; the last is the most tokens that a text may have."""
_VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _VISIBLE]
BYTES = {chr(byte): byte for byte in _VISIBLE} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}
"""Characters that stand for bytes in the tokens of a byte-level BPE."""


def read(path: str, text: str, size: int, block: Any, head: Any) -> dict[str, Any]:
    """The tokens of a text with their losses, and the pattern of a head.

    Without ``block`` or ``head`` it is the head with the largest score: of copies, or of the previous token if the text
    has no copies.

    Returns:
        ``tokens``; ``loss`` and ``alone``, a number for each, the first None; ``blocks`` and ``heads``, how many there
        are; ``block``, ``head``; ``pattern``, a row of weights for each token; and ``scores``, kind of ``targets`` ->
        block and head with the largest mean weight, and that weight.

    Raises:
        InputError: The model cannot be opened, or has no such head; or the text has fewer than 2 tokens or too many.
    """
    model, tokenizer = opened(path)
    ids = np.array(tokenizer.encode(text).ids, np.int32)
    table = model.embedding.table
    most = LENGTHS[-1] if table is None else min(LENGTHS[-1], len(table))
    if not 2 <= len(ids) <= most:
        raise expected("text", f"2 to {most} tokens", len(ids))
    in_vocabulary("ids", ids, model.embedding.arrangement.outputs or 0)
    blocks, heads = len(model.blocks), model.blocks[0].attention.query.shape[1]
    for name, value, number in (("block", block, blocks), ("head", head, heads)):
        if value is not None and not (type(value) is int and 0 <= value < number):
            raise expected(name, f"an integer from 0 to {number - 1}, or none", value)
    count, length = len(ids), min(next(n for n in LENGTHS if n >= len(ids)), most)
    tokens = jnp.asarray(np.pad(ids, (0, length + 1 - count)))
    kinds = targets(ids)
    weights = jnp.asarray(np.stack([np.pad(part, (0, length - count)) for part in kinds.values()]))
    losses, patterns, sums = passed(model, tokens, weights, jnp.asarray(head or 0))
    scores = {}
    for (kind, part), means in zip(kinds.items(), np.asarray(sums), strict=True):
        if part.any():
            best = np.unravel_index(np.argmax(means), means.shape)
            scores[kind] = [*map(int, best), float(means[best])]
    if block is None or head is None:
        block, head, _ = next(iter(scores.values()))
        patterns = passed(model, tokens, weights, jnp.asarray(head))[1]
    pattern = np.asarray(patterns[block], float).round(4)
    return {
        "tokens": [spelled(tokenizer, int(id)) for id in ids],
        "loss": [None, *np.asarray(losses)[: count - 1].tolist()],
        "alone": [None, *losses_alone(path, tuple(ids.tolist()), size, length)],
        "blocks": blocks,
        "heads": heads,
        "block": block,
        "head": head,
        "pattern": [row[: i + 1].tolist() for i, row in enumerate(pattern[:count])],
        "scores": scores,
    }


@functools.lru_cache(maxsize=2)
def opened(path: str) -> tuple[Transformer, Any]:
    """A model and its tokenizer; two are kept, to compare them."""
    return pretrained.load(path), pretrained.tokenizer(path)


def targets(ids: Int[np.ndarray, " token"]) -> dict[str, Float[np.ndarray, "token key"]]:
    """Kind of head -> weights whose sum with a pattern is its mean attention to the keys of that kind.

    ``previous``: the token before. ``copy``: what followed earlier copies of a token, as an induction head does.
    """
    copies = np.zeros((len(ids), len(ids)), np.float32)
    copies[:, 1:] = np.tri(len(ids), k=-1)[:, :-1] * (ids[:, None] == ids[:-1])
    parts = {"copy": copies, "previous": np.eye(len(ids), k=-1, dtype=np.float32)}
    return {name: part / max(np.count_nonzero(part.any(axis=1)), 1) for name, part in parts.items()}


@eqx.filter_jit
def passed(
    model: Transformer, tokens: Int[Array, " token"], weights: Float[Array, "kind position key"], head: Int[Array, ""]
) -> tuple[Float[Array, " position"], Float[Array, "block position key"], Float[Array, "kind block head"]]:
    """Losses of the next tokens, patterns of one head of each block, sums of all patterns with weights."""
    trace = model.trace(TokenPrompt(tokens))
    patterns = [trace.activations[f"block{i}.attention.pattern"] for i in range(len(model.blocks))]
    sums = jnp.stack([jnp.einsum("hij,kij->kh", pattern, weights) for pattern in patterns], axis=1)
    return cross_entropy(trace.prediction, tokens[1:]), jnp.stack([pattern[head] for pattern in patterns]), sums


@functools.lru_cache(maxsize=8)
def losses_alone(path: str, ids: tuple[int, ...], size: int, length: int) -> list[float]:
    """Losses of all tokens but the first, each after the ``size`` tokens just before it, or all if these are fewer."""
    position = np.arange(1, len(ids))
    start = np.maximum(position - size, 0)
    padded = np.pad(np.array(ids, np.int32), (0, size))
    columns = (padded[start[:, None] + np.arange(size + 1)], position - start - 1, padded[position])
    rows = [np.pad(part, ((0, length - len(part)), *((0, 0),) * (part.ndim - 1))) for part in columns]
    return np.asarray(windowed(opened(path)[0], *map(jnp.asarray, rows)))[: len(position)].tolist()


@eqx.filter_jit
def windowed(
    model: Transformer, windows: Int[Array, "window token"], rows: Int[Array, " window"], tokens: Int[Array, " window"]
) -> Float[Array, " window"]:
    """Losses of one token for each window, after its row; no other row of logits is computed."""

    def loss(window: Array, row: Array, token: Array) -> Array:
        stream = model.trace(TokenPrompt(window)).activations["readout"][row]
        return cross_entropy(model.answers(stream[None]), token[None])[0]

    return jax.vmap(loss)(windows, rows, tokens)


def cross_entropy(logits: Float[Array, "position token"], ids: Int[Array, " position"]) -> Float[Array, " position"]:
    """The loss of each id, in nats."""
    return jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, ids[:, None], axis=1)[:, 0]


def spelled(tokenizer: Any, id: int) -> str:
    r"""The text of a token; bytes that are not text by themselves as ``\xe2``."""
    token = tokenizer.id_to_token(id) or ""
    text = token.replace("▁", " ") if "▁" in token else tokenizer.decode([id], skip_special_tokens=False)
    if "\ufffd" in text and all(character in BYTES for character in token):
        return bytes(BYTES[character] for character in token).decode("utf-8", "backslashreplace")
    return text or token


def main() -> None:
    """Answer every line of standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    with contextlib.suppress(IclError):
        cache_compilations()
    for line in sys.stdin:
        try:
            answer = read(**parse_json(line))
        except IclError as error:
            answer = {"error": str(error), "status": error.exit_status}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
