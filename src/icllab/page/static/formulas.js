// Formulas, rendered by KaTeX in the page's own fonts. Its styles are set by script: the policy allows none in HTML.

import { element } from "./numbers.js";

const OPTIONS = { throwOnError: false, trust: false, strict: "ignore", maxExpand: 200, maxSize: 20 };

// Formulas in plain text: TeX between dollars; or letters, numbers and spelled Greek, such as n = d(d+1) or n beta/gamma.
const GREEK = "alpha|beta|gamma|[dD]elta|epsilon|eta|theta|kappa|[lL]ambda|mu|nu|xi|pi|rho|[sS]igma|tau|phi|chi|psi|[oO]mega";
const POWER = "(?:\\^(?:-?\\d+|\\w|\\([^()\\s]+\\)))?";
const ATOM = "(?:(?:n?(?:" + GREEK + ")|log|ln|\\d+(?:,\\d{3})*(?:\\.\\d+)?(?:e\\d+)?|[A-Za-z])(?![A-Za-z])(?:_\\w)?\\*?" + POWER + ")";
const JOIN = "(?: ?(?:<=|>=|[=<>+/-]) ?|(?<!\\b[aA]) (?=log |ln |n?(?:" + GREEK + ")\\b)|(?<=\\b(?:log|ln|" + GREEK + ")) (?!a ))";
const GROUP = "(?:" + ATOM + "?\\(" + ATOM + "(?:" + JOIN + ATOM + ")*\\)" + POWER + "|" + ATOM + ")";
const FORMULA = new RegExp("\\$(?! )([^$]+?)(?<! )\\$(?!\\d)|(?<![\\w'’.^(/-])(" + GROUP + "(?:" + JOIN + GROUP + ")*)(?![\\w'’(*^₀-₉])(?: to infinity\\b)?", "g");
const SIGN = new RegExp("[=<>^/(]|\\b(?:n?(?:" + GREEK + "))\\b");

function tex(text) {
  return text.replace(/<=/g, "\\le ").replace(/>=/g, "\\ge ").replace(/\*/g, "^*").replace(/,/g, "{,}").replace(/\^\(([^()]+)\)/g, "^{$1}").replace(/\^(-?\d+)/g, "^{$1}")
    .replace(new RegExp("\\bn(?=(?:" + GREEK + ")\\b)", "g"), "n ").replace(new RegExp("\\b(" + GREEK + "|log|ln)\\b", "g"), "\\$1 ")
    .replace(/(\d)e(\d+)/g, (_, mantissa, power) => (mantissa === "1" ? "" : mantissa + "\\cdot ") + "10^{" + power + "}").replace(" to infinity", "\\to\\infty");
}

export function formula(source, displayMode = false) {
  const root = element("span", { class: displayMode ? "math display" : "math" });
  if (!window.katex) root.textContent = source;
  else root.innerHTML = window.katex.renderToString(source, { ...OPTIONS, displayMode }).replaceAll(' style="', ' data-style="');
  for (const node of root.querySelectorAll("[data-style]")) {
    node.style.cssText = node.dataset.style;
    delete node.dataset.style;
  }
  return root;
}

// Move the punctuation after a formula into its element, in which no line breaks; the rest of the text.
function glued(node, after) {
  const mark = /^[,.;:)]*/.exec(after)[0];
  node.append(mark);
  return after.slice(mark.length);
}

// The text as nodes, its formulas rendered.
export function withFormulas(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(FORMULA)) {
    const limit = /^[a-z] to infinity$/.test(match[0]);
    if (!match[1] && !limit && !(SIGN.test(match[2]) && /[A-Za-z]/.test(match[2]))) continue;
    const rest = match[1] || limit ? match[0] : match[2], node = formula(match[1] ?? tex(rest));
    nodes.push(text.slice(end, match.index), node);
    end = text.length - glued(node, text.slice(match.index + rest.length)).length;
  }
  return [...nodes, text.slice(end)];
}

// Render the formulas in HTML of the server, and those in its sentences.
export function typeset(root) {
  for (const node of root.querySelectorAll(".math[data-tex]")) {
    const made = formula(node.dataset.tex, "display" in node.dataset), after = node.nextSibling;
    if (after?.nodeType === Node.TEXT_NODE) after.data = glued(made, after.data);
    node.replaceWith(made);
  }
  for (const node of root.querySelectorAll(".tile h3 a, .claim h1, .sentence, .conditions, .controls li, .findings td, .background p")) {
    for (const child of [...node.childNodes]) if (child.nodeType === Node.TEXT_NODE) child.replaceWith(...withFormulas(child.data));
  }
}
