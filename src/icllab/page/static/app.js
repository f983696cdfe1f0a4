// The page's views by the part of the address after #, its colours, and what it says to those who listen.

import { element } from "./numbers.js";
import { follow } from "./server.js";

const main = document.getElementById("main");
const views = {
  gallery: (root, rest) => import("./gallery.js").then((view) => view.list(root, rest)),
  claim: (root, rest) => import("./gallery.js").then((view) => view.claim(root, rest.join("/"))),
  result: (root, [id]) => import("./gallery.js").then((view) => view.result(root, id)),
  explore: (root, [id]) => import("./explore.js").then((view) => (id ? view.show(root, id) : view.list(root))),
  runs: (root, rest) => import("./runs.js").then((view) => view.list(root, rest)),
};
const parents = { claim: "gallery", result: "gallery" };
let leave = null, turn = 0;

async function show() {
  const [name, ...rest] = decodeURI(location.hash.replace(/^#\/?/, "")).split(/[/?]/).filter(Boolean);
  const view = name ?? "gallery", own = ++turn;
  if (typeof leave === "function") leave();
  leave = null;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.dataset.view === (parents[view] ?? view);
    link.toggleAttribute("aria-current", here);
    if (here) link.setAttribute("aria-current", "page");
  }
  const root = element("div", { class: "view view-" + view });
  main.replaceChildren(root);
  main.setAttribute("aria-busy", "true");
  try {
    if (!views[view]) throw new Error("There is no view " + view + ".");
    const done = await views[view](root, rest);
    if (own === turn) leave = done ?? null;
    else if (typeof done === "function") done();
  } catch (error) {
    if (own === turn) root.append(element("p", { class: "fault", role: "alert" }, error.message));
  }
  if (own !== turn) return;
  main.removeAttribute("aria-busy");
  const title = root.querySelector("h1")?.textContent;
  document.title = (title ? title + " – " : "") + "icl-lab";
  window.scrollTo(0, 0);
}

const toggle = document.getElementById("theme");
const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const labelled = () => (toggle.textContent = dark() ? "Light" : "Dark");
toggle.addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
  labelled();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", labelled);
labelled();

const going = document.getElementById("going");
follow((state) => {
  const count = state.runs.filter((run) => run.state === "running" || run.state === "queued").length;
  going.textContent = count ? " " + count : "";
  going.hidden = !count;
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  navigator.clipboard?.writeText(button.parentElement.querySelector("code").textContent).then(
    () => (document.getElementById("said").textContent = "Copied."),
    () => (document.getElementById("said").textContent = "The browser does not let this page copy."),
  );
});

window.addEventListener("hashchange", show);
show();
