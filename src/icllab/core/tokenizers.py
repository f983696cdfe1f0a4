"""Tokenizers of the package ``tokenizers`` as functions of a text alone, without settings from a file or user.

``truncation`` cuts a text, ``padding`` fills it up, and dropout of merges and sampled splits draw other tokens each
time. The package keeps these settings in the tokenizer, and saves three of the four in ``tokenizer.json``.
"""

import copy
import warnings
from typing import Any

from icllab.core.errors import ResultWarning, expected, kind_of


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
