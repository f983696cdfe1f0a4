"""The page over a directory of results of the toy claim, with a few claims of the book."""

import json
import shutil
import time

import pytest
from faults.processes import CLAIMS, finished_run
from language_models import GPT2, TIED, drawn, in_adjacent_pairs, write_folder, write_glassllm
from page.explorer_tab import watched
from starlette.testclient import TestClient

from icllab.core.errors import InputError
from icllab.lab import registry
from icllab.page import server
from icllab.page.language_models import LanguageModels

ADDRESS = "http://127.0.0.1:8765"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
OF_THE_BOOK = ("asymptotics/double_descent", "descent/best_step")
MARKUP = "<script>window.alerted = 1</script>"
TEXT = "abc ab cab\nab ca"
TOKENIZER = {"alphabet": ["▁", "a", "b", "c", "\n"], "merges": [["a", "b"], ["▁", "ab"]]}
_all = registry.claims


def few(folder=None):
    """Two claims of the book, and those of the folder."""
    found = _all(folder)
    return {name: path for name, path in found.items() if name in OF_THE_BOOK or name not in _all()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Where a finished run of the toy claim is, which no test changes."""
    return finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def results(finished, tmp_path):
    """A copy of it, for one test to change."""
    return shutil.copytree(finished, tmp_path / "results")


@pytest.fixture(scope="module")
def quick():
    """Few claims: reading all takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "claims", few)
        yield


def reading(text, size=1, block=None, head=None):
    """What a model of two blocks of two heads makes of any text, without a model."""
    if text == "refused":
        raise InputError("text: expected another, got 'refused'")
    block, head = (1, 0) if block is None else (block, head)
    tokens = [" a", MARKUP, "\n", r"\xe6", " b"]
    loss, alone = [None, 1.0, 4.0, 2.0, 0.5], [None, 1.0, 3.0, 2.0 + size, 9.0]
    step = 0.1 if (block, head) == (1, 0) else 0.2
    pattern = [[step] * i + [1 - step * i] for i in range(5)]
    scores = {"copy": [1, 0, 0.9], "previous": [0, 1, 0.25]}
    answer = {"tokens": tokens, "loss": loss, "alone": alone, "pattern": pattern, "scores": scores}
    return answer | {"blocks": 2, "heads": 2, "block": block, "head": head}


@pytest.fixture(scope="module")
def without_models():
    """Language models of the page that only pretend to read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModels, "names", lambda self: ["large", "tiny"])
        patch.setattr(LanguageModels, "read", lambda self, *, model, **values: reading(**values))
        yield


@pytest.fixture(scope="module")
def tiny_models(tmp_path_factory):
    """A folder of models: two that are tiny, one of 9 places; a damaged one, and what is none."""
    root = tmp_path_factory.mktemp("models")
    for name in ("tiny", "damaged", "none"):
        (root / name).mkdir()
    write_folder(root / "short", GPT2)
    for name in ("tiny", "short"):
        (root / name / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    write_glassllm(root / "tiny" / "model.npz", in_adjacent_pairs(drawn(TIED)))
    (root / "damaged" / "model.npz").write_bytes(b"PK")
    (root / "none" / "readme.md").write_text("no model")
    (root / "model.npz").write_bytes(b"in no folder")
    return root


@pytest.fixture
def opened(quick):
    """``opened(out)``: a client of the page over a directory."""
    clients = []

    def opened(out, claims=CLAIMS, **options):
        client = TestClient(server.build(out, claims=claims, **options), base_url=ADDRESS, follow_redirects=False)
        client.__enter__()
        clients.append(client)
        return client

    yield opened
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture(scope="module")
def page(quick, finished):
    """A client of the page over a finished run, which no test changes."""
    with TestClient(server.build(finished, claims=CLAIMS), base_url=ADDRESS, follow_redirects=False) as client:
        yield client


@pytest.fixture
def until():
    """``until(condition)``: its first true value within some seconds."""

    def until(condition, seconds=60.0):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := condition():
                return value
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s")

    return until


@pytest.fixture(scope="module")
def browser():
    """A browser without a window; what needs one is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("needs Chromium on the PATH")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser):
    """A tab that must have no error and no request to elsewhere."""
    with watched(browser) as tab:
        yield tab
