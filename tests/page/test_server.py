"""Answers of the server: claims, results, data, refusals of one line; and that it never needs JAX."""

import json
import os
import re
import shutil
import subprocess
import sys
from urllib.parse import quote

import numpy as np
import pytest
from faults.processes import CLAIM, CLAIMS, STORE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icllab.core.errors import InputError
from icllab.page import server
from icllab.page.results import FILES


def test_the_gallery_has_every_claim_with_its_verdict(page):
    answer = page.get("/api/claims").json()
    found = {one["claim"]: one for one in answer["claims"]}
    assert {"asymptotics/double_descent", "descent/best_step", CLAIM} <= set(found)
    own = found[CLAIM]
    assert (own["verdict"], own["stale"], own["papers"]) == ("holds", False, ["Lu24"])
    assert "one half and a little noise" in own["words"]
    assert "pehlevan" in own["words"]  # by an author too
    assert "small, run here" in own["html"]
    assert "recorded" in found["asymptotics/double_descent"]["html"]
    assert "asymptotics" in answer["subjects"]
    assert answer["papers"]["Lu24"] == "Lu et al. (2025)"


def test_a_card_has_all_of_a_claim(page):
    answer = page.get(f"/api/claims/{CLAIM}").json()
    html = answer["html"]
    assert answer["sizes"] == ["smoke", "small"]
    assert "What is measured is one half and a little noise." in html
    assert len(re.findall(r"error, at <abbr[^>]*>dim</abbr> \d+: <b>\S+ ± \S+</b>, predicted 0.5", html)) == 5
    assert " ± " in html
    assert "nine tenths instead of one half" in html
    assert "def measure(point, *, key, scratch, raised=0.0):" in html  # its text
    assert f"icl run {CLAIM} --size small" in html
    for name in FILES:
        assert f'"api/results/{STORE.as_posix()}/{name}?' in html
    assert 'alt="Figure of the claim' in html
    recorded = page.get("/api/claims/asymptotics/double_descent").json()["html"]
    assert '<details class="background" open>' in recorded
    assert r'<span class="math" data-tex="n = d(d+1)">n = d(d+1)</span>' in recorded


def test_a_claim_that_was_never_run_and_a_stale_one_say_so(opened, results):
    page = opened(results)
    path = results / STORE / "verdict.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"measure": 2}))
    tile = next(one for one in page.get("/api/claims").json()["claims"] if one["claim"] == CLAIM)
    assert tile["stale"]
    assert ">stale</span>" in tile["html"]
    shutil.rmtree(results / STORE)
    tile = next(one for one in page.get("/api/claims").json()["claims"] if one["claim"] == CLAIM)
    assert (tile["verdict"], tile["stale"]) == ("none", False)
    assert "not yet run" in tile["html"]


def test_the_address_is_that_of_the_proxy(results, monkeypatch):
    said = []
    monkeypatch.setattr(server._Server, "run", lambda self, sockets: self._on_ready())
    where = server.serve(results, port=0, proxy="https://hub.example.org/user/me/proxy/8765", on_ready=said.append)
    assert said == [where]
    assert re.fullmatch(r"https://hub\.example\.org/user/me/proxy/8765/\?token=\S{20,}", where)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", server.serve(results, port=0))
    for proxy in ("hub.example.org", "ftp://hub.example.org/", "https:///proxy"):
        with pytest.raises(InputError, match="proxy: expected an address such as https"):
            server.serve(results, port=0, proxy=proxy)


def test_data_are_what_is_stored(page, finished):
    folder, address = finished / STORE, f"/api/results/{STORE.as_posix()}"
    assert page.get(f"{address}/results.nc").content == (folder / "results.nc").read_bytes()
    assert page.get(f"{address}/figure.png").content == (folder / "figure.png").read_bytes()
    pdf = page.get(f"{address}/figure.pdf")
    assert pdf.headers["content-disposition"] == 'attachment; filename="claims-steady-small.pdf"'
    assert (pdf.headers["content-type"], pdf.content) == ("application/pdf", (folder / "figure.pdf").read_bytes())


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/claims/asymptotics/nothing", 404, "claim: expected one of this library"),
        ("/api/results/claims/steady/full/results.nc", 404, "result: expected a figure or data"),
        ("/api/results/claims/steady/small/verdict.json", 404, "result: expected a figure or data"),
        ("/api/claims?colour=red", 400, "unknown name in the query: 'colour'"),
        ("/api/explorers/linear_attention?tau=1&tau=2", 400, "tau: expected one value"),
        ("/api/explorers/none", 404, "explorer: expected one of"),
        ("/api/runs/none/log", 404, "run: expected one of this page"),
        ("/api/nothing", 404, "address: expected one of this page"),
    ],
)
def test_a_refusal_is_one_line(path, status, said, page):
    answer = page.get(path)
    assert answer.status_code == status
    assert said in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_start_is_read_before_anything_runs(page):
    def said(body, status=400):
        answer = page.post("/api/runs", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status
        return answer.json()["error"]

    assert "expected a JSON object" in said("[]")
    assert "expected a JSON object" in said("{")
    assert "claim: expected the name of a claim" in said("{}")
    assert "unknown name in the body: 'colour'" in said(json.dumps({"claim": CLAIM, "colour": "red"}))
    assert "did you mean 'small'?" in said(json.dumps({"claim": CLAIM, "size": "smal"}))
    assert "known: small, smoke" in said(json.dumps({"claim": CLAIM, "size": "full"}))
    assert "an integer from 1 to 64" in said(json.dumps({"claim": CLAIM, "workers": True}))
    assert "an integer from 1 to 64" in said(json.dumps({"claim": CLAIM, "workers": 0}))
    assert "expected one of this library" in said(json.dumps({"claim": "--help"}), 404)
    assert "at most 65536 bytes" in said(json.dumps({"claim": "a" * 70_000}))
    assert page.app.app.state.api.runs.jobs() == []


def test_a_result_is_read_again_when_a_file_of_its_size_has_taken_its_place(results, opened):
    """Within the same second: the address of its figure changes too."""
    page, path = opened(results), results / STORE / "verdict.json"

    def tile():
        return next(one for one in page.get("/api/claims").json()["claims"] if one["claim"] == CLAIM)

    before = tile()
    assert before["verdict"] == "holds"
    text, times = path.read_text(), path.stat()
    path.write_text(text.replace('"holds"', '"fails"'))
    os.utime(path, ns=(times.st_atime_ns, max(p.stat().st_mtime_ns for p in path.parent.iterdir()) + 2_000_000))
    after = tile()
    assert after["verdict"] == "fails"
    addresses = [re.search(r"figure\.png\?\d+", one["html"])[0] for one in (before, after)]
    assert addresses[0] != addresses[1]


# Files that are not what they seem.


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.nc", b"truncated"),
        ("configuration.json", b"{"),
        ("configuration.json", b"[" * 100_000),
        ("verdict.json", b"[]"),
        ("grids/more.json", b'{"static": {"a": [1, 1]}, "traced": {}, "block": null}'),
        ("grids/more.json", b'{"static": {"a": [[1]]}, "traced": {}, "block": "x"}'),
        (
            "grids/more.json",
            json.dumps({"static": {c: list(range(100)) for c in "abcd"}, "traced": {}, "block": None}).encode(),
        ),
    ],
)
def test_a_store_that_is_unsound_is_a_red_card(name, content, opened, results):
    (results / STORE / name).write_bytes(content)
    page = opened(results)
    (tile,) = (one for one in page.get("/api/claims").json()["claims"] if one["claim"] == CLAIM)
    assert 'class="fault"' in tile["html"]
    assert 'class="fault"' in page.get(f"/api/claims/{CLAIM}").json()["html"]
    assert page.get(f"/api/results/{STORE.as_posix()}/results.nc").status_code == 404


# Explorers.


def test_an_explorer_answers_and_refuses(page):
    for one in page.get("/api/explorers").json()["explorers"]:
        answer = page.get(f"/api/explorers/{one['id']}")
        assert answer.status_code == 200
        refused = page.get(f"/api/explorers/{one['id']}?nothing=1")
        assert (refused.status_code, "unknown control" in refused.json()["error"]) == (400, True)
    values = {"tau": "nan", "x": "<script>"}
    for name, value in values.items():
        assert page.get(f"/api/explorers/linear_attention?{name}={value}").status_code in (400, 404)


# No JAX.


def test_the_process_of_the_page_never_imports_jax(page, finished):
    """A process of its own, with all claims."""
    code = f"""
import sys
from pathlib import Path
from icllab.page import server
from icllab.page.explorers import EXPLORERS
api = server.build(Path({str(finished)!r}), claims=Path({str(CLAIMS)!r})).app.state.api
api.open()
api.gallery(), api.claim(*{CLAIM!r}.split("/")), api.run_states()
api.download(*{CLAIM!r}.split("/"), "small", "results.nc", {{}})
for id in EXPLORERS: api.explore(id, {{}})
api.models()
api.close()
print(*sorted({{name.split(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "starlette" in loaded
    assert not loaded & {"jax", "jaxlib", "equinox", "optax"}


# Whatever is asked, no answer is a fault of the server's.

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ANY = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT, st.lists(TEXT, max_size=2))


@st.composite
def requests(draw, endpoints, known):
    endpoint = draw(st.sampled_from(endpoints))
    path = endpoint.path
    for part in ("id", "subject", "finding", "name", "file"):
        path = path.replace("{" + part + "}", quote(draw(st.one_of(st.sampled_from(known), TEXT)), safe=""))
    query = draw(st.dictionaries(TEXT, TEXT, max_size=1)) if draw(st.booleans()) else {}
    if endpoint.query and draw(st.booleans()):
        query |= {draw(st.sampled_from(["tau", "alpha", "kappa", "ridge", "n", "beta"])): draw(st.floats().map(str))}
    if endpoint.method == "GET":
        return "GET", path, query, None
    fields = {
        "claim": st.sampled_from(known),
        "size": st.sampled_from(["small", "smoke", "full"]),
        "workers": st.integers(-1, 70),
    }
    body = {name: draw(st.one_of(field, ANY)) for name, field in fields.items() if draw(st.booleans())}
    return "POST", path, query, draw(st.one_of(st.just(body), ANY))


def fuzzed(page, monkeypatch, count):
    """So many requests from the declared parameters; a run that is asked for is not started."""
    from icllab.page.runs import Runs

    monkeypatch.setattr(Runs, "_launch", lambda self, job: setattr(job, "state", "failed"))
    known = ["run-1", "linear_attention", "figure.png", "results.nc", "claims", "steady", "small", CLAIM, "..", "0"]
    endpoints = [one for one in page.app.app.state.api.endpoints if "report" not in one.path]
    codes = []

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(requests(endpoints, known))
    def ask(request):
        method, path, query, body = request
        content = None if body is None and method == "GET" else json.dumps(body)
        headers = {"content-type": "application/json"} if method == "POST" else {}
        answer = page.request(method, path, params=query, content=content, headers=headers)
        codes.append(answer.status_code)
        assert answer.status_code < 500

    ask()
    return codes


def test_no_request_from_the_schema_is_a_fault(page, monkeypatch):
    codes = fuzzed(page, monkeypatch, 30)
    assert {200, 400, 404} <= set(codes)


@pytest.mark.slow
def test_no_request_of_two_thousand_is_a_fault(page, monkeypatch):
    codes = fuzzed(page, monkeypatch, 2000)
    assert len(codes) >= 2000
    assert {200, 400, 404} <= set(codes)
    assert np.mean(np.asarray(codes) == 200) > 0.02


def test_a_figure_has_the_caption_of_its_book_or_says_that_there_are_no_data(page):
    captions = {
        "asymptotics/double_descent": "Error on fresh tasks",
        "descent/best_step": "Results of a run whose data",
    }
    for claim, words in captions.items():
        assert f"<figcaption>{words}" in page.get(f"/api/claims/{claim}").json()["html"]
        assert page.get(f"/api/claims/{claim}/other.png").status_code == 404
