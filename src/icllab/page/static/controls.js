// Controls of an explorer: sliders with a field for their value, and choices. A control of one value is text.

import { formula } from "./formulas.js";
import { element } from "./numbers.js";
import { along, spelled } from "./scales.js";

export function controls(declaration, values, changed) {
  const widgets = declaration.controls.map((control) => {
    const id = "control-" + declaration.id + "-" + control.name;
    const make = (control.options ?? control.values).length < 2 ? constant : control.kind === "choice" ? choice : slider;
    return make(id, control, (value) => changed(control.name, value));
  });
  const root = element("div", { class: "controls" }, ...widgets.map((widget) => widget.root));
  const refresh = () => declaration.controls.forEach((control, i) => widgets[i].refresh(values[control.name]));
  refresh();
  return { root, refresh };
}

// A label with its symbol, which two spaces part from its meaning, as a formula.
function labelled(text) {
  const [symbol, ...meaning] = text.split("  ");
  return meaning.length ? [formula(symbol), " " + meaning.join(" ")] : [text];
}

function constant(id, control) {
  const text = element("span", { class: "fixed", id });
  const root = element("div", { class: "control" }, element("span", { class: "label" }, ...labelled(control.label)), text);
  return { root, refresh: (value) => (text.textContent = control.kind === "choice" ? Object.fromEntries(control.options)[value] : spelled(value)) };
}

function choice(id, control, changed) {
  const select = element("select", { id, name: control.name }, ...control.options.map(([value, label]) => element("option", { value }, label)));
  select.addEventListener("change", () => changed(select.value));
  const root = element("div", { class: "control" }, element("label", { for: id }, ...labelled(control.label)), select);
  return { root, refresh: (value) => (select.value = value) };
}

function slider(id, control, changed) {
  const { name, label, values } = control, range = element("input", { type: "range", id, name, min: 0, max: values.length - 1, step: 1 });
  const number = element("input", { type: "text", inputmode: "decimal", "aria-label": label + ", value", autocomplete: "off", spellcheck: "false" });
  let shown = values[0];
  range.addEventListener("input", () => changed(values[range.value]));
  number.addEventListener("change", () => {
    const typed = number.value.trim() === "" ? NaN : Number(number.value.replace(",", "."));
    if (Number.isNaN(typed)) refresh(shown);
    else changed(within(control, typed));
  });
  const bounds = element("span", { class: "bounds" }, spelled(values[0]) + " to " + spelled(values[values.length - 1]));
  const root = element("div", { class: "control" }, element("label", { for: id }, ...labelled(label)), number, range, bounds);
  const refresh = (value) => {
    shown = value;
    range.value = nearest(control, value);
    range.setAttribute("aria-valuetext", spelled(value));
    if (document.activeElement !== number || Number(number.value) !== value) number.value = spelled(value, 6);
  };
  return { root, refresh };
}

// The place of a value among those of a slider, by the scale of the slider; below all logarithms zero.
export function nearest({ values, scale }, value) {
  const place = (v) => along(v, scale) ?? -50, distances = values.map((other) => Math.abs(place(other) - place(value)));
  return distances.indexOf(Math.min(...distances));
}

// The value of a slider that is nearest to a typed number.
function within({ values, integer }, typed) {
  const number = integer ? Math.round(typed) : typed;
  return Math.min(Math.max(number, values[0]), values[values.length - 1]);
}

// The values in an address; a value that does not fit is left at the start.
export function fromAddress(declaration, parameters) {
  return Object.fromEntries(declaration.controls.map((control) => {
    const given = parameters.get(control.name), number = Number(given || NaN);
    const fits = control.kind === "choice" ? control.options.some(([value]) => value === given) : Number.isFinite(number);
    return [control.name, !fits ? control.start : control.kind === "choice" ? given : within(control, number)];
  }));
}

// The values for an address: those that are not at the start.
export function toAddress(declaration, values) {
  const changed = declaration.controls.filter(({ name, start }) => values[name] !== start);
  return new URLSearchParams(changed.map(({ name }) => [name, String(values[name])]));
}
