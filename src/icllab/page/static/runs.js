// Runs: start one, see how far each is and its figure so far, stop it, read its log.

import { element } from "./numbers.js";
import { ask, follow, tell } from "./server.js";

const GOING = ["running", "stopping"];
const WORDS = { queued: "waits", running: "runs", stopping: "is stopping", finished: "finished", stopped: "stopped", failed: "failed" };

export async function list(root) {
  root.append(element("h1", {}, "Runs"));
  const { claims, out } = await ask("/api/claims");
  const claim = element("select", { id: "claim" }, ...claims.map((one) => element("option", { value: one.claim }, one.claim)));
  const size = element("select", { id: "size" }, ...["smoke", "small", "medium", "full"].map((one) => element("option", { value: one, selected: one === "small" }, one)));
  const workers = element("input", { id: "workers", type: "number", min: 1, max: 64, value: 1 });
  const said = element("p", { role: "status", class: "note" });
  const form = element("form", { class: "filters", onsubmit: async (event) => {
    event.preventDefault();
    said.textContent = "";
    try {
      await tell("/api/runs", { claim: claim.value, size: size.value, workers: Number(workers.value) });
    } catch (error) {
      said.textContent = error.message;
    }
  } },
    element("label", { for: "claim", class: "grows" }, element("span", {}, "Claim"), claim),
    element("label", { for: "size" }, element("span", {}, "Size"), size),
    element("label", { for: "workers" }, element("span", {}, "Processes"), workers),
    element("button", { class: "go" }, "Start"));
  const runs = element("div", { class: "going-on" });
  const empty = element("p", { class: "none" }, "Nothing runs in " + out + ". What is started here waits for what was started before it.");
  root.append(form, said, empty, runs);
  const shown = new Map();
  const stop = follow((state) => {
    empty.hidden = state.runs.length > 0;
    keep(shown, runs, state.runs, (one) => runCard(one));
  });
  const clock = setInterval(() => shown.forEach((card) => card.tick()), 1000);
  return () => {
    stop();
    clearInterval(clock);
  };
}

// One element for each id, made once and told of every change.
function keep(shown, root, states, make) {
  for (const [id, card] of shown)
    if (!states.some((one) => one.id === id)) {
      card.root.remove();
      shown.delete(id);
    }
  states.forEach((one, i) => {
    if (!shown.has(one.id)) shown.set(one.id, make(one));
    const card = shown.get(one.id);
    if (root.children[i] !== card.root) root.insertBefore(card.root, root.children[i] ?? null);
    card.update(one);
  });
}

function runCard(first) {
  let run = first, drawn = null, drawing = false;
  const state = element("strong"), about = element("span"), bar = element("progress", { max: 1, value: 0 });
  const left = element("p", { class: "left" }), reason = element("p", { class: "note" });
  const button = element("button", { type: "button", class: "quiet", onclick: () => tell("/api/runs/" + run.id + "/stop").catch((error) => (reason.textContent = error.message)) }, "Stop");
  const image = element("div", { class: "so-far" });
  const log = element("pre", { tabindex: 0 }), text = element("details", { class: "log" }, element("summary", {}, "Log"), log);
  text.addEventListener("toggle", () => read());
  const root = element("article", { class: "run", "aria-label": "Run of " + first.claim },
    element("header", {}, element("h2", {}, element("a", { href: "#/claim/" + first.claim }, first.claim)), button),
    element("p", {}, state, " ", about), bar, left, reason, image, text);
  let reading = false;

  async function read() {
    if (!text.open || reading) return;
    reading = true;
    try {
      const end = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
      log.textContent = (await ask("/api/runs/" + run.id + "/log")).log || "Nothing yet.";
      if (end) log.scrollTop = log.scrollHeight;
    } catch (error) {
      log.textContent = error.message;
    }
    reading = false;
  }
  function tick() {
    if (run.state === "running") {
      const passed = Date.now() / 1000 - run.started, rest = run.done ? ", about " + lasting((passed / run.done) * (run.total - run.done)) + " left" : "";
      left.textContent = (run.total ? run.done + " of " + run.total + " cells" + rest : "starting") + "; for " + lasting(passed);
      read();
    } else left.textContent = run.ended && run.started ? (run.total ? run.done + " of " + run.total + " cells, " : "") + "after " + lasting(run.ended - run.started) : "";
  }
  function draw() {
    const whole = run.state === "finished", now = (whole ? "whole " : "") + run.done;
    if (drawing || !run.result || !run.done || now === drawn || !(whole || run.state === "running")) return;
    drawn = now;
    drawing = true; // a figure takes seconds: of those asked for meanwhile the last one is drawn next
    const then = () => {
      drawing = false;
      draw();
    };
    const what = whole ? "figure.png?v=" + Math.round(run.ended ?? 0) : "so-far.png?v=" + run.done;
    const made = element("img", { alt: "Figure of " + run.claim + ", of " + run.done + " of " + run.total + " cells", src: "/api/results/" + run.result + "/" + what });
    const caption = whole ? "All cells." : "The cells that are finished: " + run.done + " of " + run.total + ".";
    made.addEventListener("load", () => {
      image.replaceChildren(element("figure", { class: "drawing" }, element("div", { class: "mat" }, made), element("figcaption", {}, caption)));
      then();
    });
    made.addEventListener("error", () => {
      if (!image.children.length) image.replaceChildren(element("p", { class: "note" }, "No figure of a part: this claim's needs all cells."));
      then();
    });
  }
  return {
    root, tick,
    update(now) {
      run = now;
      root.dataset.state = run.state;
      state.textContent = WORDS[run.state] ?? run.state;
      about.textContent = "at size " + run.size + (run.verdict ? "; verdict: " + run.verdict : "");
      bar.hidden = !GOING.includes(run.state);
      if (run.total) bar.value = run.done / run.total;
      else bar.removeAttribute("value");
      bar.setAttribute("aria-label", run.done + " of " + run.total + " cells");
      reason.textContent = run.state === "stopped" && run.started ? "Its finished cells are kept. " + (run.reason ?? "") : run.reason ?? "";
      button.hidden = !["queued", "running"].includes(run.state);
      tick();
      draw();
      read();
    },
  };
}

function lasting(seconds) {
  const s = Math.round(seconds), m = Math.floor(s / 60), h = Math.floor(m / 60);
  return h ? h + " h " + (m % 60) + " min" : m ? m + " min " + (s % 60) + " s" : s + " s";
}
