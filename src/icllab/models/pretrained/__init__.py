"""Language models from files: ``open`` with the tokenizer, ``load``, ``tokenizer``, and ``verify`` against others."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.models.pretrained.language_model import open
    from icllab.models.pretrained.loading import load
    from icllab.models.pretrained.tokenization import tokenizer
    from icllab.models.pretrained.verification import verify

__all__ = ["load", "open", "tokenizer", "verify"]
__getattr__, __dir__ = attach(__name__)
