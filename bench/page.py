"""How soon the page answers: its start, the claims with 200 stored results, and a curve while a slider moves.

    python bench/page.py

The server is a process of its own on loopback; medians of wall time. Rows in a browser need playwright and Chromium on
the PATH and are left out without. Drawn is when the browser has painted the answer, and elsewhere counts requests that
go anywhere but to the server.
"""

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import machine

from icllab.page.explorers import EXPLORERS

CLAIM = "asymptotics/double_descent"
RESULTS, MOVES, STARTS = 200, 50, 5
LIMITS = {"start": 1.5, "claims": 1.0, "first paint": 1.0, "tiles drawn": 1.0, "slider": 0.1, "elsewhere": 0}
BROWSER = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def stored(out):
    """So many results of one claim: those of a run, and copies of them."""
    command = [sys.executable, "-m", "icllab", "run", CLAIM, "--size", "smoke", "--seeds", "2", "--out", str(out)]
    subprocess.run(command, capture_output=True)
    store = out / CLAIM / "smoke"
    for i in range(RESULTS - 1):
        shutil.copytree(store, out / "copies" / str(i) / "smoke")


@contextlib.contextmanager
def serving(out):
    """The address of a server over results, and the seconds until it answered."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "icllab", "page", "--out", str(out), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        address = server.stderr.readline().split()[5]
        asked(address)
        yield address, time.perf_counter() - begun
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


def asked(address):
    """The answer, and the seconds until it was there."""
    begun = time.perf_counter()
    with urllib.request.urlopen(address) as answer:
        content = answer.read()
    return content, time.perf_counter() - begun


def values(control, i):
    """Another value of a slider for every move."""
    at = (i % MOVES + 0.5) / MOVES
    if control["scale"].startswith("log"):
        value = control["low"] * (control["high"] / control["low"]) ** at
    else:
        value = control["low"] + (control["high"] - control["low"]) * at
    return round(value) if control["scale"].endswith("integer") else value


def first_slider(explorer):
    """The first control that is a number, one that always has an effect where there is one."""
    sliders = [one for one in explorer.declaration()["sliders"] if one["kind"] == "slider"]
    return min(sliders, key=lambda one: bool(one["when"]))


def of_api(address):
    """Explorer -> seconds of each move, from the question to the whole answer."""
    found = {}
    for id, explorer in EXPLORERS.items():
        control = first_slider(explorer)
        at = f"{address}api/explorers/{id}?{control['name']}="
        asked(f"{at}{control['start']}")
        found[id] = [asked(f"{at}{values(control, i)}")[1] for i in range(MOVES)]
    return found


MOVE = """async (value) => {
  const root = document.querySelector("[data-answered]"), slider = root.querySelector("input[type=range]");
  const before = root.dataset.answered, begun = performance.now();
  slider.value = Number(slider.min) + (Number(slider.max) - Number(slider.min)) * value;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  await new Promise((done) => {
    const look = () => (root.dataset.answered === before ? requestAnimationFrame(look) : requestAnimationFrame(done));
    look();
  });
  return performance.now() - begun;
}"""


def of_browser(address):
    """Row -> seconds in Chromium; and how many requests went elsewhere."""
    from playwright.sync_api import sync_playwright

    found, elsewhere = {}, []
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER, args=FLAGS)
        paints, tiles = [], []
        for _ in range(STARTS):
            page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.on("request", lambda request: request.url.startswith(address) or elsewhere.append(request.url))
            begun = time.perf_counter()
            page.goto(address)
            page.wait_for_selector(".tile")
            tiles.append(time.perf_counter() - begun)
            paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            paints.append(page.evaluate(paint) / 1000)
            page.context.close()
        found |= {"first paint": paints, "tiles drawn": tiles}
        for id in EXPLORERS:
            page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.on("request", lambda request: request.url.startswith(address) or elsewhere.append(request.url))
            page.goto(f"{address}#/explore/{id}")
            page.wait_for_selector("[data-answered]")
            found[f"slider, {id}, drawn"] = [
                page.evaluate(MOVE, ((7 * i) % MOVES + 0.5) / MOVES) / 1000 for i in range(MOVES)
            ]
            page.context.close()
        chromium.close()
    return found, elsewhere


def main():
    """Print the table; the exit status says whether a target was missed."""
    print(machine.described("starlette", "uvicorn", "numpy"))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        out = Path(folder) / "icl-results"
        stored(out)
        with serving(out) as (address, seconds):
            rows = {"start, first ever": [seconds], "claims, first ever": [asked(f"{address}api/claims")[1]]}
        rows |= {"start": [], "claims": []}
        for _ in range(STARTS):
            with serving(out) as (address, seconds):
                rows["start"].append(seconds)
                content, seconds = asked(f"{address}api/claims")
                rows["claims"].append(seconds)
        with serving(out) as (address, _):
            assert len(json.loads(asked(f"{address}api/results")[0])["results"]) == RESULTS
            asked(f"{address}api/claims")
            rows |= {f"slider, {id}": seconds for id, seconds in of_api(address).items()}
            drawn, elsewhere = of_browser(address) if BROWSER is not None else ({}, None)
            rows |= drawn
    missed = []
    print(f"{RESULTS} stored results, {len(content) / 1000:.0f} kB of claims, {MOVES} moves of each slider")
    print(f"{'row':44}{'median s':>10}{'largest s':>11}{'asked':>8}")
    for row, times in rows.items():
        limit = None if "first ever" in row else LIMITS.get(row.split(",")[0])
        median = statistics.median(times)
        print(f"{row:44}{median:10.3f}{max(times):11.3f}{'' if limit is None else f'{limit:8.2f}'}")
        missed += [row] if limit is not None and median > limit else []
    if elsewhere is not None:
        print(f"{'elsewhere':44}{len(elsewhere):10d}{'':11}{LIMITS['elsewhere']:8d}")
        missed += ["elsewhere"] if elsewhere else []
    print(f"missed: {', '.join(missed)}" if missed else "all targets met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
