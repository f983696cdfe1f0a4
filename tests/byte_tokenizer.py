"""A tokenizer of the package ``tokenizers`` with one token a byte, and a BOS token that it puts before each text."""

import pytest


def with_bos(bos="<s>"):
    tokenizers = pytest.importorskip("tokenizers")
    tokens = [bos, *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([bos])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 0)])
    return tokenizer
