// Explorers: a closed form that answers while a control is moved.
//
//   const leave = list(root);              all explorers, with what each is about
//   const leave = await show(root, id);    one of them; its values stand in the address, #/explore/ID?name=value&...
//
// Both give a function that ends them. At most one question is under way; of those asked meanwhile the newest is
// asked next, and the others never. What was answered last is `root.explorer`, and `root.dataset.answered` counts.

import { START } from "./camera.js";
import { controls, fromAddress, toAddress } from "./controls.js";
import { element } from "./numbers.js";
import { curvePlot } from "./plot.js";
import { spelled } from "./scales.js";
import { server } from "./source.js";
import { surfaceFigure } from "./surface.js";

const PATIENCE = 250; // milliseconds that an answer may take before a newer question takes its place
const IDLE = 120; // milliseconds without a move, before points are asked for and the address is written

export function list(root, source = server) {
  let gone = false;
  const shown = element("div", { class: "explorers" });
  root.replaceChildren(element("h1", {}, "Explorers"), element("p", { class: "lead" }, "Closed forms that answer while a slider is moved."), shown);
  source.list().then(
    (found) => gone || shown.replaceChildren(...found.map((one) => element(
      "article", { class: "explorer-card" },
      element("h2", {}, element("a", { href: "#/explore/" + one.id }, one.title)), element("p", {}, one.about)))),
    (error) => gone || shown.replaceChildren(element("p", { class: "problem", role: "alert" }, error.message))
  );
  return () => {
    gone = true;
    root.replaceChildren();
  };
}

export async function show(root, id, source = server) {
  const whole = new AbortController();
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  root.replaceChildren(problem);
  delete root.dataset.answered;
  let explorer = null;
  try {
    const declaration = await source.declaration(id);
    explorer = started(root, declaration, source, problem, whole.signal);
  } catch (error) {
    said(problem, error.message);
  }
  return () => {
    whole.abort();
    explorer?.end();
    root.replaceChildren();
    delete root.explorer;
  };
}

function said(problem, text) {
  problem.textContent = text;
  problem.hidden = !text;
}

function started(root, declaration, source, problem, gone) {
  const id = declaration.id, kept = source.moved === "address";
  const parameters = new URLSearchParams(kept ? location.hash.split("?")[1] ?? "" : "");
  const values = fromAddress(declaration, parameters);
  const angle = read(parameters.get("view"));
  const numbers = element("dl", { class: "answers" }), figures = element("div", { class: "figures" });
  const laid = overlay(declaration, source, gone, () => ask(), (setting) => move(setting));
  const panel = controls(declaration, values, source.grid(), (name, value) => move({ [name]: value }));
  const reset = element("button", { type: "button", class: "reset", onclick: () => move(Object.fromEntries(declaration.sliders.map((one) => [one.name, one.start]))) }, "reset the controls");
  const heading = element(kept ? "h1" : "h3", {}, declaration.title);
  const grid = source.grid() ? element("p", { class: "note" }, "Precomputed: sliders move between the points of a grid, and what is not moved here is in the local page.") : null;
  root.replaceChildren(element("div", { class: "explorer" },
    element("header", {}, heading, element("p", { class: "about" }, declaration.about)),
    element("div", { class: "panels" },
      element("section", { class: "side", "aria-label": "controls" }, panel.root, reset, grid, laid.root, numbers),
      element("section", { class: "main", "aria-label": "figures" }, problem, figures))));

  let plot = null, surface = null, under = null, began = 0, next = null, waiting = 0, answered = 0, latest = null;
  const first = element("div", { class: "first" }), second = element("div", { class: "second" });
  const note = element("p", { class: "note remark" });
  figures.append(first, note, second);

  function move(changes) {
    Object.assign(values, changes);
    panel.refresh();
    ask();
  }

  function ask() {
    next = { ...values };
    if (!under) run();
    else if (performance.now() - began > PATIENCE) under.abort();
    clearTimeout(waiting);
    waiting = setTimeout(settled, IDLE);
  }

  async function run() {
    while (next && !gone.aborted) {
      const wanted = next;
      next = null;
      under = new AbortController();
      began = performance.now();
      try {
        const found = await source.answer(id, wanted, under.signal);
        if (gone.aborted) return;
        if (!next) {
          Object.assign(values, found.values);
          panel.refresh();
        }
        latest = found;
        await draw(found.answer, laid.cached(found.values));
        root.explorer = { id, values: found.values, answer: found.answer };
        said(problem, "");
        figures.classList.remove("old");
      } catch (error) {
        if (error.name === "AbortError") continue;
        if (gone.aborted) return;
        said(problem, error.message);
        figures.classList.add("old");
      } finally {
        under = null;
      }
      root.dataset.answered = String(++answered);
    }
  }

  async function draw(answer, points) {
    const where = { curves: declaration.view === "curves" ? first : second, surface: declaration.view === "curves" ? second : first };
    if (answer.surface) {
      surface ??= surfaceFigure(where.surface, declaration.title + ", surface", angle, (turned) => {
        Object.assign(angle, turned);
        clearTimeout(waiting);
        waiting = setTimeout(settled, IDLE);
      });
      surface.draw(answer.surface, points?.surface?.x.length ? points.surface : null);
    } else if (surface) {
      surface.destroy();
      surface = null;
    }
    plot ??= await curvePlot(where.curves, declaration.title + ", curves");
    if (gone.aborted) return;
    plot.draw(answer, matched(answer, points));
    note.textContent = answer.note ?? "";
    numbers.replaceChildren(...Object.entries(answer.numbers ?? {}).flatMap(([name, value]) => [
      element("dt", {}, name), element("dd", {}, typeof value === "string" ? value : value === null ? "infinite" : spelled(value, 5))]));
  }

  async function settled() {
    if (gone.aborted) return;
    if (kept) {
      const now = toAddress(declaration, values);
      if (angle.yaw !== START.yaw || angle.pitch !== START.pitch) now.set("view", Math.round(angle.yaw) + "," + Math.round(angle.pitch));
      const query = now.toString();
      if (location.hash.startsWith("#/explore/" + id)) history.replaceState(history.state, "", "#/explore/" + id + (query ? "?" + query : ""));
    }
    if (!latest || !laid.wanted()) return;
    const asked = latest;
    try {
      const points = await laid.points(asked.values);
      if (!gone.aborted && latest === asked) await draw(asked.answer, points);
    } catch (error) {
      if (error.name !== "AbortError" && !gone.aborted) said(problem, error.message);
    }
  }

  const restyle = () => {
    plot?.restyle();
    surface?.restyle();
  };
  const themes = new MutationObserver(restyle), dark = window.matchMedia("(prefers-color-scheme: dark)");
  for (const one of [document.documentElement, document.body]) themes.observe(one, { attributes: true, attributeFilter: ["data-theme", "class"] });
  dark.addEventListener("change", restyle);
  ask();
  return {
    end() {
      clearTimeout(waiting);
      under?.abort();
      themes.disconnect();
      dark.removeEventListener("change", restyle);
      plot?.destroy();
      surface?.destroy();
    },
  };
}

function read(text) {
  const [yaw, pitch] = (text ?? "").split(",").map(Number);
  return text && Number.isFinite(yaw) && Number.isFinite(pitch) ? { yaw, pitch: Math.min(Math.max(pitch, 0), 90) } : { ...START };
}

// Points in the colour of the curve they belong to; every dimension has a shape of its own.
function matched(answer, points) {
  const rest = (label, curve) => label.slice(curve.label.length).replace(/^, /, "");
  const owners = (points?.curves ?? []).map((one) => answer.curves.findIndex((curve) => one.label.startsWith(curve.label)));
  const kinds = [...new Set(owners.map((i, k) => (i < 0 ? "" : rest(points.curves[k].label, answer.curves[i]))))];
  return owners.map((i, k) => {
    const one = points.curves[k], kind = i < 0 ? "" : rest(one.label, answer.curves[i]);
    return { ...one, series: i < 0 ? k : i, shape: kinds.indexOf(kind), kind };
  });
}

// Stored results that can be laid over: which are there, which are wanted, and their points.
function overlay(declaration, source, gone, changed, move) {
  const root = element("fieldset", { class: "overlay", hidden: true }, element("legend", {}, "Stored results laid over"));
  const chosen = new Set(), known = new Map(), settings = element("div", { class: "settings" });
  const key = (values) => JSON.stringify([[...chosen].sort(), values]);
  if (declaration.overlay.length) {
    source.results(declaration.overlay, gone).then((found) => {
      root.hidden = !found.length;
      for (const one of found) {
        const box = element("input", { type: "checkbox", onchange: () => {
          chosen[box.checked ? "add" : "delete"](one.id);
          settings.replaceChildren();
          changed();
        } });
        root.append(element("label", {}, box, element("span", {}, one.label + (one.stale ? " (stale)" : ""))));
      }
      root.append(element("p", { class: "note" }, declaration.placed), settings);
    }).catch(() => {});
  }
  return {
    root,
    wanted: () => chosen.size > 0,
    cached: (values) => known.get(key(values)) ?? null,
    async points(values) {
      const name = key(values);
      if (!known.has(name)) {
        if (!settings.firstChild) settings.replaceChildren(element("p", {}, "Reading …"));
        const parts = await Promise.all([...chosen].map((one) => source.points(one, declaration.id, values, gone)));
        const surface = { x: [], y: [], z: [] };
        for (const part of parts) for (const axis of ["x", "y", "z"]) surface[axis].push(...(part.surface?.[axis] ?? []));
        known.set(name, { curves: parts.flatMap((part) => part.curves), surface, settings: parts.flatMap((part) => part.settings) });
      }
      const found = known.get(name), drawn = found.curves.reduce((sum, one) => sum + one.x.length, 0);
      settings.replaceChildren(
        element("p", {}, drawn ? drawn + " points are on this view." : "No points are at these values. They are at:"),
        ...found.settings.map((one) => element("button", { type: "button", onclick: () => move(one) },
          Object.entries(one).map(([part, value]) => symbol(declaration, part) + " = " + spelled(value, 3)).join(", "))));
      return found;
    },
  };
}

function symbol(declaration, name) {
  return declaration.sliders.find((one) => one.name === name)?.label.split("  ")[0] ?? name;
}
