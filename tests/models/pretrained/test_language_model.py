"""Text in, and logits, losses and text out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("gguf")

import language_models as files
from token_transformers import language_model

from icllab import models
from icllab.core.errors import InputError, ResultWarning
from icllab.core.prompt import TokenPrompt
from icllab.models import pretrained
from icllab.models.pretrained.language_model import LanguageModel


@pytest.fixture(scope="module")
def lm():
    return language_model("gpt2")


def with_beginning(lm):
    """The language model whose tokenizer puts w7 before each text, and w8 after it."""
    from tokenizers import processors

    other = language_model("gpt2")
    other.tokenizer.post_processor = processors.TemplateProcessing(
        single="w7 $A w8", special_tokens=[("w7", 7), ("w8", 8)]
    )
    return LanguageModel(lm.model, other.tokenizer)


def test_logits_and_losses_by_token(lm):
    logits, losses = lm("w3 w1 w3"), lm.loss("w3 w1 w3")
    assert logits.dims == ("position", "vocabulary")
    assert logits.token.values.tolist() == losses.token.values.tolist() == ["w3", "w1", "w3"]
    assert losses.target.values.tolist() == ["w1", "w3", ""]
    exact = np.asarray(jax.nn.log_softmax(lm.model(TokenPrompt.from_text("w3 w1 w3", lm.tokenizer))))
    np.testing.assert_allclose(jax.nn.log_softmax(logits.values), exact, atol=1e-5)
    np.testing.assert_allclose(losses, [-exact[0, 1], -exact[1, 3], np.nan], rtol=1e-5)
    np.testing.assert_array_equal(lm([3, 1, 3]), logits)
    both = lm.loss(["w3 w1 w3", "w5 w2"])
    assert both.dims == ("prompt", "position")
    np.testing.assert_array_equal(both[0], losses)


def test_the_first_token_is_that_of_the_file_none_or_a_token(lm):
    began = with_beginning(lm)
    assert lm.tokens("w3 w1") == [3, 1]
    assert began.tokens("w3 w1") == [7, 3, 1]  # nothing at the end
    assert began.tokens("w3 w1", first=None) == [3, 1]
    assert lm.tokens("w3 w1", first="w5") == lm.tokens("w3 w1", first=5) == [5, 3, 1]
    assert "first token: None" in repr(lm)
    assert "first token: 'w7'" in repr(began)
    np.testing.assert_array_equal(began("w3 w1"), lm([7, 3, 1]))
    np.testing.assert_array_equal(began.loss("w3 w1"), lm.loss([7, 3, 1]))
    assert began.generate("w3 w1", 4) == lm.generate([7, 3, 1], 4)
    with pytest.warns(ResultWarning, match="text: begins with 'w7', which is put before each text"):
        assert began.tokens("w7 w3") == [7, 7, 3]


def test_text_of_a_list_and_draws_of_a_key(lm):
    texts, key = ["w3 w1 w4", "w5"], jax.random.key(0)
    assert lm.generate(texts, 6) == [lm.generate(text, 6) for text in texts]
    drawn = lm.generate(texts, 6, 1.0, key=key)
    assert drawn == [lm.generate(text, 6, 1.0, key=jax.random.fold_in(key, i)) for i, text in enumerate(texts)]
    assert drawn != lm.generate(texts, 6, 1.0, key=jax.random.key(1))
    assert lm.generate(texts[0], 6, 1e-6, key=key) == lm.generate(texts[0], 6)


def test_an_answer_ends_before_a_text(lm):
    whole = lm.generate("w3 w1 w4", 40 - 3, 1.0, key=jax.random.key(5))
    words = whole.split()
    end = next(word for i, word in enumerate(words) if i >= 18 and whole.find(word) > whole.find(words[17]))
    short = lm.generate("w3 w1 w4", 40 - 3, 1.0, key=jax.random.key(5), stop=["other", end])
    assert whole.startswith(short + end)
    with pytest.warns(ResultWarning, match="stop: 'other' did not come within 5 tokens of 1 of 1 answers"):
        lm.generate("w3", 5, stop="other")


def test_interventions_of_a_language_model(lm):
    ablated = models.ablated(lm, heads="a0.h1")
    assert isinstance(ablated, LanguageModel)
    inner = models.ablated(lm.model, heads=[(0, 1)])
    exact = inner(TokenPrompt.from_ids([3, 1, 4]))
    np.testing.assert_allclose(ablated([3, 1, 4]), exact, atol=1e-5)
    steered = models.edited(lm, lambda name, value: value.at[-1].set(1.0) if name == "block0" else value)
    exact = steered.model(TokenPrompt.from_ids([3, 1, 4]))
    np.testing.assert_allclose(steered([3, 1, 4]), exact, atol=1e-5)
    with pytest.raises(InputError, match="expected an intervention that does not depend on the number of tokens"):
        steered.generate("w3 w1", 2)


def test_a_file_opens_with_its_tokenizer(tmp_path):
    weights = files.in_adjacent_pairs(files.drawn(files.TIED))
    opened = pretrained.open(files.write_gguf(tmp_path / "model.gguf", weights))
    assert opened.tokens("ab a") == [3, 4, 0]
    assert opened("ab").shape == (1, files.VOCABULARY)
    assert isinstance(opened.generate("ab a", 3), str)
    assert pretrained.open(tmp_path, dtype="bfloat16").model.readout is not None
    with pytest.raises(InputError, match="text: expected characters that the tokenizer has tokens for, got 'z'"):
        opened("ab z")


REFUSED = {
    "empty": (lambda lm: lm.generate(""), "text: expected at least one character, got ''"),
    "unknown word": (lambda lm: lm("w1 x2"), "text: expected characters that the tokenizer has tokens for, got 'x'"),
    "half a character": (lambda lm: lm("w1\ud800"), r"text: expected text in Unicode, got '\\\\ud800'; at 2"),
    "one empty text": (lambda lm: lm.loss(["w1", ""]), "text: expected at least one character"),
    "first": (lambda lm: lm.tokens("w1", "x"), "first: expected 'file', None, or a token of the tokenizer, got 'x'"),
    "first id": (lambda lm: lm.tokens("w1", 99), "first: expected an id below 19"),
    "no text": (lambda lm: lm(None), "ids: expected a sequence of at least one token id"),
    "no ids": (lambda lm: lm.generate([]), "ids: expected a sequence of at least one token id"),
    "an id": (lambda lm: lm.generate([3, 19]), "ids at 1: expected an id from 0 to 18, a vocabulary of 19, got 19"),
    "long": (lambda lm: lm([1] * 42), "ids: expected at most 41 tokens, the model's positions, got '42'"),
    "long answer": (lambda lm: lm.generate("w1", 41), "at most 41 tokens, .*, got '42, 41 of them to be written'"),
    "tokens": (lambda lm: lm.generate("w1", 0), "tokens: expected an integer of at least 1, got 0"),
    "temperature": (lambda lm: lm.generate("w1", 3, -1.0), "temperature: expected a finite number >= 0"),
    "key": (lambda lm: lm.generate("w1", 3, 1.0), "key: expected a random key for a temperature above 0, got None"),
    "stop": (lambda lm: lm.generate("w1", stop=""), "stop: expected a text, or several, got ''"),
    "stops": (lambda lm: lm.generate("w1", stop=["a", ""]), r"stop: expected a text, or several, got \['a', ''\]"),
    "text to a model": (
        lambda lm: lm.model("w1"),
        "prompt: .*TokenPrompt.from_text.* pretrained.open.path. takes texts",
    ),
    "ids to a trace": (lambda lm: lm.model.trace([1, 2]), "prompt: .*TokenPrompt.from_ids.* model.logits.ids. takes"),
    "an array": (lambda lm: lm.model.trace(jnp.array([1])), "prompt: .*TokenPrompt.from_ids.* model.logits.ids. takes"),
    "text to logits": (
        lambda lm: lm.model.logits("w1"),
        "ids: expected a sequence of token ids, got 'w1'; pretrained.op",
    ),
    "an id to a model": (
        lambda lm: lm.model(TokenPrompt.from_ids([1, 19])),
        "tokens at 1: expected an id from 0 to 18",
    ),
    "many to a model": (
        lambda lm: lm.model(TokenPrompt.from_ids([1] * 42)),
        "prompt: expected at most 41 tokens, the model's positions, got 42; cut it",
    ),
    "another model": (lambda lm: LanguageModel(None, lm.tokenizer), "model: expected a Transformer of token ids"),
    "no tokenizer": (lambda lm: LanguageModel(lm.model, None), "tokenizer: expected a tokenizers.Tokenizer"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line(lm, case):
    call, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as error:
        call(lm)
    assert "\n" not in str(error.value)


def test_an_adapter_alone_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"adapter_config.json is a part of a model; merge_and_unload"):
        pretrained.open(tmp_path)
