"""Settings that a tokenizer carries are switched off on a copy; what it puts before a text is read from its rules."""

import warnings

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers")

from tokenizers import models, pre_tokenizers, processors  # noqa: E402

from icllab.core.errors import InputError, ResultWarning  # noqa: E402
from icllab.core.tokenizers import beginning, plain  # noqa: E402

VOCABULARY = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4, "<pad>": 5}
TEXT = "ab" * 40


def bpe(**options):
    tokenizer = tokenizers.Tokenizer(models.BPE(VOCABULARY, [("a", "b")], **options))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def unigram():
    vocabulary = [(token, -1.0 - i / 10) for i, token in enumerate(VOCABULARY)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocabulary, 0))
    tokenizer.model.alpha = 0.1
    return tokenizer


def changed(change, tokenizer):
    change(tokenizer)
    return tokenizer


SETTINGS = {
    "truncation to 7 tokens": lambda: changed(lambda t: t.enable_truncation(7), bpe()),
    "padding with '<pad>'": lambda: changed(lambda t: t.enable_padding(length=90, pad_id=5, pad_token="<pad>"), bpe()),
    "dropout of merges (0.5)": lambda: bpe(dropout=0.5),
    "sampled splits (alpha 0.1)": unigram,
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_is_off_on_a_copy_and_the_users_tokenizer_keeps_it(setting):
    tokenizer = SETTINGS[setting]()
    with pytest.warns(ResultWarning, match="tokenizer: switched off") as caught:
        alone = plain(tokenizer)
    assert setting in str(caught[0].message)
    whole = bpe().encode(TEXT).tokens
    assert all(alone.encode(TEXT).tokens == whole for _ in range(5))
    assert any(tokenizer.encode(TEXT).tokens != whole for _ in range(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plain(alone) is alone


def test_all_settings_of_one_tokenizer_are_named_and_its_rules_stay():
    tokenizer = bpe(dropout=0.5)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    tokenizer.encode_special_tokens = True
    with pytest.warns(ResultWarning, match="truncation to 3 tokens, padding with '\\[PAD\\]', dropout of merges"):
        alone = plain(tokenizer)
    assert alone.encode_special_tokens
    assert alone.get_vocab() == tokenizer.get_vocab()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = bpe(dropout=0.0)  # which drops nothing
        assert plain(whole) is whole
        assert plain(None) is None


def test_a_tokenizer_that_cannot_be_copied_is_refused():
    class Letters:
        def pre_tokenize(self, text):
            text.split(lambda index, part: list(part), "isolated")

    tokenizer = bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Letters())
    assert plain(tokenizer) is tokenizer
    tokenizer.enable_truncation(3)
    with pytest.raises(
        InputError, match="expected a tokenizer whose tokens depend on the text alone, got 'truncation to 3 tokens'"
    ):
        plain(tokenizer)


def test_a_tokenizer_of_transformers_is_one_line():
    class Fast:
        backend_tokenizer = None

    with pytest.raises(
        InputError, match="tokenizer: expected a tokenizer of the package tokenizers, got 'Fast'; try its backend_tok"
    ):
        plain(Fast())


def template(single):
    return processors.TemplateProcessing(single=single, special_tokens=[("<s>", 0), ("</s>", 1)])


@pytest.mark.parametrize(
    ("processor", "ids"),
    [
        (None, ()),
        (processors.ByteLevel(), ()),
        (template("<s> $A"), (0,)),
        (template("$A </s>"), ()),
        (template("</s> <s> $A </s>"), (1, 0)),
        (processors.Sequence([processors.ByteLevel(), template("<s> $A </s>")]), (0,)),
        (processors.RobertaProcessing(("</s>", 1), ("<s>", 0)), (0,)),
    ],
)
def test_the_beginning_of_each_text(processor, ids):
    """Also where the first token of the vocabulary is the one that is added."""
    tokenizer = bpe()
    if processor is not None:
        tokenizer.post_processor = processor
    assert beginning(tokenizer) == ids
    assert tuple(tokenizer.encode("ab").ids[: len(ids)]) == ids
    assert beginning(object()) == beginning(None) == ()


def test_random_rules_agree_with_what_a_text_gets():
    rng = np.random.default_rng(0)
    for _ in range(20):
        parts = [*rng.choice(["<s>", "</s>"], rng.integers(3)), "$A", *rng.choice(["<s>", "</s>"], rng.integers(3))]
        tokenizer = bpe()
        tokenizer.post_processor = template(" ".join(parts))
        ids = tokenizer.encode("ab").ids
        assert beginning(tokenizer) == tuple(ids[: ids.index(4)])
