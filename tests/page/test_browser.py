"""The page in a browser, with its own server and its own policy: every view, a run from start to stop, two widths."""

import http.server
import json
import re
import shutil
import threading
import time

import pytest
import uvicorn
from faults.processes import CLAIM, CLAIMS, DIMS, ICL, STORE, cells

from icllab.cli import main
from icllab.page import report, server

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
VIEWS = ("#/gallery", f"#/claim/{CLAIM}", "#/runs", "#/explore", "#/explore/linear_attention")


@pytest.fixture(scope="module")
def out(finished, tmp_path_factory):
    """Results of the claim, which tests of this module change."""
    return shutil.copytree(finished, tmp_path_factory.mktemp("browser") / "out")


@pytest.fixture(scope="module")
def address(quick, out):
    """Where the page is."""
    guard = server.build(out, claims=CLAIMS)
    settings = uvicorn.Config(guard, port=0, log_level="error", ws="none", timeout_graceful_shutdown=1)
    running = server._Server(settings, lambda: None)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/"
    running.should_exit = True
    thread.join(30)


@pytest.fixture
def tab(browser, address):
    """A tab that must have no error, nothing refused by the policy, and no request to elsewhere."""
    said, elsewhere = [], []
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.on("console", lambda message: message.type == "error" and said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: request.url.startswith(address) or elsewhere.append(request.url))

    def go(view):
        page.goto("about:blank")
        page.goto(address + view)
        page.wait_for_selector("main:not([aria-busy]) .view")
        return page

    yield go
    context.close()
    assert said == []
    assert [url for url in elsewhere if not url.startswith(("about:", "data:"))] == []


def test_the_gallery_filters_and_finds(tab):
    page = tab("#/gallery")
    assert page.locator(".tile").count() == 3
    assert page.locator(".tile .mat img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    page.fill("#word", "half noise")
    assert page.locator(".tile .name").all_inner_texts() == [CLAIM]
    assert "1 of 3 claims" in page.locator(".count").inner_text()
    page.fill("#word", "Watanabe")  # an author
    assert page.locator(".tile .name").all_inner_texts() == ["singular/exact_coefficients"]
    page.fill("#word", "zebra")
    assert page.locator(".tile").count() == 0
    page.get_by_role("button", name="Show all").click()
    page.select_option("#subject", "asymptotics")
    assert page.locator(".tile .name").all_inner_texts() == ["asymptotics/double_descent"]
    page.get_by_role("button", name="Clear").click()
    page.select_option("#paper", "Letey24")
    assert page.locator(".tile .name").all_inner_texts() == ["asymptotics/double_descent"]
    page.get_by_role("button", name="Clear").click()
    page.select_option("#verdict", "fails")
    assert page.locator(".tile").count() == 0


def test_a_claim_shows_its_numbers_and_its_data(tab, out):
    page = tab("#/gallery")
    page.get_by_role("link", name=re.compile("one half and a little noise")).click()
    page.wait_for_selector("h1.sentence")
    noted = json.loads((out / STORE / "verdict.json").read_text())
    rows = page.locator("details[open] tbody tr")
    assert rows.count() == len(noted["findings"]) == len(DIMS)
    for i, finding in enumerate(noted["findings"]):
        assert rows.nth(i).locator("td").first.inner_text() == finding["what"]
        value = rows.nth(i).locator("td").nth(2).inner_text().split(" ± ")
        assert float(value[0]) == pytest.approx(finding["measured"], abs=1e-2)
        assert float(value[1]) == pytest.approx(finding["standard_error"], rel=0.06)
    with page.expect_download() as download:
        page.get_by_role("link", name="Data (NetCDF)").click()
    assert download.value.path().read_bytes() == (out / STORE / "results.nc").read_bytes()
    assert page.locator(".claim img").get_attribute("alt").startswith("Figure of the claim")


def test_a_run_is_started_watched_and_stopped(tab, out, monkeypatch):
    monkeypatch.setenv("STEADY_PAUSE", "2")  # longer than the page waits between looks
    shutil.rmtree(out / STORE.with_name("smoke"), ignore_errors=True)
    page = tab("#/runs")
    page.select_option("#claim", CLAIM)
    page.select_option("#size", "smoke")
    for _ in range(2):
        page.get_by_role("button", name="Start").click()
        page.wait_for_timeout(200)
    page.wait_for_selector(".run[data-state=running]")
    assert page.locator(".run[data-state=queued]").count() == 1
    page.locator(".run[data-state=queued]").get_by_role("button", name="Stop").click()
    page.wait_for_selector(".run[data-state=stopped]")
    run = page.locator(".run[data-state=running]")
    run.locator("summary").click()
    playwright.expect(run.locator("pre")).to_contain_text("0 of 2 cells", timeout=60_000)
    playwright.expect(page.locator(".run .left", has_text="1 of 2 cells, about")).to_have_count(1, timeout=60_000)
    page.wait_for_selector(".run[data-state=finished]", timeout=60_000)
    # A longer one is stopped, and keeps what is finished.
    shutil.rmtree(out / STORE / "cells")
    page.select_option("#size", "small")
    page.get_by_role("button", name="Start").click()
    started = page.locator(".run").first
    playwright.expect(started.locator(".left")).to_contain_text(re.compile(r"[1-4] of 5 cells, about"), timeout=60_000)
    started.get_by_role("button", name="Stop").click()
    playwright.expect(started).to_have_attribute("data-state", "stopped", timeout=60_000)
    playwright.expect(started).to_contain_text("Its finished cells are kept.")
    assert 0 < len(cells(out)) < len(DIMS)
    assert main([*ICL, "run", CLAIM, "--size", "small", "--claims", str(CLAIMS), "--out", str(out)][len(ICL) :]) == 0


def test_an_explorer_answers_through_the_server(tab):
    from icllab.page.explorers import EXPLORERS

    id = next(iter(EXPLORERS))
    page = tab(f"#/explore/{id}")
    page.wait_for_selector("[data-answered]")
    asked = page.evaluate("async id => (await fetch('/api/explorers/' + id)).json()", id)
    assert asked == EXPLORERS[id].answer()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_every_view_fits_and_can_be_read(width, colours, browser, address):
    """No view is wider than the window, and text on its ground has the contrast that is asked for (4.5)."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=colours)
    page = context.new_page()
    for view in VIEWS:
        page.goto("about:blank")
        page.goto(address + view)
        page.wait_for_selector("main:not([aria-busy]) .view")
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0, view
        found = page.evaluate(CONTRAST)
        assert not {text: ratio for text, ratio in found.items() if ratio < 4.5}, view
        for image in page.locator("img").all():
            assert image.get_attribute("alt")
    context.close()


# The least contrast of each visible text with the first ground behind it that is not transparent.
CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => [r, g, b].map((c) => linear(c / 255))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || !element.checkVisibility() || element.closest("option, canvas, noscript, .skip, [disabled]")) continue;
    let behind = element, ground = [0, 0, 0, 0];
    while (behind && (ground[3] ?? 1) === 0) {
      ground = rgb(getComputedStyle(behind).backgroundColor);
      behind = behind.parentElement;
    }
    const [a, b] = [light(rgb(getComputedStyle(element).color)), light(ground)].sort((x, y) => y - x);
    found[text.slice(0, 40)] = Math.round(((a + 0.05) / (b + 0.05)) * 100) / 100;
  }
  return found;
}"""


def test_everything_is_reached_with_the_keyboard(tab):
    page = tab("#/gallery")
    reached = []
    for _ in range(13):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
    assert reached[0] == "Skip to the content"
    assert {"Claims", "Explore", "Runs", "Dark", "word"} <= set(reached)
    page.locator(".tile a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("h1.sentence")
    page.locator("summary").first.focus()
    before = page.locator("details[open]").count()
    page.keyboard.press("Enter")
    assert page.locator("details[open]").count() != before


def test_the_colours_that_were_chosen_stay(tab):
    page = tab("#/gallery")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Light or dark").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    page.wait_for_selector("main:not([aria-busy]) .view")
    assert page.evaluate(ground) == dark


def test_another_site_can_neither_read_nor_start(browser, address, tmp_path):
    """A page of another origin on this machine: its requests are sent, and nothing comes of them."""

    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, *_):
            pass

    before = len(browser.contexts)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://localhost:{site.server_port}/")
        code = """async ([address, claim]) => {
          const body = JSON.stringify({ claim, size: "smoke" }), method = "POST", found = [];
          const ask = (path, how) => fetch(address + path, how).then((r) => r.status, () => "refused");
          for (const kind of ["application/json", "text/plain"])
            for (const mode of ["cors", "no-cors"])
              found.push(await ask("api/runs", { method, mode, headers: { "content-type": kind }, body }));
          found.push(await ask("api/claims"));
          found.push(await ask("api/runs"));
          return found;
        }"""
        found = page.evaluate(code, [address, CLAIM])
        context.close()
        site.shutdown()
    assert set(found) <= {"refused", 0}  # 0: an answer that its page may not see
    assert found[-2:] == ["refused", "refused"]
    page = browser.new_context().new_page()
    page.goto(address + "#/runs")
    page.wait_for_selector("html[data-live]")
    assert page.locator(".run[data-state=queued], .run[data-state=running]").count() == 0
    page.context.close()
    assert len(browser.contexts) == before


def test_a_log_line_is_shown_as_text(tab, monkeypatch):
    from icllab.page.runs import Runs

    line = "<script>window.alerted = 1</script><img src=x onerror='window.alerted = 1'>"
    monkeypatch.setattr(Runs, "log", lambda self, id: line)
    monkeypatch.setattr(Runs, "_launch", lambda self, job: setattr(job, "state", "failed"))
    page = tab("#/runs")
    page.select_option("#claim", CLAIM)
    page.get_by_role("button", name="Start").click()
    run = page.locator(".run[data-state=failed]").first
    run.locator("summary").click()
    playwright.expect(run.locator("pre")).to_have_text(line)
    assert page.evaluate("window.alerted === undefined")


def test_a_report_opens_from_disk_without_a_network(browser, out, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report.html([report.section(CLAIM, out, CLAIMS)]), "utf-8")
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(path.as_uri())
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    assert said == []
    assert page.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.verdict')).borderRadius") != "0px"
    )  # it has its style
    context.close()
