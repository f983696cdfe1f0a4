"""A language model with its tokenizer: text in, and logits, losses or text out."""

import os
from typing import Any

from icllab.core.errors import expected
from icllab.core.tokenizers import first_ids, plain, token_ids
from icllab.core.views import one_line
from icllab.models.interventions.edits import unedited
from icllab.models.networks.embedding import Tokens
from icllab.models.networks.transformer import Transformer
from icllab.models.pretrained.loading import load
from icllab.models.pretrained.tokenization import tokenizer


def open(path: str | os.PathLike[str], **options: Any) -> "LanguageModel":  # as icl.open
    """The model and the tokenizer of a folder or file; ``options`` are those of :func:`.pretrained.load`.

    Raises:
        InputError: The model or its tokenizer is not understood.
        EnvironmentFault: The extra ``[pretrained]`` is not installed.
    """
    return LanguageModel(load(path, **options), tokenizer(path))


class LanguageModel:
    """A transformer of token ids and its tokenizer.

    A text becomes ids by :meth:`tokens`, with the first token that the file says. Sequences of ids are taken as they
    are. A list of texts, or of sequences of ids, is a batch: its answers are those of its members one by one.

    Attributes:
        model: The :class:`~icllab.models.networks.transformer.Transformer`, which every diagnostic takes; or one with
            interventions, such as ``models.ablated(model, heads=["block18.6"])``.
        tokenizer: The ``tokenizers.Tokenizer``.
    """

    def __init__(self, model: Any, tokenizer: Any):
        arrangement = getattr(getattr(unedited(model), "embedding", None), "arrangement", None)
        if not isinstance(unedited(model), Transformer) or not isinstance(arrangement, Tokens):
            raise expected("model", "a Transformer of token ids", type(model).__name__, "pretrained.load opens one")
        if not hasattr(tokenizer, "encode"):
            raise expected("tokenizer", "a tokenizers.Tokenizer", type(tokenizer).__name__, "pretrained.tokenizer")
        self.model, self.tokenizer = model, plain(tokenizer)

    def tokens(self, text: str, first: str | int | None = "file") -> list[int]:
        """Ids of a text after its first token.

        Args:
            text: The text. Templates of chats are not applied: they are text, to be written out.
            first: ``"file"``: the token that the file's tokenizer puts before each text, if it has one; None: no such
                token; or a token or its id.

        Raises:
            InputError: The text is empty, or the tokenizer has no token for one of its characters.
        """
        return token_ids(self.tokenizer, text, first)

    def __repr__(self) -> str:
        network, first = unedited(self.model), first_ids(self.tokenizer)
        sizes = f"{len(network.blocks)} blocks, vocabulary {network.embedding.arrangement.vocabulary}"
        token = repr(self.tokenizer.id_to_token(first[0])) if first else "None"
        return one_line("LanguageModel", {"model": f"{type(self.model).__name__} of {sizes}", "first token": token})
