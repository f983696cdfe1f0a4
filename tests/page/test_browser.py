"""The page in a browser, with its own server and its own policy: every view, a run from start to stop, two widths."""

# ruff: noqa: RUF001 (Greek letters are meant)

import contextlib
import http.server
import io
import json
import re
import shutil
import threading

import numpy as np
import pytest
from faults.processes import CLAIM, CLAIMS, DIMS, STORE, cells
from page.servers import PREFIX, proxied, serving

from icllab.page import report, server
from icllab.page.runs import Runs

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
VIEWS = ("#/claims", f"#/claims/{CLAIM}", "#/runs", "#/explore", "#/explore/linear_attention", "#/prompt")


@pytest.fixture(scope="module")
def out(finished, tmp_path_factory):
    """Results of the claim, which no test of this module changes."""
    return shutil.copytree(finished, tmp_path_factory.mktemp("browser") / "out")


@pytest.fixture(scope="module")
def address(quick, without_models, out):
    """Where the page is."""
    with serving(server.build(out, claims=CLAIMS)) as address:
        yield address


@pytest.fixture
def tab(browser, address):
    """A tab of the page."""
    with opened(browser, address) as go:
        yield go


@contextlib.contextmanager
def opened(browser, address):
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
    page = tab("#/claims")
    assert page.locator(".tile").count() == 3
    assert page.locator(".tile .mat img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    page.fill("#word", "half noise")
    assert page.locator(".tile .name").all_inner_texts() == [CLAIM]
    assert "1 of 3 claims" in page.locator(".count").inner_text()
    page.fill("#word", "Ahn")  # an author
    assert page.locator(".tile .name").all_inner_texts() == ["descent/best_step"]
    page.fill("#word", "zebra")
    assert page.locator(".tile").count() == 0
    page.get_by_role("button", name="Show all").click()
    page.select_option("#subject", "asymptotics")
    assert page.locator(".tile .name").all_inner_texts() == ["asymptotics/double_descent"]
    page.get_by_role("button", name="Clear").click()
    page.select_option("#paper", "Ahn23")
    assert page.locator(".tile .name").all_inner_texts() == ["descent/best_step"]
    page.get_by_role("button", name="Clear").click()
    page.select_option("#verdict", "fails")
    assert page.locator(".tile").count() == 0


def test_a_claim_shows_its_numbers_and_its_data(tab, out):
    page = tab("#/claims")
    page.get_by_role("link", name="Steady").click()
    page.wait_for_selector(".claim h1")
    noted = json.loads((out / STORE / "verdict.json").read_text())
    rows = page.locator("details[open] tbody tr")
    assert rows.count() == len(noted["findings"]) == len(DIMS)
    for i, finding in enumerate(noted["findings"]):
        words = rows.nth(i).locator("td").nth(1).inner_text()
        assert words.startswith(f"error, at dim {DIMS[i]}: ")
        assert words.endswith(f", predicted 0.5 (errors allow {finding['tolerance']:.2g})")
        value = rows.nth(i).locator("td b").inner_text().split(" ± ")
        assert float(value[0]) == pytest.approx(finding["measured"], abs=1e-2)
        assert float(value[1]) == pytest.approx(finding["standard_error"], rel=0.06)
    with page.expect_download() as download:
        page.get_by_role("link", name="Data (NetCDF)").click()
    assert download.value.path().read_bytes() == (out / STORE / "results.nc").read_bytes()
    assert page.locator(".claim img").get_attribute("alt").startswith("Figure of the claim")


def test_a_run_is_started_watched_and_stopped(browser, quick, tmp_path, monkeypatch):
    monkeypatch.setenv("STEADY_PAUSE", "2")  # longer than the page waits between looks
    with serving(server.build(tmp_path, claims=CLAIMS)) as address, opened(browser, address) as tab:
        page = tab("#/runs")
        page.select_option("#claim", CLAIM)
        page.select_option("#size", "small")
        for _ in range(2):
            page.get_by_role("button", name="Start").click()
            page.wait_for_timeout(200)
        page.wait_for_selector(".run[data-state=running]")
        assert page.locator(".run[data-state=queued]").count() == 1
        page.locator(".run[data-state=queued]").get_by_role("button", name="Stop").click()
        page.wait_for_selector(".run[data-state=stopped]")
        run = page.locator(".run").last
        run.locator("summary").click()
        playwright.expect(run.locator("pre")).to_contain_text("0 of 5 cells", timeout=60_000)
        playwright.expect(run.locator(".left")).to_contain_text(re.compile("[1-4] of 5 cells, about"), timeout=60_000)
        run.get_by_role("button", name="Stop").click()
        playwright.expect(run).to_have_attribute("data-state", "stopped", timeout=60_000)
        playwright.expect(run).to_contain_text("Its finished cells are kept.")
        assert 0 < len(cells(tmp_path)) < len(DIMS)


def test_an_explorer_answers_through_the_server(tab):
    from icllab.page.explorers import EXPLORERS

    id = next(iter(EXPLORERS))
    page = tab(f"#/explore/{id}")
    page.wait_for_selector("[data-answered]")
    asked = page.evaluate("async id => (await fetch('/api/explorers/' + id)).json()", id)
    assert asked == EXPLORERS[id].answer()


def test_every_view_fits_and_can_be_read(browser, address):
    """No view is wider than the window, and text on its ground has the contrast that is asked for (4.5)."""
    context = browser.new_context(reduced_motion="reduce")  # colours change at once
    page = context.new_page()
    for view in VIEWS:
        page.set_viewport_size({"width": 400, "height": 900})
        page.goto("about:blank")
        page.goto(address + view)
        page.wait_for_selector("main:not([aria-busy]) .view")
        if view == "#/prompt":
            page.wait_for_selector("[data-answered]")
        for image in page.locator("img").all():
            assert image.get_attribute("alt")
        for width in (400, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert beyond <= 0, (view, width)
            for colours in ("light", "dark"):
                page.emulate_media(color_scheme=colours)
                found = page.evaluate(CONTRAST)
                assert {text: ratio for text, ratio in found.items() if ratio < 4.5} == {}, (view, width, colours)
    context.close()


# The least contrast of each visible text with the first ground behind it that is not transparent.
CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map((part) => Number(part) * (text.startsWith("color(srgb") ? 255 : 1));
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


def test_figures_are_of_the_colours_of_the_page(browser, address):
    """On a ground of the page's lightness, with ink that stands out; hues stay, so that a legend in words holds."""
    from PIL import Image

    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.goto(address + "#/claims/asymptotics/double_descent")
    page.locator(".claim img").evaluate("image => image.decode()")
    natural = page.evaluate(
        "async () => { const blob = await (await fetch(document.querySelector('.claim img').src)).blob();"
        " return [...new Uint8Array(await blob.arrayBuffer())] }"
    )
    image = Image.open(io.BytesIO(bytes(natural))).convert("RGB")
    for colours in ("light", "dark"):
        page.emulate_media(color_scheme=colours)
        shown = Image.open(io.BytesIO(page.locator(".claim img").screenshot())).convert("RGB")
        natural = image.resize(shown.size)
        lightness = np.asarray(shown.convert("L"), float)
        ground, ink = np.median(lightness), lightness.min() if colours == "light" else lightness.max()
        assert (ground > 240 and ink < 60) if colours == "light" else (ground < 40 and ink > 190)
        before, after = (np.asarray(part.convert("HSV"), int).reshape(-1, 3) for part in (natural, shown))
        orange = (before[:, 1] > 150) & (before[:, 0] < 35) & (before[:, 2] > 150) & (after[:, 1] > 100)
        assert orange.sum() > 20
        assert np.quantile(np.abs(after[orange, 0] - before[orange, 0]), 0.9) < 25  # of 255
    context.close()


def test_addresses_of_claims(tab):
    """Also those of version 0.3."""
    for view in ("#/claim/{}", "#/gallery", ""):
        page = tab(view.format(CLAIM))
        selector = ".claim h1" if "{}" in view else ".tile"
        assert page.locator(selector).count() == (1 if "{}" in view else 3), view
        assert page.locator("nav a[aria-current]").inner_text() == "Claims", view
    page.evaluate("location.hash = '#/elsewhere'")
    playwright.expect(page.locator(".fault")).to_contain_text("no view elsewhere")


def test_a_stranger_is_told_what_a_claim_is_and_sees_the_first_on_a_phone(browser, address):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(".tile .mat img")
    assert page.locator(".lead").inner_text().startswith("A claim is one sentence that can be false")
    assert "“small, recorded”" in page.locator(".lead").inner_text()
    box = page.locator(".tile .mat").first.bounding_box()
    assert box["y"] + box["height"] <= 844
    assert page.locator(".tile h3").first.inner_text().startswith("Error peaks at")
    assert page.locator(".where").first.get_attribute("title").startswith("The verdict on a run")
    context.close()


def test_a_claim_has_its_figure_as_wide_as_the_page_and_nothing_is_cut(tab):
    page = tab("#/claims/asymptotics/double_descent")
    page.locator(".claim img").evaluate("image => image.decode()")
    width = page.locator("main").evaluate(
        "node => node.clientWidth - 2 * parseFloat(getComputedStyle(node).paddingLeft)"
    )
    assert page.locator(".claim .mat").bounding_box()["width"] == pytest.approx(width, abs=1)
    assert page.locator("figcaption").inner_text().startswith("Error on fresh tasks")
    assert page.locator("figcaption .katex").count() >= 2
    cut = "node => node.scrollHeight - node.clientHeight"  # a box that scrolls cuts a row in half
    assert (
        page.locator(".claim .scroll").evaluate_all(f"all => all.map({cut})")
        == [0] * page.locator(".claim .scroll").count()
    )
    page.set_viewport_size({"width": 500, "height": 900})
    wraps = "all => all.map((node) => getComputedStyle(node).whiteSpace)"
    assert set(page.locator(".claim .katex").evaluate_all(wraps)) == {"nowrap"}
    heights = page.locator(".claim .sentence .math").evaluate_all(
        "all => all.map((node) => node.getClientRects().length)"
    )
    assert heights == [1] * len(heights) != []


def test_a_thumbnail_is_the_whole_figure(tab):
    page = tab("#/claims")
    for image in page.locator(".tile .mat img").all():
        image.evaluate("image => image.decode()")
        assert image.evaluate("image => getComputedStyle(image).objectFit") == "contain"
        box, mat = image.bounding_box(), image.locator("..").bounding_box()
        assert box["y"] + box["height"] <= mat["y"] + mat["height"]
        assert box["x"] + box["width"] <= mat["x"] + mat["width"]


def test_formulas_are_rendered(tab):
    """By KaTeX, without a fault and in its own fonts; the policy refuses none of its styles."""
    page = tab("#/claims/asymptotics/double_descent")
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert "α" in page.locator(".conditions .katex-html").first.inner_text()  # alpha = 10
    assert page.locator(".findings td .katex-html").first.inner_text().replace("\u200b", "") == "τ=1"
    assert page.locator(".background .katex").count() >= 1
    assert page.locator(".glossary td:first-child .katex").count() >= 4
    page = tab("#/explore/learning_coefficients")
    page.locator(".theory summary").click()
    assert page.locator(".theory .math.display .katex").count() == 1
    assert page.locator(".theory svg").first.evaluate("node => node.style.width") != ""  # of the brace of cases
    assert page.locator(".control .katex-html").first.inner_text() == "M"
    assert page.locator("[data-style], .katex-error, .katex [style*=color]").count() == 0
    loaded = page.evaluate(
        "document.fonts.ready.then((fonts) => [...fonts].filter((f) => f.status == 'loaded').length)"
    )
    assert loaded >= 3


FORMULAS = (
    ("The error at n = d(d+1) contexts", ["n = d(d+1)"]),
    ("by more than n beta/gamma; up to n beta = 1e6", [r"n \beta /\gamma", r"n \beta  = 10^{6}"]),
    (
        "with Sigma^(-1/2) at q* = (1+rho)/rho, d to infinity",
        [r"\Sigma ^{-1/2}", r"q^* = (1+\rho )/\rho", r"d\to\infty"],
    ),
    ("it is $x^2$, at p >= 1", ["x^2", r"p \ge  1"]),
    (
        "It costs $5 and $6, a rise - a gap; x-ray of 2025-11-26, 5 % of 12 - 3; I saw a step, and/or the alphabet",
        [],
    ),
    ("networks' 1-layer a, b and C, GD++ and L", []),
)


def test_formulas_in_plain_text(tab):
    page = tab("#/explore")
    for text, formulas in FORMULAS:
        found = page.evaluate(
            "async (text) => (await import('./static/formulas.js')).withFormulas(text)"
            ".map((node) => (node.nodeType ? node.querySelector('annotation').textContent : [node]))",
            text,
        )
        assert [part.strip() for part in found if isinstance(part, str)] == [part.strip() for part in formulas]
        assert [part[0] in text for part in found if isinstance(part, list)].count(False) == 0


def test_a_formula_is_no_markup_and_runs_nothing(tab):
    page = tab("#/explore")
    source = (
        r"\href{javascript:alert(1)}{x} \html@mathml{<img src=x onerror=alert(1)>}{} <b>y</b> \includegraphics{/z.png}"
    )
    html = page.evaluate("async (source) => (await import('./static/formulas.js')).formula(source).outerHTML", source)
    assert not re.search(r"<(a|img|b|script)[ >]|href=", html)


@pytest.mark.parametrize(("keeps_host", "views"), [(True, VIEWS), (False, VIEWS[:1])])
def test_the_page_works_below_the_prefix_of_a_proxy(keeps_host, views, browser, address, out, monkeypatch):
    """As jupyter-server-proxy shows it, which keeps the browser's Host; other proxies put the server's."""

    def launch(self, job):
        job.log.write_text("said by a run")
        job.state, job.verdict, job.ended = "finished", "holds", 1.0

    monkeypatch.setattr(Runs, "_launch", launch)
    with proxied(address, keeps_host) as prefixed, opened(browser, prefixed) as tab:
        assert prefixed.endswith(PREFIX)
        for view in views:
            page = tab(view)
            assert page.locator(".fault").count() == 0
            for image in page.locator("img").all():
                assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
            if view in ("#/prompt", "#/explore/linear_attention"):
                page.wait_for_selector("[data-answered]")
        page = tab(f"#/claims/{CLAIM}")
        with page.expect_download() as download:
            page.get_by_role("link", name="Data (NetCDF)").click()
        assert download.value.path().read_bytes() == (out / STORE / "results.nc").read_bytes()
        page.select_option("[aria-label=Size]", "smoke")
        page.get_by_role("button", name="Run it here").click()
        playwright.expect(page.locator(".run").first).to_have_attribute("data-state", "finished", timeout=90_000)
        page.locator(".run").first.get_by_text("Log").click()
        playwright.expect(page.locator(".run pre").first).to_have_text("said by a run")


def test_a_token_is_for_the_prefix_alone(browser, quick, out):
    proxy = f"http://localhost{PREFIX}"
    guard = server.build(out, claims=CLAIMS, token="the-token", proxy=proxy)
    with serving(guard) as address, proxied(address, True) as prefixed, opened(browser, prefixed) as tab:
        page = tab("?token=the-token")
        assert page.url.split("#")[0] == prefixed
        assert page.locator(".tile").count() == 3
        (cookie,) = page.context.cookies()
        assert (cookie["path"], cookie["httpOnly"]) == (PREFIX.rstrip("/"), True)


def test_everything_is_reached_with_the_keyboard(tab):
    page = tab("#/claims")
    reached = []
    for _ in range(13):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
    assert reached[0] == "Skip to the content"
    assert {"Claims", "Explore", "Runs", "Dark", "word"} <= set(reached)
    page.locator(".tile a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".claim h1")
    page.locator("summary").first.focus()
    before = page.locator("details[open]").count()
    page.keyboard.press("Enter")
    assert page.locator("details[open]").count() != before


def test_the_colours_that_were_chosen_stay(tab):
    page = tab("#/claims")
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
