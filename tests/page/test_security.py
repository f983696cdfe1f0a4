"""Who is answered, what an answer may do in a browser, and what stored text may do there."""

import asyncio
import html
import json
import os
import re
import shutil
from urllib.parse import urljoin

import pytest
from faults.processes import CLAIM, CLAIMS, STORE
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from icllab.core.errors import InputError
from icllab.page import security, server
from icllab.page.endpoints import LARGEST_BODY, _json_body

HOSTS = [
    "evil.example",
    "evil.example:8765",
    "127.0.0.1.evil.example",
    "127.0.0.2",
    "localhost.",
    "",
    "a@127.0.0.1",
    "[::2]",
]


@pytest.mark.parametrize("host", HOSTS)
def test_a_foreign_host_is_refused_everywhere(host, page):
    for path in ("/", "/api/claims", "/static/app.js", "/nothing"):
        assert page.get(path, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:9000", "[::1]:8765", "LOCALHOST"])
def test_the_names_of_this_machine_are_answered(host, page):
    assert page.get("/", headers={"host": host}).status_code == 200


def test_two_hosts_are_refused(page):
    assert page.get("/", headers=[("host", "127.0.0.1"), ("host", "evil.example")]).status_code == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:3000", "https://127.0.0.1:8765"])
@pytest.mark.parametrize("path", ["/", "/api/claims", "/api/runs"])
def test_a_foreign_origin_reads_nothing(origin, path, page):
    """Another port of this machine is another origin."""
    assert page.get(path, headers={"origin": origin}).status_code == 403


def test_a_foreign_origin_starts_no_run(page):
    asked = {"claim": CLAIM, "size": "smoke"}
    for headers in (
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        assert page.post("/api/runs", json=asked, headers=headers).status_code == 403
    # What a form can send without asking first.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = page.post("/api/runs", content=json.dumps(asked), headers={"content-type": kind})
        assert answer.status_code == 415
    assert page.app.app.state.api.runs.jobs() == []


def test_another_site_may_only_link_to_the_page(page):
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert page.get("/", headers=link).status_code == 200
    assert page.get("/api/claims", headers=link).status_code == 403
    assert page.get("/", headers={**link, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert page.get("/api/claims", headers={"origin": "http://127.0.0.1:8765"}).status_code == 200


def test_a_proxy_may_put_the_hosts_name_where_the_browser_says_that_it_is_one_site(page):
    """No site can forge the browser's mark; without it the origin is compared as before."""
    headers = {"origin": "https://hub.example.org", "sec-fetch-site": "same-origin"}
    assert page.get("/api/claims", headers=headers).status_code == 200
    assert page.post("/api/runs", json={"claim": "no"}, headers=headers).status_code == 404
    for site in ("same-site", "cross-site", "none", "", None):
        marked = {"origin": headers["origin"]} | ({} if site is None else {"sec-fetch-site": site})
        assert page.get("/api/claims", headers=marked).status_code == 403
        assert page.post("/api/runs", json={"claim": "no"}, headers=marked).status_code == 403
    assert page.get("/api/claims", headers=headers | {"host": "hub.example.org"}).status_code == 421


def test_the_host_of_a_named_proxy_is_answered_with_the_token(opened, results):
    page = opened(results, token="the-token", proxy="https://hub.example.org/user/me/proxy/8765/")
    hub = {"host": "hub.example.org"}
    assert page.get("/", headers=hub).status_code == 401
    assert page.get("/?token=the-token", headers={"host": "evil.example"}).status_code == 421
    first = page.get("/?token=the-token", headers=hub)
    assert (first.status_code, first.headers["location"]) == (303, "./")
    assert "path" not in first.headers["set-cookie"].lower()  # a browser takes that of the page
    cookie = {"cookie": first.headers["set-cookie"].partition(";")[0]}
    assert page.get("/api/claims", headers=hub | cookie).status_code == 200
    with pytest.raises(ValueError, match="expected a token"):
        security.Guard(Starlette(), proxy="https://hub.example.org/")


def test_the_page_may_be_mounted_below_a_prefix(page):
    """Each address of the page and of its files leads to an answer there, also after the token."""
    outer = Starlette(routes=[Mount("/proxy/8000", app=security.Guard(page.app.app, token="the-token"))])
    client = TestClient(outer, base_url="http://127.0.0.1:8765/", follow_redirects=True)
    where = "/proxy/8000/"
    answer = client.get(
        f"{where}?token=the-token", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    )
    assert answer.url.path == where
    queue, seen = [(where, answer.text)], set()
    while queue:
        base, text = queue.pop()
        for pattern in (
            r'(?:src|href)="([^"#:]+)"',
            r"url\(([^)]+woff2)\)",
            r'(?:from |import\()"(\./[^"]+)"',
            r'ask\("([^"?]+[^/])"[,)]',
        ):
            for found in re.findall(pattern, text):
                document = where if pattern.startswith(("(?:src", "ask")) else base
                address = urljoin(document, html.unescape(found))
                if address in seen:
                    continue
                seen.add(address)
                answer = client.get(address)
                assert answer.status_code == 200, address
                kind = answer.headers["content-type"]
                if kind.startswith("text/") and not address.endswith(".min.js"):
                    queue.append((address, answer.text))
                elif "json" in kind and "claims/" not in address:
                    queue += [(where, tile["html"]) for tile in answer.json().get("claims", ())]
    queue = [f"{where}api/claims/{CLAIM}"]
    for found in re.findall(r'(?:src|href)="([^"#]+)"', client.get(queue[0]).json()["html"]):
        assert client.get(urljoin(where, html.unescape(found))).status_code == 200, found
    assert {f"{where}static/app.js", f"{where}static/formulas.js", f"{where}api/claims", f"{where}api/runs"} <= seen
    assert f"{where}static/vendor/fonts/KaTeX_Main-Regular.woff2" in seen
    assert f"{where}api/claims/asymptotics/double_descent/card.png" in seen


def test_no_file_of_the_page_has_an_address_from_the_root():
    for path in server.STATIC.rglob("*"):
        if path.suffix in (".html", ".js", ".css") and path.parent == server.STATIC:
            assert not re.search(r"""[\"'`(]/(?:api|static)\b""", path.read_text("utf-8")), path


def test_no_web_socket_is_opened(page):
    with pytest.raises(WebSocketDisconnect) as refused, page.websocket_connect("/api/runs"):
        pass
    assert refused.value.code == 1008


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/claims", "/api/results/none", "/nothing"])
def test_every_answer_allows_what_comes_from_here_alone(path, page):
    policy = page.get(path).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "font-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.get(path).headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in page.get(path).headers


def test_the_page_has_no_script_or_style_of_its_own(page):
    text = page.get("/").text
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\sstyle=|\son\w+=", text)
    assert not re.search(r"(?:src|href)=\"(?!static/|#)", text)


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py", "/static//etc/passwd"]
    + [
        f"/api/results/claims/steady/{name}/results.nc"
        for name in ("..", "..%2f..", "%2e%2e%2f", "/etc/passwd", "full")
    ]
    + [f"/api/claims/{id}" for id in ("..%2f..", "..%2f/x", "claims/..%2fsteady", "claims/steady/figure.pdf")]
    + [f"/api/results/claims/steady/small/{file}" for file in ("../configuration.json", "configuration.json", ".lock")],
)
def test_an_address_is_a_name_and_never_a_path(path, page):
    answer = page.get(path)
    assert answer.status_code in (404, 405)
    assert "configuration" not in answer.text or "expected" in answer.text


def test_links_lead_nowhere(results, opened, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    (results / STORE / "figure.png").unlink()
    os.symlink(tmp_path / "secret", results / STORE / "figure.png")
    shutil.move(results / STORE, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", results / STORE)
    page = opened(results)
    for name in ("figure.png", "results.nc"):
        assert page.get(f"/api/results/{STORE.as_posix()}/{name}").status_code == 404
    assert "got a link elsewhere" in page.get(f"/api/claims/{CLAIM}").json()["html"]
    (results / STORE).unlink()
    shutil.move(tmp_path / "elsewhere", results / STORE)
    assert page.get(f"/api/results/{STORE.as_posix()}/results.nc").status_code == 200
    assert page.get(f"/api/results/{STORE.as_posix()}/figure.png").status_code == 404
    listing = page.get(f"/api/claims/{CLAIM}").json()["html"]
    assert "/results.nc?" in listing
    assert "/figure.png?" not in listing


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
@pytest.mark.parametrize("name", ["figure.png", "results.nc"])
def test_what_takes_the_place_of_a_file_after_the_listing_is_not_sent(
    name, kind, results, opened, tmp_path, monkeypatch
):
    """The listing is held as it was: a file may be exchanged between the two looks of one request."""
    page, path = opened(results), results / STORE / name
    address = f"/api/results/{STORE.as_posix()}/{name}"
    assert page.get(address).status_code == 200
    api = page.app.app.state.api
    listing = api.results.of(api.entry(CLAIM))
    monkeypatch.setattr(api.results, "of", lambda entry: listing)
    path.unlink()
    (tmp_path / "secret").write_bytes(b"secret")
    make = {"link": lambda: path.symlink_to(tmp_path / "secret"), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}
    make[kind]()
    answer = page.get(address)
    assert answer.status_code == 404
    assert "secret" not in answer.text


@pytest.mark.parametrize("name", ["configuration.json", "verdict.json"])
def test_states_that_are_links_or_too_large_are_not_read(name, results, opened, tmp_path, monkeypatch):
    path = results / STORE / name
    shutil.move(path, tmp_path / name)
    path.symlink_to(tmp_path / name)
    page = opened(results)
    assert 'class="fault"' in page.get(f"/api/claims/{CLAIM}").json()["html"]
    path.unlink()
    shutil.move(tmp_path / name, path)
    assert 'class="fault"' not in page.get(f"/api/claims/{CLAIM}").json()["html"]
    monkeypatch.setattr("icllab.page.results.LARGEST_JSON", path.stat().st_size - 1)
    path.touch()
    assert "expected a file of at most" in page.get(f"/api/claims/{CLAIM}").json()["html"]


def test_a_body_in_small_chunks_ends_at_the_limit():
    """No length is announced: what has come is counted, and the rest is not waited for."""
    taken = 0

    async def receive():
        nonlocal taken
        taken += 100
        return {"type": "http.request", "body": b"a" * 100, "more_body": taken < 10 * LARGEST_BODY}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(InputError, match=f"body: expected at most {LARGEST_BODY} bytes"):
        asyncio.run(_json_body(request))
    assert LARGEST_BODY < taken <= LARGEST_BODY + 100


# Text.

SAID = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'`"


def quotes_nothing(html):
    return "<script>alert" not in html and "<img src=x" not in html


def test_what_a_claim_says_is_text(opened, results, tmp_path):
    folder = tmp_path / "own" / "claims"
    folder.mkdir(parents=True)
    text = (CLAIMS / "steady.py").read_text().replace('"""A claim for tests', f'"""{SAID[:-4]} A claim for tests')
    text = text.replace("What is measured is one half", f"{SAID[:-3]} is one half".replace('"', ""))
    (folder / "steady.py").write_text(text.replace("nine tenths", "<script>alert(2)</script>"))
    page = opened(results, claims=folder)
    html = page.get(f"/api/claims/{CLAIM}").json()["html"] + "".join(
        t["html"] for t in page.get("/api/claims").json()["claims"]
    )
    assert quotes_nothing(html)
    assert "&lt;script&gt;alert(1)" in html
    assert "&lt;script&gt;alert(2)" in html


def test_what_a_verdict_says_is_text(opened, results):
    path = results / STORE / "verdict.json"
    finding = {"what": SAID, "measured": SAID, "outcome": "holds"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"notes": [SAID], "findings": [finding]}))
    html = opened(results).get(f"/api/claims/{CLAIM}").json()["html"]
    assert quotes_nothing(html)
    assert html.count("&lt;script&gt;") == 2  # the finding's words, and the note


# A token.


def test_other_machines_need_the_token(opened, results):
    page = opened(results, host="0.0.0.0", token="the-token")
    for host in ("192.168.1.2:8765", "127.0.0.1:8765"):
        assert page.get("/", headers={"host": host}).status_code == 401
    assert page.get("/api/claims?token=the-token").status_code == 401  # in the page's address alone
    assert page.get("/?token=another").status_code == 401
    assert page.get("/?token=the-token", headers={"host": "evil.example"}).status_code == 421
    first = page.get("/?token=the-token")
    assert (first.status_code, first.headers["location"]) == (303, "./")
    assert "HttpOnly" in first.headers["set-cookie"]
    assert "SameSite=strict" in first.headers["set-cookie"]
    assert page.get("/api/claims").status_code == 200
    page.cookies.clear()
    assert page.get("/api/claims").status_code == 401


def test_an_address_that_others_reach_has_a_token():
    with pytest.raises(ValueError, match="expected a token"):
        security.Guard(Starlette(), host="0.0.0.0")
    assert [security.is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert not issubclass(ValueError, InputError)
