r"""Logit lens of one prompt, token by token: the read-out of the stream after every block.

.. math:: p^{(l)}_i = \mathrm{softmax}\,\mathrm{readout}\big(h^{(l)}_i\big)

for layer l and position i. :func:`~icllab.diagnostics.contexts.lens.logit_lens` takes means over prompts.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from icllab.core.errors import expected
from icllab.diagnostics.circuits.block_runs import most_at_once, read_out, streams
from icllab.diagnostics.circuits.texts import answer_id, prompt_ids, token_texts, transformer_of
from icllab.models.pretrained.ignored_fields import names_ignored


@names_ignored
def token_lens(lm: Any, prompt: Any, tokens: Sequence[Any] = ()) -> xr.Dataset:
    """Ranks and probabilities of tokens after every layer and position of one prompt.

    Args:
        lm: Language model of :func:`~icllab.models.pretrained.language_model.open`, or a
            :class:`~icllab.models.networks.transformer.Transformer` of token ids.
        prompt: Text or ids of the prompt.
        tokens: Texts of one token, or ids, to follow; none: the token that the model answers after the prompt.

    Returns:
        Over ``layer`` (0 is the embedding, the last is the model's answer) and ``position``: ``top_token``, the most
        likely token, with ``top_probability``; ``next_probability`` and ``next_rank`` of the prompt's own next token,
        NaN and 0 at its end; over ``chosen`` too, ``probability`` and ``rank`` of the chosen tokens. The most likely
        token has rank 1. The coordinate ``token`` has the text at each position.

    Raises:
        InputError: The model is of another kind, or a chosen text has several tokens.
    """
    model, ids = transformer_of(lm), prompt_ids(lm, prompt)
    if isinstance(tokens, str):
        raise expected("tokens", "a list of tokens", tokens, f"[{tokens!r}]")
    layers = [x[0] for x in streams(model, jnp.asarray(ids)[None])]
    chosen = [answer_id(lm, token, "tokens") for token in tokens]
    chosen = chosen or [int(jnp.argmax(read_out(model, layers[-1][-1:])[0]))]
    followed = np.concatenate([np.tile(chosen, (len(ids), 1)), np.append(ids[1:], 0)[:, None]], axis=1)
    size = most_at_once(model, 1)
    tables = [
        [_read(model, x[first : first + size], followed[first : first + size]) for first in range(0, len(ids), size)]
        for x in layers
    ]
    tops, heights, probabilities, ranks = (
        np.stack([np.concatenate([part[i] for part in row]) for row in tables]) for i in range(4)
    )
    texts = np.array([token_texts(lm, row) for row in tops], object).astype(str)
    ends = np.arange(len(ids)) == len(ids) - 1
    dims = ("layer", "position")
    variables = {
        "top_token": (dims, texts),
        "top_probability": (dims, heights),
        "next_probability": (dims, np.where(ends, np.nan, probabilities[..., -1])),
        "next_rank": (dims, np.where(ends, 0, ranks[..., -1])),
        "probability": (("chosen", *dims), np.moveaxis(probabilities[..., :-1], -1, 0)),
        "rank": (("chosen", *dims), np.moveaxis(ranks[..., :-1], -1, 0)),
    }
    coords = {"layer": np.arange(len(layers)), "position": np.arange(len(ids)), "chosen": token_texts(lm, chosen)}
    return xr.Dataset(variables, coords={**coords, "token": ("position", token_texts(lm, ids))})


def _read(model: Any, rows: Any, followed: np.ndarray) -> tuple[np.ndarray, ...]:
    """The most likely token of each row with its probability; probabilities and ranks of the followed tokens."""
    logits = np.asarray(read_out(model, rows), np.float64)
    logits -= logits.max(1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    of_followed = np.take_along_axis(logits, followed, 1)
    ranks = 1 + np.stack([(logits > column[:, None]).sum(1) for column in of_followed.T], axis=1)
    tops = logits.argmax(1)
    probabilities = np.exp(np.take_along_axis(logs, followed, 1))
    return tops, np.exp(np.take_along_axis(logs, tops[:, None], 1))[:, 0], probabilities, ranks
