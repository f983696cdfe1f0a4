"""Prompts of the page: losses and patterns are those of the model, and the process behind them may die."""

import json
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest
from language_models import HEADS, LAYERS, TIED, drawn, in_adjacent_pairs, logits, write_glassllm
from scipy.special import logsumexp

import icllab.page.language_models as parent
from icllab.core.errors import EnvironmentFault, InputError
from icllab.core.prompt import TokenPrompt
from icllab.models import pretrained
from icllab.page import prompt_worker
from icllab.page.language_models import TEXTS, LanguageModels

TEXT = "abc ab cab\nab ca"
ALPHABET, MERGES = ["▁", "a", "b", "c", "\n"], [["a", "b"], ["▁", "ab"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of models: one that is tiny, a damaged one, and what is none."""
    root = tmp_path_factory.mktemp("models")
    for name in ("tiny", "damaged", "none"):
        (root / name).mkdir()
    write_glassllm(root / "tiny" / "model.npz", in_adjacent_pairs(drawn(TIED)))
    (root / "tiny" / "tokenizer.json").write_text(json.dumps({"alphabet": ALPHABET, "merges": MERGES}))
    (root / "damaged" / "model.npz").write_bytes(b"PK")
    (root / "none" / "readme.md").write_text("no model")
    (root / "model.npz").write_bytes(b"in no folder")
    return root


@pytest.fixture(scope="module")
def encode(folder):
    """``encode(text)``: ids of the tiny model."""
    tokenizer = pretrained.tokenizer(folder / "tiny")
    return lambda text: tokenizer.encode(text).ids


def losses(ids):
    """Cross-entropies of all ids but the first, by the formula of the family."""
    scores = logits(TIED, drawn(TIED), ids)[:-1]
    return logsumexp(scores, axis=1) - scores[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize(("text", "size"), [(TEXT, 1), (TEXT * 3, 4)])  # padded to 32 and to 64 tokens
def test_losses_are_the_cross_entropy_of_the_model_with_and_without_context(text, size, folder, encode):
    ids = encode(text)
    answer = prompt_worker.read(str(folder / "tiny"), text, size, 1, 2)
    assert "".join(answer["tokens"]) == text
    assert {len(answer[name]) for name in ("tokens", "loss", "alone", "pattern")} == {len(ids)}
    assert answer["loss"][0] is answer["alone"][0] is None
    np.testing.assert_allclose(answer["loss"][1:], losses(ids), atol=1e-5)
    prompt = TokenPrompt(jnp.asarray(ids, jnp.int32))
    windows = [prompt.alone(i, size=min(size, i + 1)).tokens for i in range(prompt.positions)]
    alone = [losses(np.asarray(window))[-1] for window in windows]
    np.testing.assert_allclose(answer["alone"][1:], alone, atol=1e-5)
    assert np.abs(alone - losses(ids))[size:].max() > 0.1


def test_the_pattern_is_that_of_the_head_and_the_scores_are_of_all_heads(folder, encode):
    ids = encode(TEXT)
    activations = pretrained.load(folder / "tiny").trace(TokenPrompt(jnp.asarray([*ids, 0], jnp.int32))).activations
    patterns = np.stack([activations[f"block{i}.attention.pattern"] for i in range(LAYERS)])
    for block, head in ((0, 3), (1, 2)):
        answer = prompt_worker.read(str(folder / "tiny"), TEXT, 1, block, head)
        for i, row in enumerate(answer["pattern"]):
            np.testing.assert_allclose(row, patterns[block, head, i, : i + 1], atol=6e-5)
    n = len(ids)
    previous = np.mean([patterns[:, :, i, i - 1] for i in range(1, n)], axis=0)
    followed = {i: [j for j in range(1, i + 1) if ids[j - 1] == ids[i]] for i in range(n)}
    copies = np.mean([patterns[:, :, i, keys].sum(-1) for i, keys in followed.items() if keys], axis=0)
    for kind, means in (("previous", previous), ("copy", copies)):
        block, head = np.unravel_index(means.argmax(), means.shape)
        assert answer["scores"][kind] == [block, head, pytest.approx(means.max(), abs=1e-6)]
    chosen = prompt_worker.read(str(folder / "tiny"), TEXT, 1, None, None)
    assert [chosen["block"], chosen["head"]] == chosen["scores"]["copy"][:2]
    np.testing.assert_allclose(chosen["pattern"][-1], patterns[chosen["block"], chosen["head"], -1], atol=6e-5)
    assert list(prompt_worker.read(str(folder / "tiny"), "abc", 1, None, None)["scores"]) == ["previous"]


def test_texts_of_many_lengths_share_what_is_compiled(folder, monkeypatch):
    shapes, passed = set(), prompt_worker.passed

    def watched(model, *arrays):
        shapes.add(tuple(array.shape for array in arrays))
        return passed(model, *arrays)

    monkeypatch.setattr(prompt_worker, "passed", watched)
    for count in (2, 3, 9, 31, 32):
        prompt_worker.read(str(folder / "tiny"), "c" * count, 1, 0, 0)
    assert shapes == {((33,), (2, 32, 32), ())}


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
def test_a_text_that_does_not_fit_or_a_head_that_is_none_is_refused(values, message, folder):
    values = {"text": TEXT, "block": 0, "head": 0, **values}
    with pytest.raises(InputError, match=f"^{message}"):
        prompt_worker.read(str(folder / "tiny"), size=1, **values)


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


# The process.


@pytest.fixture
def models(folder):
    """The models, and their process, which ends."""
    models = LanguageModels(folder)
    yield models
    models.close()


def test_the_page_answers_from_a_process_of_its_own(folder, opened, tmp_path, monkeypatch):
    monkeypatch.setenv("ICLLAB_MODELS", str(folder))
    page = opened(tmp_path)
    listing = page.get("/api/models").json()
    assert (listing["models"], listing["missing"], listing["texts"]) == (["damaged", "tiny"], "", TEXTS)
    values = {"model": "tiny", "text": TEXT, "size": 2, "block": 1, "head": 3}
    answer = page.post("/api/prompt", json=values)
    assert answer.status_code == 200
    wanted = prompt_worker.read(str(folder / "tiny"), TEXT, 2, 1, 3)
    for name in ("loss", "alone"):
        assert answer.json()[name] == pytest.approx(wanted.pop(name), abs=1e-4)
    for name in ("tokens", "block", "head", "blocks", "heads"):
        assert answer.json()[name] == wanted[name]
    process = page.app.app.state.api.language_models._process
    for changes, status, message in (
        ({"head": HEADS}, 400, "head: expected an integer from 0"),
        ({"text": "a"}, 400, "text: expected 2 to 256 tokens, got 1"),
        ({"model": "damaged"}, 400, "model.npz: expected a sound file"),
    ):
        refused = page.post("/api/prompt", json=values | changes)
        assert (refused.status_code, refused.json()["error"].startswith(message)) == (status, True)
        assert "\n" not in refused.json()["error"]
    assert page.post("/api/prompt", json=values).json() == answer.json()
    assert page.app.app.state.api.language_models._process is process  # which has refused and answered all
    page.app.app.state.api.close()
    assert process.returncode is not None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": ""}, "text: expected 1 to 4096 characters, not all of them spaces, got 0"),
        ({"text": " \n"}, "text: expected 1 to 4096 characters"),
        ({"text": "a" * 4097}, "text: expected 1 to 4096 characters, not all of them spaces, got 4097"),
        ({"text": 1}, "text: expected 1 to 4096 characters"),
        ({"size": 3}, r"size: expected one of \(1, 2, 4, 8\), got 3"),
        ({"size": True}, "size: expected one of"),
        ({"model": "huge"}, "unknown model 'huge'; known: damaged, tiny"),
        ({"model": "none"}, "unknown model 'none'"),
        ({"model": "../tiny"}, "unknown model '../tiny'"),
        ({"model": "tiny/../tiny"}, "unknown model"),
        ({"model": "model.npz"}, "unknown model"),
        ({"model": "/etc"}, "unknown model"),
        ({"model": None}, "unknown model 'None'"),
    ],
)
def test_what_cannot_be_read_starts_no_process(values, message, models):
    with pytest.raises(InputError, match=message):
        models.read(**{"model": "tiny", "text": TEXT, **values})
    assert models._process is None


def test_without_models_the_page_says_what_brings_them(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("ICLLAB_MODELS", str(tmp_path / "nowhere"))
    page = opened(tmp_path)
    listing = page.get("/api/models").json()
    assert listing["models"] == []
    assert "`make models` in a clone brings some" in listing["missing"]
    refused = page.post("/api/prompt", json={"model": "tiny", "text": TEXT})
    assert (refused.status_code, refused.json()["error"]) == (422, listing["missing"])
    assert page.post("/api/prompt", json={"colour": "red"}).status_code == 400


WORKER = """
import json, os, sys, time
for line in sys.stdin:
    text = json.loads(line)["text"]
    if text == "sleep": time.sleep(60)
    if text == "end": sys.exit(3)
    if text == "kill": os.kill(os.getpid(), 9)
    print(json.dumps({"text": text}), flush=True)
"""


@pytest.fixture
def stub(models, monkeypatch):
    """``stub(text)``: the answer of a process that only echoes."""
    monkeypatch.setattr(parent, "COMMAND", (sys.executable, "-c", WORKER))
    return lambda text: models.read(model="tiny", text=text)["text"]


def test_a_process_that_died_is_replaced_and_one_line_says_why(stub, models):
    assert stub("first") == "first"
    first = models._process
    first.kill()
    first.wait()
    assert stub("second") == "second"
    assert models._process is not first
    for text, status in (("end", 3), ("kill", -9)):
        with pytest.raises(
            EnvironmentFault, match=f"^models: the process that reads texts ended with status {status};"
        ):
            stub(text)
    assert stub("third \ud83d") == "third ?"


def test_a_text_that_takes_too_long_ends_the_process(stub, models, monkeypatch):
    monkeypatch.setattr(parent, "TIMEOUT", 0.5)
    with pytest.raises(EnvironmentFault, match=r"took more than 0\.5 s; the next text starts another"):
        stub("sleep")
    monkeypatch.setattr(parent, "TIMEOUT", 60.0)
    assert stub("next") == "next"


def test_a_text_waits_for_another_and_the_end_of_the_page_ends_both(stub, models, until, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        under_way = pool.submit(stub, "sleep")
        until(lambda: models._process is not None)
        waiting = pool.submit(stub, "waits")
        time.sleep(0.2)
        assert not waiting.done()
        process = models._process
        models.close()
        assert isinstance(under_way.exception(10), EnvironmentFault)
        assert "the page has ended" in str(waiting.exception(10))
    assert process.returncode is not None
    assert models._process is None
