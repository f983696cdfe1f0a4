"""What the page reads of a text: losses with and without context, patterns, scores, against formulas."""

import jax.numpy as jnp
import numpy as np
import pytest
from language_models import GPT2, HEADS, LAYERS, TIED, drawn, logits
from page.conftest import TEXT
from scipy.special import logsumexp

from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.models import pretrained
from icllab.page import prompt_worker


@pytest.fixture(scope="module")
def encode(tiny_models):
    """``encode(text)``: ids of the tiny model."""
    tokenizer = pretrained.tokenizer(tiny_models / "tiny")
    return lambda text: tokenizer.encode(text).ids


def losses(ids, family=TIED):
    """Cross-entropies of all ids but the first, by the formula of the family."""
    scores = logits(family, drawn(family), ids)[:-1]
    return logsumexp(scores, axis=1) - scores[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize(("text", "size"), [(TEXT, 1), (TEXT * 3, 4)])  # padded to 32 and to 64 tokens
def test_losses_are_the_cross_entropy_of_the_model_with_and_without_context(text, size, tiny_models, encode):
    ids = encode(text)
    answer = prompt_worker.read(str(tiny_models / "tiny"), text, size, 1, 2)
    assert "".join(answer["tokens"]) == text
    assert {len(answer[name]) for name in ("tokens", "loss", "alone", "pattern")} == {len(ids)}
    assert answer["loss"][0] is answer["alone"][0] is None
    np.testing.assert_allclose(answer["loss"][1:], losses(ids), atol=1e-5)
    prompt = TokenPrompt(jnp.asarray(ids, jnp.int32))
    windows = [prompt.alone(i, size=min(size, i + 1)).tokens for i in range(prompt.positions)]
    alone = [losses(np.asarray(window))[-1] for window in windows]
    np.testing.assert_allclose(answer["alone"][1:], alone, atol=1e-5)
    assert np.abs(alone - losses(ids))[size:].max() > 0.1


def test_the_pattern_is_that_of_the_head_and_the_scores_are_of_all_heads(tiny_models, encode):
    ids = encode(TEXT)
    activations = (
        pretrained.load(tiny_models / "tiny").trace(TokenPrompt(jnp.asarray([*ids, 0], jnp.int32))).activations
    )
    patterns = np.stack([activations[f"block{i}.attention.pattern"] for i in range(LAYERS)])
    for block, head in ((0, 3), (1, 2)):
        answer = prompt_worker.read(str(tiny_models / "tiny"), TEXT, 1, block, head)
        for i, row in enumerate(answer["pattern"]):
            np.testing.assert_allclose(row, patterns[block, head, i, : i + 1], atol=6e-5)
    n = len(ids)
    previous = np.mean([patterns[:, :, i, i - 1] for i in range(1, n)], axis=0)
    followed = {i: [j for j in range(1, i + 1) if ids[j - 1] == ids[i]] for i in range(n)}
    copies = np.mean([patterns[:, :, i, keys].sum(-1) for i, keys in followed.items() if keys], axis=0)
    for kind, means in (("previous", previous), ("copy", copies)):
        block, head = np.unravel_index(means.argmax(), means.shape)
        assert answer["scores"][kind] == [block, head, pytest.approx(means.max(), abs=1e-6)]
    chosen = prompt_worker.read(str(tiny_models / "tiny"), TEXT, 1, None, None)
    assert [chosen["block"], chosen["head"]] == chosen["scores"]["copy"][:2]
    np.testing.assert_allclose(chosen["pattern"][-1], patterns[chosen["block"], chosen["head"], -1], atol=6e-5)
    assert list(prompt_worker.read(str(tiny_models / "tiny"), "abc", 1, None, None)["scores"]) == ["previous"]


def test_texts_of_many_lengths_share_what_is_compiled(tiny_models, monkeypatch):
    shapes, passed = set(), prompt_worker.passed

    def watched(model, *arrays):
        shapes.add(tuple(array.shape for array in arrays))
        return passed(model, *arrays)

    monkeypatch.setattr(prompt_worker, "passed", watched)
    for count in (2, 3, 9, 31, 32):
        prompt_worker.read(str(tiny_models / "tiny"), "c" * count, 1, 0, 0)
    assert shapes == {((33,), (2, 32, 32), ())}


def test_a_model_with_a_table_of_positions_reads_as_many_tokens_as_it_has_places(tiny_models, encode):
    text = "cacbcacbc"
    ids = encode(text)
    answer = prompt_worker.read(str(tiny_models / "short"), text, 8, 0, 0)
    assert len(answer["tokens"]) == GPT2["n_positions"]
    np.testing.assert_allclose(answer["loss"][1:], losses(ids, GPT2), atol=1e-5)
    np.testing.assert_allclose(answer["alone"][1:], losses(ids, GPT2), atol=1e-5)  # 8 tokens are the whole context
    with pytest.raises(InputError, match="text: expected 2 to 9 tokens, got 10"):
        prompt_worker.read(str(tiny_models / "short"), text + "c", 1, 0, 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": "a"}, "text: expected 2 to 256 tokens, got 1"),
        ({"text": "c" * 257}, "text: expected 2 to 256 tokens, got 257"),
        ({"block": LAYERS}, f"block: expected an integer from 0 to {LAYERS - 1}, or none, got {LAYERS}"),
        ({"head": HEADS}, f"head: expected an integer from 0 to {HEADS - 1}, or none, got {HEADS}"),
        ({"head": -1}, "head: expected an integer"),
        ({"block": True}, "block: expected an integer"),
        ({"block": "0"}, "block: expected an integer"),
    ],
)
def test_a_text_that_does_not_fit_or_a_head_that_is_none_is_refused(values, message, tiny_models):
    values = {"text": TEXT, "block": 0, "head": 0, **values}
    with pytest.raises(InputError, match=f"^{message}"):
        prompt_worker.read(str(tiny_models / "tiny"), size=1, **values)


def test_bytes_that_are_no_text_alone_and_markup_are_spelled():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    assert set(prompt_worker.BYTES) == set(alphabet)
    tokenizer = Tokenizer(models.BPE({**{c: i for i, c in enumerate(alphabet)}, "Ġâ": 256}, [("Ġ", "â")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokens = [prompt_worker.spelled(tokenizer, id) for id in tokenizer.encode("a ☕<\n").ids]
    assert tokens == ["a", r" \xe2", r"\x98", r"\x95", "<", "\n"]
    tokens = [prompt_worker.spelled(tokenizer, id) for id in tokenizer.encode("é").ids]
    assert bytes(int(token[2:], 16) for token in tokens).decode() == "é"
