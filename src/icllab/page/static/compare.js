// Two stored results side by side.

import { element } from "./numbers.js";
import { ask } from "./server.js";

export async function compare(root, [first, second]) {
  const { results } = await ask("/api/results");
  const known = results.filter((one) => one.kind === "claim");
  root.append(element("h1", {}, "Compare"));
  if (known.length < 2) {
    root.append(element("p", { class: "lead" }, "Two stored results are needed; here are " + known.length + ". A run makes one; ",
      element("code", {}, "--set"), ", ", element("code", {}, "--control"), " and ", element("code", {}, "--fresh"), " make others."));
    return;
  }
  const chosen = [first ?? known[0].id, second ?? (known.find((one) => one.id !== (first ?? known[0].id)) ?? known[1]).id];
  const pick = (i, label) => {
    const groups = Map.groupBy ? Map.groupBy(known, (one) => one.claim) : new Map([["results", known]]);
    const made = element("select", { id: "side" + i, onchange: () => {
      chosen[i] = made.value;
      history.replaceState(null, "", "#/compare/" + chosen.join("/"));
      draw();
    } }, ...[...groups].map(([claim, own]) => element("optgroup", { label: claim },
      ...own.map((one) => element("option", { value: one.id }, one.label + (one.verdict ? " (" + one.verdict + ")" : ""))))));
    made.value = chosen[i];
    return element("label", { for: "side" + i, class: "grows" }, element("span", {}, label), made);
  };
  const found = element("div");
  root.append(element("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, pick(0, "First"), pick(1, "Second")), found);
  async function draw() {
    const asked = chosen.join();
    const answer = await ask("/api/compare?first=" + encodeURIComponent(chosen[0]) + "&second=" + encodeURIComponent(chosen[1]));
    if (asked !== chosen.join()) return;
    const holder = document.createElement("template");
    holder.innerHTML = answer.html;
    for (const wide of holder.content.querySelectorAll(".scroll")) wide.tabIndex = 0;
    found.replaceChildren(holder.content);
  }
  await draw();
}
