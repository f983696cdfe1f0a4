// Runs: start one, follow its progress, stop it, read its log.

import { element } from "./numbers.js";
import { ask, follow, post } from "./server.js";

const WORDS = { queued: "waits", running: "runs", stopping: "is stopping" };

export async function list(root) {
  const { claims, out } = await ask("api/claims");
  const claim = element("select", { id: "claim" }, ...claims.map((tile) => element("option", { value: tile.claim }, tile.claim)));
  const size = element("select", { id: "size" }, ...["smoke", "small", "medium", "full"].map((value) => element("option", { value, selected: value === "small" }, value)));
  const workers = element("input", { id: "workers", type: "number", min: 1, max: 64, value: 1 });
  const problem = element("p", { role: "status", class: "note" });
  const start = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      await post("api/runs", { claim: claim.value, size: size.value, workers: Number(workers.value) });
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  const form = element("form", { class: "filters", onsubmit: start },
    element("label", { for: "claim", class: "grows" }, element("span", {}, "Claim"), claim),
    element("label", { for: "size" }, element("span", {}, "Size"), size),
    element("label", { for: "workers" }, element("span", {}, "Processes"), workers),
    element("button", { class: "go" }, "Start"));
  const empty = element("p", { class: "none" }, "No run yet. Runs take turns; their results go to " + out + ".");
  const cards = new Map(), container = element("div", { class: "run-list" });
  root.append(element("h1", {}, "Runs"), form, problem, empty, container);
  return follow((runs) => {
    empty.hidden = runs.length > 0;
    for (const run of [...runs].reverse()) {
      if (!cards.has(run.id)) {
        cards.set(run.id, runCard(run));
        container.prepend(cards.get(run.id).root);
      }
      cards.get(run.id).update(run);
    }
  });
}

function runCard({ id, claim }) {
  const state = element("strong"), about = element("span"), bar = element("progress", { max: 1 });
  const progress = element("p", { class: "left" }), reason = element("p", { class: "note" });
  const stop = () => post("api/runs/" + id + "/stop").catch((error) => (reason.textContent = error.message));
  const button = element("button", { type: "button", class: "quiet", onclick: stop }, "Stop");
  const log = element("pre", { tabindex: 0 });
  const details = element("details", { class: "log", ontoggle: () => read() }, element("summary", {}, "Log"), log);
  const root = element("article", { class: "run", "aria-label": "Run of " + claim },
    element("header", {}, element("h2", {}, element("a", { href: "#/claim/" + claim }, claim)), button),
    element("p", {}, state, " ", about), bar, progress, reason, details);

  async function read() {
    if (!details.open) return;
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    log.textContent = await ask("api/runs/" + id + "/log").then((answer) => answer.log || "Nothing yet.", (error) => error.message);
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
  function update(run) {
    const passed = run.started ? (run.ended ?? Date.now() / 1000) - run.started : 0;
    const cells = run.total ? run.done + " of " + run.total + " cells" : "starting";
    const left = run.done && run.state === "running" ? ", about " + duration((passed / run.done) * (run.total - run.done)) + " left" : "";
    root.dataset.state = run.state;
    state.textContent = WORDS[run.state] ?? run.state;
    about.textContent = "at size " + run.size + (run.verdict ? "; verdict: " + run.verdict : "");
    progress.textContent = run.started ? cells + left + "; " + (run.ended ? "took " : "for ") + duration(passed) : "";
    bar.hidden = !["running", "stopping"].includes(run.state);
    if (run.total) bar.value = run.done / run.total;
    bar.setAttribute("aria-label", cells);
    reason.textContent = run.state === "stopped" && run.started ? "Its finished cells are kept. " + run.reason : run.reason;
    button.hidden = !["queued", "running"].includes(run.state);
    read();
  }
  return { root, update };
}

function duration(seconds) {
  const s = Math.round(seconds), m = Math.floor(s / 60), h = Math.floor(m / 60);
  return h ? h + " h " + (m % 60) + " min" : m ? m + " min " + (s % 60) + " s" : s + " s";
}
