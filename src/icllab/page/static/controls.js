// Controls of an explorer: sliders with a field for their value, and choices.

import { formula } from "./formulas.js";
import { element } from "./numbers.js";
import { spelled } from "./scales.js";

const STEPS = 1000;

// `grid` has the values of controls that can be moved; null: all can, over their whole range.
export function controls(declaration, values, grid, changed) {
  const widgets = declaration.controls.map((control) => {
    const fixed = grid && !(grid[control.name]?.length > 1);
    if (fixed) return standing(declaration, control, values);
    return control.kind === "choice" ? choice(declaration, control, values, grid, changed) : slider(declaration, control, values, grid, changed);
  });
  const root = element("div", { class: "controls" }, ...widgets.map((widget) => widget.root));
  const refresh = () => {
    for (const [i, control] of declaration.controls.entries()) {
      widgets[i].root.hidden = Object.entries(control.when).some(([name, options]) => !options.includes(values[name]));
      widgets[i].refresh();
    }
  };
  refresh();
  return { root, refresh };
}

// A label with its symbol, which two spaces part from its meaning, as a formula.
function labelled(text) {
  const [symbol, ...meaning] = text.split("  ");
  return meaning.length ? [formula(symbol), " " + meaning.join(" ")] : [text];
}

const named = (declaration, control) => "control-" + declaration.id + "-" + control.name;

function standing(declaration, control, values) {
  const text = () => (control.kind === "choice" ? Object.fromEntries(control.options)[values[control.name]] : spelled(values[control.name]));
  const shown = element("span", { class: "fixed" });
  const root = element("div", { class: "control" }, element("span", { class: "label" }, ...labelled(control.label)), shown);
  return { root, refresh: () => (shown.textContent = text()) };
}

function choice(declaration, control, values, grid, changed) {
  const id = named(declaration, control);
  const options = control.options.filter(([value]) => !grid || grid[control.name].includes(value));
  const select = element("select", { id, name: control.name }, ...options.map(([value, label]) => element("option", { value }, label)));
  select.addEventListener("change", () => changed(control.name, select.value));
  const root = element("div", { class: "control" }, element("label", { for: id }, ...labelled(control.label)), select);
  return { root, refresh: () => (select.value = values[control.name]) };
}

function slider(declaration, control, values, grid, changed) {
  const id = named(declaration, control), scale = grid ? ofList(grid[control.name]) : ofRange(control);
  const range = element("input", { type: "range", id, name: control.name, min: scale.first, max: scale.last, step: 1 });
  const number = element("input", { type: "text", inputmode: "decimal", "aria-label": control.label + ", value", autocomplete: "off", spellcheck: "false" });
  range.addEventListener("input", () => changed(control.name, scale.value(Number(range.value))));
  number.addEventListener("change", () => {
    const wanted = number.value.trim() === "" ? NaN : Number(number.value.replace(",", "."));
    if (Number.isNaN(wanted)) refresh();
    else changed(control.name, scale.nearest(wanted));
  });
  const bounds = element("span", { class: "bounds" }, (control.zero ? "0 or " : "") + spelled(control.low) + " to " + spelled(control.high));
  const root = element("div", { class: "control" }, element("label", { for: id }, ...labelled(control.label)), number, range, grid ? null : bounds);
  const refresh = () => {
    const value = values[control.name];
    range.value = scale.place(value);
    range.setAttribute("aria-valuetext", spelled(value));
    if (document.activeElement !== number || Number(number.value) !== value) number.value = spelled(value, 6);
  };
  return { root, refresh };
}

// Values of a range at whole steps of a slider, evenly in their logarithm where the scale is one; below them zero.
function ofRange({ low, high, scale, zero }) {
  const whole = scale.endsWith("integer"), log = scale.startsWith("log");
  const forward = log ? Math.log : (v) => v, back = log ? Math.exp : (v) => v;
  const steps = whole && !log ? high - low : STEPS;
  const tidy = (v) => (whole ? Math.round(v) : Math.min(Math.max(Number(v.toPrecision(4)), low), high));
  return {
    first: zero ? -1 : 0,
    last: steps,
    value: (i) => (zero && i < 0 ? 0 : tidy(back(forward(low) + ((forward(high) - forward(low)) * i) / steps))),
    place: (v) => (zero && v <= 0 ? -1 : Math.round(((forward(Math.max(v, low)) - forward(low)) / (forward(high) - forward(low))) * steps)),
    nearest: (v) => (zero && v <= 0 ? 0 : Math.min(Math.max(whole ? Math.round(v) : v, low), high)),
  };
}

function ofList(list) {
  const nearest = (v) => list.reduce((a, b) => (Math.abs(b - v) < Math.abs(a - v) ? b : a));
  return { first: 0, last: list.length - 1, value: (i) => list[i], place: (v) => list.indexOf(nearest(v)), nearest };
}

// What an address says of the values; what does not fit is left at the start.
export function fromAddress(declaration, parameters) {
  const values = {};
  for (const control of declaration.controls) {
    values[control.name] = control.start;
    const given = parameters.get(control.name);
    if (given === null) continue;
    if (control.kind === "choice") {
      if (control.options.some(([value]) => value === given)) values[control.name] = given;
    } else if (given !== "" && Number.isFinite(Number(given))) values[control.name] = ofRange(control).nearest(Number(given));
  }
  return values;
}

// What the address has to say: values that are not those at the start.
export function toAddress(declaration, values) {
  const parameters = new URLSearchParams();
  for (const control of declaration.controls) {
    if (values[control.name] !== control.start) parameters.set(control.name, String(values[control.name]));
  }
  return parameters;
}
