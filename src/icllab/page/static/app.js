// The views by the part of the address after #, the colours, and the number of runs.

import { element } from "./numbers.js";
import { follow } from "./server.js";

const main = document.getElementById("main");
const views = {
  claims: (root, parts) => import("./gallery.js").then((view) => (parts.length ? view.claim(root, parts.join("/")) : view.list(root))),
  explore: (root, [id]) => import("./explore.js").then((view) => (id ? view.show(root, id) : view.list(root))),
  prompt: (root) => import("./prompt.js").then((view) => view.show(root)),
  runs: (root) => import("./runs.js").then((view) => view.list(root)),
};
const renamed = { gallery: "claims", claim: "claims" }; // addresses of version 0.3
let leave = null, turn = 0;

async function show() {
  const [name = "claims", ...parts] = decodeURI(location.hash.replace(/^#\/?/, "").split("?")[0]).split("/").filter(Boolean);
  const view = renamed[name] ?? name;
  const current = ++turn;
  leave?.();
  leave = null;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const root = element("div", { class: "view view-" + view });
  main.replaceChildren(root);
  main.setAttribute("aria-busy", "true");
  try {
    if (!views[view]) throw new Error("This page has no view " + name + ". The links above lead to its views.");
    const end = await views[view](root, parts);
    if (current === turn) leave = end;
    else end?.();
  } catch (error) {
    root.append(element("p", { class: "fault", role: "alert" }, error.message));
  }
  if (current !== turn) return;
  main.removeAttribute("aria-busy");
  const title = root.querySelector("h1")?.textContent;
  document.title = (title ? title + " – " : "") + "icl-lab";
  window.scrollTo(0, 0);
}

const toggle = document.getElementById("theme"), system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const label = () => (toggle.textContent = dark() ? "Light" : "Dark");
toggle.addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  localStorage.setItem("icl-lab theme", document.documentElement.dataset.theme);
  label();
});
system.addEventListener("change", label);
label();

const counter = document.getElementById("run-count");
follow((runs) => {
  const count = runs.filter((run) => run.ended === null).length;
  counter.textContent = count ? " " + count : "";
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy"), status = document.getElementById("status");
  if (!button) return;
  navigator.clipboard?.writeText(button.parentElement.querySelector("code").textContent).then(
    () => (status.textContent = "Copied."),
    () => (status.textContent = "The browser does not let this page copy."),
  );
});

window.addEventListener("hashchange", show);
show();
