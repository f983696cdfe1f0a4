"""The language models of the claims, as ``make models`` downloads them, and their tokenizers.

They are opened from the folder that the environment variable ``ICLLAB_MODELS`` names, or else from ``./models``. A file
with another SHA-256 is another model, and refused.
"""

import functools
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from icllab.core.errors import EnvironmentFault, expected, require_known
from icllab.models import Transformer, pretrained

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DIGESTS = {
    "glassllm-en": ("model.npz", "261ae219ab98caa1f3641e23deb3d9d91b7b7a276f991cbd494f67cfa5abce4d"),
    "smollm2-135m": ("model.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
}
"""File and SHA-256 of each model."""
BEGINNINGS = ("<|endoftext|>", "<|begin_of_text|>", "<bos>", "<s>", "<|im_start|>")
"""Tokens before a text, of which a user's model has the first that its tokenizer knows."""


def folder(name: str) -> Path:
    """The folder of a model.

    Raises:
        EnvironmentFault: It is not there, or has another file.
    """
    require_known("model", name, DIGESTS)
    place = Path(os.environ.get("ICLLAB_MODELS", "models")) / name
    file, digest = DIGESTS[name]
    if not (place / file).is_file():
        hint = "`make models` in a clone brings it; ICLLAB_MODELS says where such folders are"
        raise EnvironmentFault(f"model: expected the file {place / file}, got none; {hint}")
    if _digest(place / file) != digest:
        raise EnvironmentFault(f"model: expected {place / file} with the SHA-256 {digest[:12]}…, got another")
    return place


@functools.cache
def load(name: str) -> Transformer:
    """Load a model by its name, once per process."""
    return pretrained.load(folder(name))


@functools.cache
def tokenizer(name: str) -> "Tokenizer":
    """The tokenizer of a model."""
    return pretrained.tokenizer(folder(name))


class Opened(NamedTuple):
    """A model, its tokenizer, and the text of the token before a text; empty if it has none."""

    model: Transformer
    tokenizer: "Tokenizer"
    beginning: str


def opened(name: str, network: Any = None) -> Opened:
    """The model of a name, or a user's ``network`` in its place."""
    if network is None:
        return Opened(load(name), tokenizer(name), {"smollm2-135m": "<|endoftext|>", "glassllm-en": "<bos>"}[name])
    known = [text for text in BEGINNINGS if network.tokenizer.token_to_id(text) is not None]
    return Opened(network.model, network.tokenizer, known[0] if known else "")


def require_beginning(tokenizer: "Tokenizer", text: str) -> int:
    """The token before a text; without it a model attends to the first token, whatever that is."""
    token = tokenizer.token_to_id(text) if text else None
    if token is None:
        raise expected("tokenizer", f"one of the tokens {', '.join(BEGINNINGS)}", "none of them")
    return token


@functools.cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
