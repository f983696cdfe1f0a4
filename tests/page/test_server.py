"""What the server answers: claims, results, data, refusals of one line; and that it never needs JAX."""

import asyncio
import csv
import json
import shutil
import subprocess
import sys
from urllib.parse import quote

import numpy as np
import pytest
import xarray as xr
from faults.processes import CLAIM, CLAIMS, STORE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from icllab.page import reading, stored
from icllab.page.asked import sent


def only(page):
    """The one result of the page."""
    (one,) = page.get("/api/results").json()["results"]
    return one


def test_the_gallery_has_every_claim_with_its_verdict(page):
    answer = page.get("/api/claims").json()
    found = {one["claim"]: one for one in answer["claims"]}
    assert {"asymptotics/double_descent", "singular/exact_coefficients", CLAIM} <= set(found)
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
    html, one = answer["html"], only(page)
    assert answer["sizes"] == ["smoke", "small"]
    assert "What is measured is one half and a little noise." in html
    assert html.count("error = 0.5, dim=") == 5
    assert " ± " in html
    assert "nine tenths instead of one half" in html
    assert "def measure(point, *, key, scratch, raised=0.0):" in html  # its text
    assert f"icl run {CLAIM} --size small" in html
    for what in stored.DATA:
        assert f"/api/results/{one['id']}/{what}?v=" in html
    assert 'alt="Figure of the claim' in html


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


def test_data_are_what_is_stored(page, finished):
    one, path = only(page), finished / STORE / "results.nc"
    assert page.get(f"/api/results/{one['id']}/data.nc").content == path.read_bytes()
    assert page.get(f"/api/results/{one['id']}/figure.png").content == (path.parent / "figure.png").read_bytes()
    pdf = page.get(f"/api/results/{one['id']}/figure.pdf")
    assert pdf.headers["content-disposition"] == 'attachment; filename="claims-steady-small.pdf"'
    rows = list(csv.DictReader(page.get(f"/api/results/{one['id']}/data.csv").text.splitlines()))
    data = xr.load_dataset(path)
    assert len(rows) == sum(variable.size for variable in data.data_vars.values())
    axes = [str(name) for name in data.dims]
    for row in rows:
        at = {name: type(data[name].values.tolist()[0])(row[name]) for name in axes if row[name] != ""}
        assert float(row["value"]) == data[row["quantity"]].sel(at).item()
    assert {row["ridge"] for row in rows if row["quantity"] == "icl_theory"} == {""}


def test_a_file_that_is_replaced_while_it_is_sent_is_sent_whole(tmp_path):
    """A run writes its figure anew, and the page may be reading the one before."""
    path = tmp_path / "figure.png"
    path.write_bytes(b"a" * 1_000_000)
    answer = sent(path, "image/png", {})
    (tmp_path / "new").write_bytes(b"b" * 10)
    (tmp_path / "new").replace(path)

    said = []

    async def send(message):
        said.append(message)

    asyncio.run(answer({"type": "http", "asgi": {"spec_version": "2.4"}}, None, send))
    assert b"".join(message.get("body", b"") for message in said) == b"a" * 1_000_000
    assert answer.headers["content-length"] == "1000000"


def test_a_file_that_nobody_waits_for_is_closed(tmp_path):
    """A browser may go before the first byte is sent; an open file would be a warning here."""
    path = tmp_path / "figure.png"
    path.write_bytes(b"a")
    answer = sent(path, "image/png", {})

    async def send(message):
        raise OSError("gone")

    with pytest.raises(ClientDisconnect):
        asyncio.run(answer({"type": "http", "asgi": {"spec_version": "2.4"}}, None, send))
    assert answer._file.closed


def test_a_table_has_no_formulas():
    """Text of a file that a spreadsheet would run is marked as text; numbers are as they are."""
    data = xr.Dataset({"=1+1": ("@axis", [-1.5, float("nan")])}, coords={"@axis": ["+x", "y,z"]})
    rows = list(csv.reader(b"".join(reading.as_csv(data)).decode().splitlines()))
    assert rows == [["quantity", "'@axis", "value"], ["'=1+1", "'+x", "-1.5"], ["'=1+1", "y,z", "nan"]]
    assert reading.rows(data) == 2


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/claims/asymptotics/nothing", 404, "claim: expected one of this library"),
        ("/api/results/0123456789abcdef", 404, "result: expected one of this directory"),
        ("/api/results/0123456789abcdef/points", 400, "query: expected a value of explorer"),
        ("/api/claims?colour=red", 400, "unknown name in the query: 'colour'"),
        ("/api/results/0123456789abcdef/points?explorer=a&explorer=b", 400, "explorer: expected one value"),
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
    assert "a value of claim" in said("{}")
    assert "did you mean 'small'?" in said(json.dumps({"claim": CLAIM, "size": "smal"}))
    assert "expected one of smoke, small" in said(json.dumps({"claim": CLAIM, "size": "full"}))
    assert "an integer from 1 to 64" in said(json.dumps({"claim": CLAIM, "workers": True}))
    assert "an integer from 1 to 64" in said(json.dumps({"claim": CLAIM, "workers": 0}))
    assert "expected one of this library" in said(json.dumps({"claim": "--help"}), 404)
    assert "at most 65536 bytes" in said(json.dumps({"claim": "a" * 70_000}))
    assert page.app.app.state.api.runs.jobs() == []


# Files that are not what they seem.


def file_card(page):
    (other,) = page.get("/api/claims").json()["others"]
    html = page.get(f"/api/results/{other['id']}").json()["html"]
    for what in ("data.csv", "points?explorer=linear_attention"):
        assert 400 <= page.get(f"/api/results/{other['id']}/{what}").status_code < 500
    return html


@pytest.mark.parametrize("damage", ["text", "truncated"])
def test_a_file_that_cannot_be_read_is_a_red_card_with_its_reason(damage, opened, results, until):
    whole = (results / STORE / "results.nc").read_bytes()[512:]
    content = b"no netCDF file at all" if damage == "text" else whole[: len(whole) // 2]
    (results / "hostile.nc").write_bytes(content)
    page = opened(results)
    html = file_card(page)
    assert 'class="fault"' in html
    assert "hostile.nc: expected a netCDF file of results, got" in html
    assert str(results) not in html
    # The gallery has seen so too, without being asked to wait for it.
    until(lambda: 'class="fault"' in page.get("/api/claims").json()["others"][0]["html"])


def test_a_file_that_kills_its_reader_kills_nothing_else(opened, results, monkeypatch):
    monkeypatch.setattr("icllab.lab.foreign._child_output", killed)
    (results / "hostile.nc").write_bytes(b"x")
    page = opened(results)
    assert "a file that kills its reader" in file_card(page)
    assert page.get("/api/claims").status_code == 200


def killed(path):
    """What is said of a file that ends the process which reads it."""
    from icllab.core.errors import InputError

    raise InputError(f"{path}: expected a netCDF file of results, got a file that kills its reader (signal 11)")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.nc", b"truncated"),
        ("configuration.json", b"{"),
        ("configuration.json", b'{"claim": ["a"], "size": "smoke"}'),
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
    one = only(page)
    assert one["fault"]
    assert 'class="fault"' in page.get(f"/api/results/{one['id']}").json()["html"]
    assert 'class="fault"' in "".join(
        one["html"] for part in ("claims", "others") for one in page.get("/api/claims").json()[part]
    )
    assert page.get(f"/api/claims/{CLAIM}").status_code == 200


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
    """A process of its own; the claims are those that the fixture has kept for it."""
    code = f"""
import sys
from pathlib import Path
from icllab.page import server
from icllab.page.explorers import EXPLORERS
api = server.build(Path({str(finished)!r}), claims=Path({str(CLAIMS)!r})).app.state.api
api.open()
api.gallery(), api.claim(*{CLAIM!r}.split("/")), api.state()
(one,) = api.index.present()
api.result(one), api.download(one, "data.csv")
for id in EXPLORERS: api.explore(id, {{}})
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


def values(parameter, known):
    """Values that fit a declared parameter, and others."""
    fitting = [st.sampled_from(known)]
    if parameter.options:
        fitting.append(st.sampled_from(parameter.options))
    if parameter.kind == "integer":
        fitting.append(st.integers(parameter.least - 1, parameter.most + 1))
    return st.one_of(*fitting, TEXT)


@st.composite
def requests(draw, endpoints, known):
    endpoint = draw(st.sampled_from(endpoints))
    path = endpoint.path
    for part in ("id", "what", "subject", "finding"):
        path = path.replace("{" + part + "}", quote(draw(st.one_of(st.sampled_from(known), TEXT)), safe=""))
    query = {name: draw(values(p, known)) for name, p in endpoint.query.items() if draw(st.integers(0, 5))}
    query |= draw(st.dictionaries(TEXT, TEXT, max_size=1)) if draw(st.booleans()) else {}
    if endpoint.others and draw(st.booleans()):
        query |= {draw(st.sampled_from(["tau", "alpha", "kappa", "ridge", "n", "beta"])): draw(st.floats().map(str))}
    if endpoint.method == "GET":
        return "GET", path, query, None
    body = {name: draw(st.one_of(values(p, known), ANY)) for name, p in endpoint.body.items()}
    return "POST", path, query, draw(st.one_of(st.just(body), ANY))


def fuzzed(page, monkeypatch, count):
    """So many requests from the declared parameters; a run that is asked for is not started."""
    from icllab.page.runs import Runs

    monkeypatch.setattr(Runs, "_begun", lambda self, job: setattr(job, "state", "failed"))
    known = [
        only(page)["id"],
        "run-1",
        "linear_attention",
        "figure.png",
        "data.csv",
        "claims",
        "steady",
        CLAIM,
        "..",
        "0",
    ]
    endpoints = [
        one for one in page.app.app.state.api.endpoints if "report" not in one.path and "so-far" not in one.path
    ]
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
    codes = fuzzed(page, monkeypatch, 60)
    assert {200, 400, 404} <= set(codes)


@pytest.mark.slow
def test_no_request_of_two_thousand_is_a_fault(page, monkeypatch):
    codes = fuzzed(page, monkeypatch, 2000)
    assert len(codes) >= 2000
    assert {200, 400, 404} <= set(codes)
    assert np.mean(np.asarray(codes) == 200) > 0.02
