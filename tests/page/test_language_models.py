"""The process that reads texts for the page: it answers, refuses in one line, may die, and ends with the page."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from language_models import HEADS
from page.conftest import TEXT

from icllab.core.errors import EnvironmentFault, InputError
from icllab.page import language_models, prompt_worker
from icllab.page.language_models import TEXTS, LanguageModels


@pytest.fixture
def models(tiny_models):
    """The models, and their process, which ends."""
    models = LanguageModels(tiny_models)
    yield models
    models.close()


def test_the_page_answers_from_a_process_of_its_own(tiny_models, opened, tmp_path, monkeypatch):
    monkeypatch.setenv("ICLLAB_MODELS", str(tiny_models))
    page = opened(tmp_path)
    listing = page.get("/api/models").json()
    assert (listing["models"], listing["missing"], listing["texts"]) == (["damaged", "short", "tiny"], "", TEXTS)
    values = {"model": "tiny", "text": TEXT, "size": 2, "block": 1, "head": 3}
    answer = page.post("/api/prompt", json=values)
    assert answer.status_code == 200
    wanted = prompt_worker.read(str(tiny_models / "tiny"), TEXT, 2, 1, 3)
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
        ({"size": 1.0}, "size: expected one of"),
        ({"size": [1]}, "size: expected one of"),
        ({"model": "huge"}, "unknown model 'huge'; known: damaged, short, tiny"),
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
    assert "`make models` in a clone brings three" in listing["missing"]
    refused = page.post("/api/prompt", json={"model": "tiny", "text": TEXT})
    assert (refused.status_code, refused.json()["error"]) == (422, listing["missing"])
    assert page.post("/api/prompt", json={"colour": "red"}).status_code == 400


@pytest.mark.slow
def test_real_models_copy_the_words_that_come_twice_or_do_not():
    folder = Path(__file__).parents[2] / "models"
    if not {"glassllm-en", "smollm2-135m"} <= {path.name for path in folder.glob("*")}:
        pytest.skip("needs models/, which `make models` brings")
    models = LanguageModels(folder)
    scores, gains = {}, {}
    for name, words in (("smollm2-135m", 10), ("glassllm-en", 23)):  # and so many tokens
        answer = models.read(model=name, text=TEXTS["The same words twice"])
        scores[name] = answer["scores"]["copy"]
        ends = [i for i, token in enumerate(answer["tokens"]) if token == "."]
        first, second = (np.mean(answer["loss"][end - words : end]) for end in ends)
        gains[name] = first - second
    models.close()
    assert scores["smollm2-135m"] == [18, 6, pytest.approx(0.88, abs=0.02)]
    assert scores["glassllm-en"][2] < 0.06
    assert gains["smollm2-135m"] == pytest.approx(10.3, abs=0.3)
    assert abs(gains["glassllm-en"]) < 0.2


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
    monkeypatch.setattr(language_models, "COMMAND", (sys.executable, "-c", WORKER))
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
    monkeypatch.setattr(language_models, "TIMEOUT", 0.5)
    with pytest.raises(EnvironmentFault, match=r"took more than 0\.5 s; the next text starts another"):
        stub("sleep")
    monkeypatch.setattr(language_models, "TIMEOUT", 60.0)
    assert stub("next") == "next"


def test_a_text_waits_for_another_and_the_end_of_the_page_ends_both(stub, models, until, monkeypatch):
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
