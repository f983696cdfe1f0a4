// The text alternative of a figure: what is seen, in a sentence, and the drawn numbers as a table behind a disclosure.

import { spelled } from "./scales.js";

// An element with attributes, properties and children; text is always text.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// A disclosure whose table is made when it is opened, and made again while it is open.
export function disclosure(summary, table) {
  const inside = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": summary });
  const root = element("details", { class: "drawn" }, element("summary", {}, summary), inside);
  const fill = () => {
    if (root.open) inside.replaceChildren(table());
  };
  root.addEventListener("toggle", fill);
  return { root, refresh: fill };
}

export function table(caption, head, rows) {
  return element(
    "table", {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...head.map((one) => element("th", { scope: "col" }, one)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((one, i) =>
      element(i ? "td" : "th", i ? {} : { scope: "row" }, typeof one === "string" ? one : spelled(one, 8))))))
  );
}

// "ICL error: 1.2 at 0.05, 0.3 at 50, least 0.2 at 8, largest 31 at 1."
export function described(label, x, y) {
  const at = y.map((value, i) => [x[i], value]).filter(([, value]) => value !== null && Number.isFinite(value));
  if (!at.length) return label + ": nothing drawn";
  const least = at.reduce((a, b) => (b[1] < a[1] ? b : a)), most = at.reduce((a, b) => (b[1] > a[1] ? b : a));
  const say = ([where, value]) => spelled(value, 3) + " at " + spelled(where, 3);
  if (least[1] === most[1]) return label + ": " + spelled(least[1], 3) + " throughout";
  const ends = "from " + say(at[0]) + " to " + say(at[at.length - 1]);
  return label + ": " + ends + ", least " + say(least) + ", largest " + say(most);
}
