// Runs: start one, see how far each is and its figure so far, stop it, read its log; training runs with their losses.

import { element } from "./numbers.js";
import { curvePlot } from "./plot.js";
import { ask, follow, tell } from "./server.js";

const GOING = ["running", "stopping"];
const WORDS = { queued: "waits", running: "runs", stopping: "is stopping", finished: "finished", stopped: "stopped", failed: "failed", killed: "was killed" };

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
  const runs = element("div", { class: "going-on" }), training = element("div", { class: "going-on" });
  const empty = element("p", { class: "none" }, "Nothing runs in " + out + ". What is started here waits for what was started before it; what a terminal runs in the same directory shows up as well.");
  root.append(form, said, empty, runs, element("h2", {}, "Training runs"),
    element("p", { class: "about" }, "Those with a store in the same directory; their losses are those of the newest checkpoint."), training);
  const shown = new Map(), losses = new Map();
  const stop = follow((state) => {
    empty.hidden = state.runs.length > 0;
    keep(shown, runs, state.runs, (one) => runCard(one));
    keep(losses, training, state.training, (one) => lossCard(one));
    training.previousElementSibling.previousElementSibling.hidden = training.previousElementSibling.hidden = !state.training.length;
  });
  const clock = setInterval(() => shown.forEach((card) => card.tick()), 1000);
  return () => {
    stop();
    clearInterval(clock);
    shown.forEach((card) => card.end?.());
    losses.forEach((card) => card.end?.());
  };
}

// One element for each id, made once and told of every change.
function keep(shown, root, states, make) {
  for (const [id, card] of shown)
    if (!states.some((one) => one.id === id)) {
      card.end?.();
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
  let run = first, heard = Date.now(), drawn = null, drawing = false;
  const state = element("strong"), about = element("span"), bar = element("progress", { max: 1, value: 0 });
  const left = element("p", { class: "left" }), what = element("p", { class: "what" }), reason = element("p", { class: "note" });
  const button = element("button", { type: "button", class: "quiet", onclick: () => tell("/api/runs/" + run.id + "/stop").catch((error) => (reason.textContent = error.message)) }, "Stop");
  const image = element("div", { class: "so-far" });
  const log = element("pre", { tabindex: 0 }), text = element("details", { class: "log" }, element("summary", {}, "Log"), log);
  text.addEventListener("toggle", () => read());
  const root = element("article", { class: "run", "aria-label": "Run of " + first.claim },
    element("header", {}, element("h2", {}, element("a", { href: "#/claim/" + first.claim }, first.claim)), button),
    element("p", {}, state, " ", about), bar, left, what, reason, image, first.own ? text : null);
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
      const passed = (Date.now() - heard) / 1000;
      const rest = run.left === null || run.left === undefined ? "time left not known yet" : "about " + lasting(Math.max(0, run.left - passed)) + " left";
      left.textContent = (run.total ? run.done + " of " + run.total + " cells, " + rest : "starting") + "; for " + lasting(Date.now() / 1000 - run.started);
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
      if (now.left !== run.left || now.done !== run.done) heard = now.updated ? Math.min(Date.now(), now.updated * 1000) : Date.now();
      run = now;
      root.dataset.state = run.state;
      state.textContent = WORDS[run.state] ?? run.state;
      const where = run.own ? "asked for here" : "started in a terminal" + (run.host ? " on " + run.host + ", process " + run.pid : "");
      about.textContent = "at size " + run.size + (run.control ? " under the control " + run.control : "") + ", " + where + (run.verdict ? "; verdict: " + run.verdict : "");
      bar.hidden = !GOING.includes(run.state);
      if (run.total) bar.value = run.done / run.total;
      else bar.removeAttribute("value");
      bar.setAttribute("aria-label", run.done + " of " + run.total + " cells");
      what.textContent = run.state === "running" && run.what && run.what !== "kept" ? "last: " + run.what : "";
      reason.textContent = run.state === "killed" ? "Its finished cells are kept; the same command goes on." : run.state === "stopped" && run.started ? "Its finished cells are kept. " + (run.reason ?? "") : run.reason ?? "";
      button.hidden = !run.own || !["queued", "running"].includes(run.state);
      tick();
      draw();
      read();
    },
  };
}

function lossCard(first) {
  const said = element("p"), place = element("div");
  const root = element("article", { class: "run" }, element("header", {}, element("h2", {}, first.label)), said, place);
  let plot = null, seen = null, gone = false;
  const restyle = () => plot?.restyle(), themes = new MutationObserver(restyle), dark = matchMedia("(prefers-color-scheme: dark)");
  themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  dark.addEventListener("change", restyle);
  return {
    root, tick() {},
    async update(now) {
      if (now.updated === seen) return;
      seen = now.updated;
      try {
        const run = await ask("/api/training/" + now.id);
        said.textContent = run.finished ? "Finished after " + run.step + " steps." : "At step " + run.step + "; the last checkpoint is " + lasting(run.age) + " old.";
        if (!run.steps.length) return;
        plot ??= await curvePlot(place, "Training loss of " + now.label);
        if (gone) return plot.destroy();
        plot.draw(answer(run));
      } catch (error) {
        place.replaceChildren(element("p", { class: "fault", role: "alert" }, error.message));
        plot = null;
      }
    },
    end() {
      gone = true;
      themes.disconnect();
      dark.removeEventListener("change", restyle);
      plot?.destroy();
    },
  };
}

// Losses as curves on logarithmic axes; step 0 is left out of those.
function answer(run) {
  const number = (value) => (typeof value === "number" ? value : null);
  const from = run.steps.findIndex((step) => step > 0), x = run.steps.slice(from);
  const at = (values) => values.slice(from).map(number);
  const one = run.members.length === 1;
  const curves = one ? [] : run.members.map((values, i) => ({ label: "member " + i, x, y: at(values) }));
  curves.unshift({ label: one ? "training loss" : "mean", x, y: at(run.mean) });
  const [steps, held] = run.held_out;
  if (held.length) curves.splice(1, 0, { label: "held-out", x: steps.filter((s) => s > 0), y: held.filter((_, i) => steps[i] > 0).map(number) });
  const positive = curves.every((curve) => curve.y.every((y) => y === null || y > 0));
  return { curves, axes: { x: { label: "step", scale: "log" }, y: { label: "loss", scale: positive ? "log" : "linear" }, mark: null } };
}

function lasting(seconds) {
  const s = Math.round(seconds), m = Math.floor(s / 60), h = Math.floor(m / 60);
  return h ? h + " h " + (m % 60) + " min" : m ? m + " min " + (s % 60) + " s" : s + " s";
}
