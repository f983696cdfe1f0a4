"""A tokenizer with the interface of the package ``tokenizers``: characters, and strings merged to one token."""

import string
from types import SimpleNamespace


class CharacterTokenizer:
    """Ids of the longest strings that fit, from left to right; special tokens are added where they are not declined."""

    def __init__(self, *merged):
        self.tokens = [*sorted(merged, key=len, reverse=True), *string.printable[:95], "\n", "é"]

    def encode(self, text, add_special_tokens=True):
        ids = [0] if add_special_tokens else []
        while text:
            index = next(i for i, token in enumerate(self.tokens) if text.startswith(token))
            ids.append(index)
            text = text[len(self.tokens[index]) :]
        return SimpleNamespace(ids=ids)

    def decode(self, ids):
        return "".join(self.tokens[i] for i in ids)

    def get_vocab_size(self):
        return len(self.tokens)
