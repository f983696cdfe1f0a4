"""Prompts and answers of a language model, as token ids."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from jaxtyping import Int

from icllab.core.errors import expected
from icllab.core.vocabularies import in_vocabulary
from icllab.models.networks.embedding import Tokens
from icllab.models.networks.transformer import Transformer


def transformer_of(lm: Any) -> Transformer:
    """The transformer of a language model, or the transformer itself; raise unless it answers tokens."""
    model = lm.model if getattr(lm, "tokenizer", None) is not None else lm
    if not isinstance(model, Transformer) or not isinstance(model.embedding.arrangement, Tokens):
        hint = "pretrained.open(path) opens one with its tokenizer; ablated and edited models are measured elsewhere"
        raise expected("lm", "a language model, or a Transformer of token ids", type(model).__name__, hint)
    return model


def prompt_ids(lm: Any, prompt: Any, name: str = "prompt") -> Int[np.ndarray, " token"]:
    """The ids of a text, with what the tokenizer puts before each text, or of a sequence of ids."""
    model, tokenizer = transformer_of(lm), getattr(lm, "tokenizer", None)
    if isinstance(prompt, str):
        if tokenizer is None:
            raise expected(
                name, "token ids, since the model came without a tokenizer", prompt, "pretrained.open has both"
            )
        prompt = lm.tokens(prompt) if callable(getattr(lm, "tokens", None)) else tokenizer.encode(prompt).ids
    ids = np.asarray(prompt)
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        raise expected(name, "a text or a sequence of token ids, of at least one token", prompt)
    in_vocabulary(name, ids, model.embedding.arrangement.outputs or 0)
    return ids.astype(np.int32)


def prompt_list(prompts: Any) -> list[Any]:
    """Several prompts as a list; a text or a sequence of ids alone is one prompt."""
    several = not isinstance(prompts, str) and len(prompts) and not isinstance(prompts[0], Integral)
    return list(prompts) if several else [prompts]


def answer_id(lm: Any, answer: Any, name: str = "metric") -> int:
    """The id of an answer of one token; raise for a text of several."""
    model, tokenizer = transformer_of(lm), getattr(lm, "tokenizer", None)
    ids = [answer]
    if isinstance(answer, str):
        if tokenizer is None:
            raise expected(name, "token ids as answers, since the model came without a tokenizer", answer)
        ids = tokenizer.encode(answer, add_special_tokens=False).ids
        if len(ids) != 1:
            parts = [tokenizer.decode([index]) for index in ids]
            hint = "most tokenizers have a space at the beginning of a word's token" if answer[:1] != " " else ""
            raise expected(name, f"answers of one token, not {answer!r}", parts, hint)
    in_vocabulary(name, np.asarray(ids), model.embedding.arrangement.outputs or 0)
    return int(ids[0])


def token_texts(lm: Any, ids: Sequence[int] | np.ndarray) -> list[str]:
    """The text of each token; without a tokenizer, its number."""
    tokenizer = getattr(lm, "tokenizer", None)
    return [str(int(index)) if tokenizer is None else tokenizer.decode([int(index)]) for index in ids]
