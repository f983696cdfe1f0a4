// Explorers: a closed form that answers while a control is moved.
//
//   const leave = list(root);              all explorers, with a description
//   const leave = await show(root, id);    one of them; its values are in the address, #/explore/ID?name=value&...
//
// Both return a function that ends them. At most one request is under way; of later requests only the newest is sent.
// The last answer is `root.explorer`, and `root.dataset.answered` counts the answers.

import { controls, fromAddress, toAddress } from "./controls.js";
import { typeset, withFormulas } from "./formulas.js";
import { map } from "./map.js";
import { element } from "./numbers.js";
import { curves, figure } from "./plot.js";
import { spelled } from "./scales.js";
import { explorers } from "./server.js";

const IDLE = 120; // milliseconds without a move, before the address is written

export async function list(root) {
  const declarations = await explorers.list();
  const pictures = declarations.map(() => element("div", { class: "picture" }));
  const cards = declarations.map(({ id, title, about }, i) => element("article", { class: "explorer-card" },
    element("h2", {}, element("a", { href: "#/explore/" + id }, title)), pictures[i], element("p", {}, ...withFormulas(about))));
  root.replaceChildren(element("h1", {}, "Explorers"), element("p", { class: "lead" }, "Closed forms that answer while a slider is moved."),
    element("div", { class: "explorers" }, ...cards));
  const drawn = [];
  for (const [i, { id, title, view }] of declarations.entries()) {
    explorers.answer(id, {}).then(({ answer }) => {
      const kind = view === "map" ? map : curves, plot = figure(pictures[i], title, kind);
      plot.draw(view === "map" ? answer.map : answer);
      drawn.push(plot);
    });
  }
  return () => drawn.forEach((plot) => plot.destroy());
}

export async function show(root, id, source = explorers) {
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  root.replaceChildren(problem);
  delete root.dataset.answered;
  let end = null;
  try {
    end = start(root, await source.declaration(id), source, problem);
  } catch (error) {
    report(problem, error.message);
  }
  return () => {
    end?.();
    root.replaceChildren();
    delete root.explorer;
  };
}

function report(problem, text) {
  problem.textContent = text;
  problem.hidden = !text;
}

function start(root, declaration, source, problem) {
  const id = declaration.id;
  const values = fromAddress(declaration, new URLSearchParams(source.inAddress ? location.hash.split("?")[1] ?? "" : ""));
  const numbers = element("dl", { class: "answers" }), note = element("p", { class: "note remark" });
  const panel = controls(declaration, values, (name, value) => move({ [name]: value }));
  const initial = Object.fromEntries(declaration.controls.map((control) => [control.name, control.start]));
  const reset = element("button", { type: "button", class: "reset", onclick: () => move(initial) }, "reset the controls");
  const heading = element(source.inAddress ? "h1" : "h3", {}, declaration.title);
  const grid = source.inAddress ? null : element("p", { class: "note" }, "Precomputed: sliders move between the points of a grid. `icl page` has every value.");
  const first = element("div", { class: "first" }), second = element("div", { class: "second" });
  const theory = element("details", { class: "theory" }, element("summary", {}, "The formulas"));
  theory.insertAdjacentHTML("beforeend", declaration.theory); // HTML of the server, in which all text is escaped
  const figures = element("div", { class: "figures" }, first, note, second);
  root.replaceChildren(element("div", { class: "explorer" },
    element("header", {}, heading, element("p", { class: "about" }, ...withFormulas(declaration.about))),
    element("div", { class: "panels" },
      element("section", { class: "side", "aria-label": "controls" }, panel.root, reset, grid, numbers),
      element("section", { class: "main", "aria-label": "figures" }, problem, figures)), theory));
  typeset(theory);
  const [curvesRoot, mapRoot] = declaration.view === "curves" ? [first, second] : [second, first];
  let plot = null, heatMap = null, busy = false, next = null, timer = 0, answered = 0, gone = false;

  function move(changes) {
    Object.assign(values, changes);
    panel.refresh();
    ask();
  }

  function ask() {
    next = { ...values };
    if (!busy) run();
    clearTimeout(timer);
    timer = setTimeout(writeAddress, IDLE);
  }

  async function run() {
    busy = true;
    while (next && !gone) {
      const wanted = next;
      next = null;
      let message = "";
      try {
        const result = await source.answer(id, wanted);
        if (gone) return;
        if (!next) Object.assign(values, result.values);
        panel.refresh();
        draw(result.answer);
        root.explorer = { id, ...result };
      } catch (error) {
        message = error.message;
      }
      report(problem, message);
      figures.classList.toggle("old", message !== "");
      root.dataset.answered = String(++answered);
    }
    busy = false;
  }

  function draw(answer) {
    if (answer.map) (heatMap ??= figure(mapRoot, declaration.title + ", map", map)).draw(answer.map);
    else {
      heatMap?.destroy();
      heatMap = null;
    }
    (plot ??= figure(curvesRoot, declaration.title + ", curves", curves)).draw(answer);
    note.textContent = answer.note ?? "";
    numbers.replaceChildren(...Object.entries(answer.numbers ?? {}).flatMap(([name, value]) => [
      element("dt", {}, name), element("dd", {}, typeof value === "string" ? value : value === null ? "infinite" : spelled(value, 5))]));
  }

  function writeAddress() {
    if (!source.inAddress || !location.hash.startsWith("#/explore/" + id)) return;
    const query = toAddress(declaration, values).toString();
    history.replaceState(history.state, "", "#/explore/" + id + (query ? "?" + query : ""));
  }

  ask();
  return () => {
    gone = true;
    clearTimeout(timer);
    plot?.destroy();
    heatMap?.destroy();
  };
}
