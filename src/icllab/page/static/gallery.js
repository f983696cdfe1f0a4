// The claims: all of them with filters, one of them, one result. Cards are made by the server.

import { element } from "./numbers.js";
import { ask, follow, tell } from "./server.js";

const VERDICTS = [["holds", "holds"], ["fails", "fails"], ["undecided", "undecided"], ["none", "not yet run"], ["stale", "stale"]];

const PLURAL = { holds: "hold", fails: "fail", undecided: "are undecided" };

// What the server has made of text that it escaped.
function card(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  for (const command of holder.content.querySelectorAll(".command"))
    command.append(element("button", { type: "button", class: "copy quiet" }, "Copy"));
  for (const wide of holder.content.querySelectorAll(".scroll")) wide.tabIndex = 0;
  return holder.content;
}

const capital = (name) => name.replaceAll("_", " ").replace(/^./, (c) => c.toUpperCase());

export async function list(root) {
  const all = element("h1", {}, "Claims"), lead = element("p", { class: "lead" }, "Reading the claims…");
  root.append(all, lead);
  let answer = await ask("/api/claims");
  const chosen = { word: "", subject: "", paper: "", verdict: "", ...JSON.parse(sessionStorage.getItem("filters") ?? "{}") };

  const search = element("input", { type: "search", id: "word", placeholder: "a word, an author, a claim's name", value: chosen.word });
  const select = (name, label, options) => {
    const made = element("select", { id: name, onchange: () => pick(name, made.value) },
      element("option", { value: "" }, label), ...options.map(([value, text]) => element("option", { value }, text)));
    made.value = chosen[name];
    return element("label", { for: name }, element("span", {}, capital(name)), made);
  };
  search.addEventListener("input", () => pick("word", search.value));
  const clear = element("button", { type: "button", class: "quiet", onclick: () => reset() }, "Clear");
  const filters = element("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
    element("label", { for: "word", class: "grows" }, element("span", {}, "Find"), search),
    select("subject", "all subjects", Object.keys(answer.subjects).map((name) => [name, capital(name)])),
    select("paper", "all papers", Object.entries(answer.papers)),
    select("verdict", "all verdicts", VERDICTS), clear);
  const count = element("p", { class: "count", role: "status" }), found = element("div");
  root.append(filters, count, found);

  function pick(name, value) {
    chosen[name] = value;
    sessionStorage.setItem("filters", JSON.stringify(chosen));
    draw();
  }
  function reset() {
    for (const name of Object.keys(chosen)) chosen[name] = "";
    sessionStorage.removeItem("filters");
    filters.reset();
    search.value = "";
    draw();
  }
  const fits = (one) =>
    (!chosen.subject || one.subject === chosen.subject) &&
    (!chosen.paper || one.papers.includes(chosen.paper)) &&
    (!chosen.verdict || (chosen.verdict === "stale" ? one.stale : one.verdict === chosen.verdict)) &&
    chosen.word.toLowerCase().split(/\s+/).every((word) => (one.words ?? one.claim).includes(word));

  function draw() {
    const fitting = answer.claims.filter(fits);
    clear.hidden = !Object.values(chosen).some(Boolean);
    count.textContent = fitting.length === answer.claims.length ? "" : fitting.length + " of " + answer.claims.length + " claims";
    const sections = Object.entries(answer.subjects).map(([subject, about]) => {
      const own = fitting.filter((one) => one.subject === subject);
      return own.length ? element("section", {},
        element("h2", {}, capital(subject)), element("p", { class: "about" }, about),
        element("div", { class: "tiles" }, ...own.map((one) => card(one.html)))) : null;
    }).filter(Boolean);
    if (!sections.length) sections.push(element("p", { class: "none" }, "No claim fits. ", element("button", { type: "button", onclick: reset }, "Show all")));
    if (answer.others.length && clear.hidden)
      sections.push(element("section", {}, element("h2", {}, "Other files"),
        element("p", { class: "about" }, "In " + answer.out + ", and of no claim that is known here."),
        element("div", { class: "tiles" }, ...answer.others.map((one) => card(one.html)))));
    found.replaceChildren(...sections);
  }
  function head() {
    const tally = VERDICTS.map(([value, text]) => [answer.claims.filter((one) => (value === "stale" ? one.stale : one.verdict === value)).length, text]).filter(([n]) => n);
    lead.textContent = answer.claims.length + " sentences that can be false: " + tally.map(([n, text]) => n + " " + (n > 1 ? PLURAL[text] ?? text : text)).join(", ") +
      ". Results in " + answer.out + "." + (answer.links ? " " + answer.links + " symbolic links there are not followed." : "");
  }
  head();
  draw();
  let seen = null;
  return follow(async (state) => {
    if (seen !== null && state.results !== seen) {
      answer = await ask("/api/claims");
      head();
      draw();
    }
    seen = state.results;
  });
}

export async function claim(root, name) {
  const answer = await ask("/api/claims/" + name.split("/").map(encodeURIComponent).join("/"));
  const body = element("div", {}, card(answer.html));
  const size = element("select", { "aria-label": "Size" }, ...answer.sizes.map((one) => element("option", { value: one, selected: one === "small" }, one)));
  const said = element("span", { role: "status" });
  const run = element("button", { type: "button", class: "go", onclick: async () => {
    try {
      await tell("/api/runs", { claim: name, size: size.value });
      location.hash = "#/runs";
    } catch (error) {
      said.textContent = error.message;
    }
  } }, "Run it here");
  root.append(element("p", { class: "crumbs" }, element("a", { href: "#/gallery" }, "Claims"), " / ", element("code", {}, name)), body);
  const beside = body.querySelector(".claim > .command");
  const start = element("p", { class: "start" }, "Size ", size, " ", run, " ", said);
  if (answer.sizes.length) (beside ?? body).after(start);
}

export async function result(root, id) {
  const answer = await ask("/api/results/" + encodeURIComponent(id));
  root.append(element("p", { class: "crumbs" }, element("a", { href: "#/gallery" }, "Claims"), " / result"), card(answer.html));
}
