"""Pretrained language models from files: ``load``, the ``tokenizer``, and ``verify`` against other logits."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.models.pretrained.loading import load
    from icllab.models.pretrained.tokenization import tokenizer
    from icllab.models.pretrained.verification import verify

__all__ = ["load", "tokenizer", "verify"]
__getattr__, __dir__ = attach(__name__)
