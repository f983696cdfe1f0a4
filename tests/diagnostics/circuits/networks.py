"""Small networks of token ids, and a tokenizer of the letters a to z."""

from types import SimpleNamespace

import jax

from icllab.models import BlockOptions, Tokens, Transformer

VOCABULARY = 11


def network(key=1, layers=3, heads=3, norm="pre", positions="rotary", mlp=(8,), cap=None, **options):
    return Transformer(
        Tokens(VOCABULARY, cap=cap),
        dim=VOCABULARY,
        width=12,
        layers=layers,
        block=BlockOptions(heads=heads, mlp=mlp, norm=norm, **options),
        positions=positions,
        length=20 if positions == "learned" else None,
        std=0.6,
        key=jax.random.key(key),
    )


class Letters:
    """One token a letter; "a" is 0."""

    def encode(self, text, add_special_tokens=True):
        del add_special_tokens
        return SimpleNamespace(ids=[ord(letter) - ord("a") for letter in text])

    def decode(self, ids):
        return "".join(chr(ord("a") + int(index)) for index in ids)

    def get_vocab_size(self):
        return VOCABULARY


def language_model(**options):
    return SimpleNamespace(model=network(**options), tokenizer=Letters())
