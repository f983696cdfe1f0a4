"""Tokenizers of the package ``tokenizers`` as functions of a text alone, without settings from a file or user.

``truncation`` cuts a text, ``padding`` fills it up, and dropout of merges and sampled splits draw other tokens each
time. The package keeps these settings in the tokenizer, and saves three of the four in ``tokenizer.json``.
"""

import copy
import warnings
from typing import Any

import numpy as np

from icllab.core.errors import ResultWarning, expected, kind_of, require_integer


def plain(tokenizer: Any, name: str = "tokenizer") -> Any:
    """The tokenizer without truncation, padding and random splits; a copy, with a warning, if one of them is on.

    Raises:
        InputError: Such a setting is on, and the tokenizer cannot be copied; or it is one of transformers.

    Warns:
        ResultWarning: A setting is switched off.
    """
    if hasattr(tokenizer, "backend_tokenizer"):
        raise expected(name, "a tokenizer of the package tokenizers", kind_of(tokenizer), "try its backend_tokenizer")
    settings = _settings(tokenizer)
    if not settings:
        return tokenizer
    try:
        duplicate = copy.deepcopy(tokenizer)
    except Exception as error:  # the package raises no class of its own
        hint = f"a copy without it fails ({error}); switch it off, as by no_truncation() and no_padding()"
        raise expected(name, "a tokenizer whose tokens depend on the text alone", ", ".join(settings), hint) from error
    duplicate.encode_special_tokens = tokenizer.encode_special_tokens  # which a copy forgets
    duplicate.no_truncation()
    duplicate.no_padding()
    if getattr(duplicate.model, "dropout", None):
        duplicate.model.dropout = None
    message = f"{name}: switched off {', '.join(settings)}, so that its tokens depend on the text alone"
    warnings.warn(message, ResultWarning, stacklevel=3)
    return duplicate


def _settings(tokenizer: Any) -> list[str]:
    """The settings that are switched on, in words."""
    model, texts = getattr(tokenizer, "model", None), []
    if truncation := getattr(tokenizer, "truncation", None):
        texts.append(f"truncation to {truncation['max_length']} tokens")
    if padding := getattr(tokenizer, "padding", None):
        texts.append(f"padding with {padding['pad_token']!r}")
    if dropout := getattr(model, "dropout", None):
        texts.append(f"dropout of merges ({dropout:.3g})")
    if (alpha := getattr(model, "alpha", None)) is not None:
        texts.append(f"sampled splits (alpha {alpha:.3g})")
    return texts


def beginning(tokenizer: Any) -> tuple[int, ...]:
    """Ids that the tokenizer puts before each text, such as a BOS token, according to its ``post_processor``."""
    if getattr(tokenizer, "post_processor", None) is None:
        return ()
    for token in tokenizer.get_vocab():
        encoding = tokenizer.post_process(tokenizer.encode(token, add_special_tokens=False))
        if 0 in encoding.sequence_ids:  # None is a token of the post-processor, 0 one of the text
            return tuple(encoding.ids[: encoding.sequence_ids.index(0)])
    return ()


def first_ids(tokenizer: Any, first: str | int | None = "file") -> tuple[int, ...]:
    """Ids of the first token: of the tokenizer's own for ``"file"``, none for None, else of a token or an id."""
    if first is None:
        return ()
    if first == "file":
        return beginning(tokenizer)
    size = tokenizer.get_vocab_size()
    index = tokenizer.token_to_id(first) if isinstance(first, str) else first
    if index is None:
        raise expected("first", "'file', None, or a token of the tokenizer", first)
    require_integer("first", index, least=0)
    if index >= size:
        raise expected("first", f"an id below {size}, the tokenizer's size", index)
    return (int(index),)


def token_ids(tokenizer: Any, text: str, first: str | int | None = "file") -> list[int]:
    """Ids of a text after its first token, see :func:`first_ids`; a token at the end, such as EOS, is not added.

    Raises:
        InputError: The text is empty, or the tokenizer has no token for one of its characters; or ``first`` is unknown.

    Warns:
        ResultWarning: The text itself begins with the first token.
    """
    if not isinstance(text, str):
        raise expected("text", "a text", kind_of(text), "TokenPrompt.from_ids takes ids")
    if not text:
        raise expected("text", "at least one character", text, "a list of ids may be a first token alone")
    tokenizer = plain(tokenizer)
    begin = first_ids(tokenizer, first)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise expected("text", "text in Unicode", repr(text[error.start])[1:-1], f"at {error.start}") from None
    encoding = tokenizer.encode(text, add_special_tokens=False)
    _require_encoded(tokenizer, text, encoding)
    if begin and tuple(encoding.ids[: len(begin)]) == begin:
        token = tokenizer.id_to_token(begin[0])
        message = f"text: begins with {token!r}, which is put before each text; first=None leaves that one out"
        warnings.warn(message, ResultWarning, stacklevel=3)
    return [*begin, *encoding.ids]


def _require_encoded(tokenizer: Any, text: str, encoding: Any) -> None:
    """Raise unless every character but white space has a token, and not the one for unknown characters."""
    known, unknown = np.zeros(len(text), bool), getattr(tokenizer.model, "unk_token", None)
    for token, (begin, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        known[begin:end] |= token != unknown or text[begin:end] == unknown
    missing = [i for i in np.flatnonzero(~known).tolist() if not text[i].isspace()]
    if missing or not encoding.ids:
        place = missing[0] if missing else 0
        raise expected(
            "text", "characters that the tokenizer has tokens for", text[place], f"character {place} of the text"
        )
