// The claims: all of them with filters, and one of them. The server makes the cards.

import { typeset } from "./formulas.js";
import { element } from "./numbers.js";
import { ask, post } from "./server.js";

const VERDICTS = { holds: "hold", fails: "fail", undecided: "undecided", none: "not yet run", stale: "stale" };
const ABOUT = "A claim is one sentence that can be false, with a program that measures it and a check that judges the numbers. " +
  "“small, recorded” means that the verdict is of a run of size small (minutes; medium takes hours), whose data the book keeps.";

// HTML from the server, which has escaped all text in it.
function card(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  for (const command of holder.content.querySelectorAll(".command"))
    command.append(element("button", { type: "button", class: "copy quiet" }, "Copy"));
  typeset(holder.content);
  for (const wide of holder.content.querySelectorAll(".scroll")) wide.tabIndex = 0;
  return holder.content;
}

const capital = (name) => name.replaceAll("_", " ").replace(/^./, (c) => c.toUpperCase());
const has = (tile, verdict) => (verdict === "stale" ? tile.stale : tile.verdict === verdict);

export async function list(root) {
  const lead = element("p", { class: "lead" }, ABOUT);
  root.append(element("h1", {}, "Claims"), lead);
  const { claims, subjects, papers } = await ask("api/claims");
  const filter = { word: "", subject: "", paper: "", verdict: "", ...JSON.parse(sessionStorage.getItem("icl-lab filter") ?? "{}") };

  const search = element("input", { type: "search", id: "word", placeholder: "a word, an author, a claim's name", value: filter.word });
  search.addEventListener("input", () => set("word", search.value));
  const select = (name, label, options) => {
    const menu = element("select", { id: name, onchange: () => set(name, menu.value) },
      element("option", { value: "" }, label), ...options.map(([value, text]) => element("option", { value }, text)));
    menu.value = filter[name];
    return element("label", { for: name }, element("span", {}, capital(name)), menu);
  };
  const clear = element("button", { type: "button", class: "quiet", onclick: reset }, "Clear");
  const form = element("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
    element("label", { for: "word", class: "grows" }, element("span", {}, "Find"), search),
    select("subject", "all subjects", Object.keys(subjects).map((name) => [name, capital(name)])),
    select("paper", "all papers", Object.entries(papers)),
    select("verdict", "all verdicts", Object.keys(VERDICTS).map((name) => [name, name === "none" ? "not yet run" : name])), clear);
  const count = element("p", { class: "count", role: "status" }), tiles = element("div");
  root.append(form, count, tiles);

  function set(name, value) {
    filter[name] = value;
    sessionStorage.setItem("icl-lab filter", JSON.stringify(filter));
    draw();
  }
  function reset() {
    for (const name of Object.keys(filter)) filter[name] = "";
    sessionStorage.removeItem("icl-lab filter");
    form.reset();
    search.value = "";
    draw();
  }
  const fits = (tile) =>
    (!filter.subject || tile.subject === filter.subject) &&
    (!filter.paper || tile.papers.includes(filter.paper)) &&
    (!filter.verdict || has(tile, filter.verdict)) &&
    filter.word.toLowerCase().split(/\s+/).every((word) => tile.words.includes(word));

  function draw() {
    const fitting = claims.filter(fits);
    clear.hidden = !Object.values(filter).some(Boolean);
    count.textContent = fitting.length === claims.length ? standing : fitting.length + " of " + claims.length + " claims";
    const sections = Object.entries(subjects).map(([subject, about]) => {
      const section = fitting.filter((tile) => tile.subject === subject).map((tile) => card(tile.html));
      return section.length ? element("section", {}, element("h2", {}, capital(subject)), element("p", { class: "about" }, about),
        element("div", { class: "tiles" }, ...section)) : null;
    }).filter(Boolean);
    if (!sections.length) sections.push(element("p", { class: "none" }, "No claim fits. ", element("button", { type: "button", onclick: reset }, "Show all")));
    tiles.replaceChildren(...sections);
  }
  const counts = Object.keys(VERDICTS).map((verdict) => [claims.filter((tile) => has(tile, verdict)).length, verdict]).filter(([n]) => n);
  const standing = claims.length + " claims: " + counts.map(([n, verdict]) => n + " " + (n > 1 || verdict === "none" ? VERDICTS[verdict] : verdict)).join(", ") + ".";
  draw();
}

export async function claim(root, name) {
  const answer = await ask("api/claims/" + name.split("/").map(encodeURIComponent).join("/"));
  const body = element("div", {}, card(answer.html));
  const size = element("select", { "aria-label": "Size" }, ...answer.sizes.map((value) => element("option", { value, selected: value === "small" }, value)));
  const problem = element("span", { role: "status" });
  const run = element("button", { type: "button", class: "go", onclick: async () => {
    try {
      await post("api/runs", { claim: name, size: size.value });
      location.hash = "#/runs";
    } catch (error) {
      problem.textContent = error.message;
    }
  } }, "Run it here");
  root.append(element("p", { class: "crumbs" }, element("a", { href: "#/claims" }, "Claims"), " / ", element("code", {}, name)), body);
  if (answer.sizes.length) body.querySelector(".claim > .command").after(element("p", { class: "start" }, "Size ", size, " ", run, " ", problem));
}
