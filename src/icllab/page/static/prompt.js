// A prompt: the loss of every token with and without its context, and the tokens that a head attends to.
//
//   const leave = await show(root);    the values of the controls are in the address, #/prompt?model=...&text=...
//
// At most one request is under way; of later ones only the newest is sent. The last answer is `root.prompt`, and
// `root.dataset.answered` counts the answers.

import { element, disclosure, table } from "./numbers.js";
import { curves, figure } from "./plot.js";
import { colours, followColours } from "./scales.js";
import { prompts } from "./server.js";
import { viridis } from "./viridis.js";

const PAUSE = 400; // milliseconds without a key, before a text is read
const LARGEST = 6; // nats that have the strongest colour
const KINDS = { copy: "what followed an earlier copy", previous: "the previous token" };
const ABOUT = "The loss of a token is −ln of the probability that a language model gives to it, in nats: with context, given all tokens before it; " +
  "without, given only the last few of these, as a text of their own. The first token has no loss.";

const seen = (token) => token.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
const quoted = (token) => "“" + seen(token) + "”";
const nats = (value) => Number(value).toFixed(2);

export async function show(root, source = prompts) {
  const problem = element("p", { class: "problem", role: "alert", hidden: true }), status = element("p", { class: "note", role: "status" });
  const view = element("div", { class: "explorer prompt" }, source.inAddress ? element("h1", {}, "A prompt, token by token") : null, element("p", { class: "about" }, ABOUT), problem);
  const report = (message) => {
    problem.textContent = message;
    problem.hidden = !message;
  };
  root.replaceChildren(view);
  const { models, texts, sizes, missing } = await source.models();
  if (missing) view.append(element("p", { class: "note" }, missing));
  if (missing) return () => root.replaceChildren();

  const address = new URLSearchParams(source.inAddress ? location.hash.split("?")[1] ?? "" : ""), number = (name) => (/^\d+$/.test(address.get(name) ?? "") ? Number(address.get(name)) : null);
  const values = { model: address.get("model"), text: address.get("text") ?? Object.values(texts)[0], size: number("size"), block: number("block"), head: number("head") };
  if (!models.includes(values.model)) values.model = models[0];
  if (!sizes.includes(values.size)) values.size = sizes[0];
  let answer = null, selected = Infinity, busy = false, next = false, timer = 0, answered = 0, gone = false;

  const options = (pairs) => pairs.map(([value, label]) => element("option", { value }, label));
  const menus = {};
  const menu = (name, label, pairs, pick) => {
    menus[name] = element("select", { name, onchange: () => pick(menus[name].value) }, ...options(pairs));
    return element("label", {}, element("span", {}, label), menus[name]);
  };
  const form = (...parts) => element("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, ...parts);
  const text = element("textarea", { rows: 3, maxlength: 4096, spellcheck: "false", "aria-label": "Text", readonly: !source.inAddress, oninput: () => ask({ text: text.value }, PAUSE) });
  const strip = element("div", { class: "tokens", role: "group", "aria-label": "Tokens; arrow keys move" }), readout = element("p", { class: "readout", role: "status" });
  const losses = element("section", { "aria-label": "Losses" }), canvas = element("canvas", { role: "img" }), suggestions = element("p", { class: "note" });
  const pattern = element("section", { "aria-label": "Attention pattern" },
    form(menu("block", "Block", [], (i) => ask({ block: Number(i) })), menu("head", "Head", [], (i) => ask({ head: Number(i) }))), suggestions, canvas,
    element("p", { class: "scale" }, "rows attend to columns: 0", element("span", { class: "bar" }), "1"));
  const result = element("div", { class: "result", hidden: true },
    element("p", { class: "scale" }, "context costs " + LARGEST, element("span", { class: "bar differences" }), "saves " + LARGEST + " nats"), strip, readout,
    element("div", { class: "pair" }, losses, pattern));
  view.append(
    form(menu("model", "Model", models.map((name) => [name, name]), (model) => ask({ model, block: null, head: null })),
      menu("example", "Example", [...Object.entries(texts).map(([name, content]) => [content, name]), ...(source.inAddress ? [["", "typed below"]] : [])], (content) => (content ? ask({ text: content }) : text.select())),
      menu("size", "Without context: given", sizes.map((k) => [k, k === 1 ? "1 token" : k + " tokens"]), (k) => ask({ size: Number(k) }))),
    text, status, problem, result);
  const plot = figure(losses, "Losses of the tokens", curves), numbers = disclosure("The numbers: every token", rows);
  losses.append(numbers.root);

  function ask(changes, pause = 0) {
    Object.assign(values, changes);
    refresh();
    clearTimeout(timer);
    timer = setTimeout(() => {
      const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null));
      if (source.inAddress) history.replaceState(history.state, "", "#/prompt?" + query);
      next = true;
      if (!busy) run();
    }, pause);
  }

  async function run() {
    busy = true;
    while (next && !gone) {
      next = false;
      result.classList.add("old");
      status.textContent = answer ? "Reading…" : "Reading… The first text of a large model may take half a minute.";
      try {
        const latest = await source.read({ ...values });
        if (gone) return;
        answer = latest;
        if (!next && values.block === null) Object.assign(values, { block: answer.block, head: answer.head });
        result.hidden = false;
        result.classList.remove("old");
        report("");
        draw();
      } catch (error) {
        if (!answer) Object.assign(values, { block: null, head: null }); // an address may name a head that is none
        report(error.message);
      }
      status.textContent = "";
      root.prompt = answer;
      root.dataset.answered = String(++answered);
    }
    busy = false;
  }

  function refresh() {
    if (text.value !== values.text) text.value = values.text;
    const example = Object.values(texts).includes(values.text) ? values.text : "";
    for (const [name, select] of Object.entries(menus)) select.value = String({ ...values, example }[name]);
  }

  const saved = (i) => answer.alone[i] - answer.loss[i];
  const buttons = () => [...strip.querySelectorAll("button")];
  const attended = (i) => [...answer.pattern[i].entries()].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([j]) => weighted(i, j)).join(", ");
  const weighted = (i, j) => nats(answer.pattern[i][j]) + " to " + quoted(answer.tokens[j]) + " (" + j + ")";

  function draw() {
    const { tokens, blocks, heads, scores } = answer;
    strip.replaceChildren(...tokens.flatMap((token, i) => {
      const button = element("button", { type: "button", class: "token", "data-sign": i && saved(i) < 0 ? "costs" : "saves", "aria-label": quoted(token) + (i ? ", the context saves " + nats(saved(i)) : ""),
        onfocus: () => choose(i), onclick: () => choose(i), onpointerenter: () => look(i) }, seen(token));
      button.style.setProperty("--share", i ? Math.min(Math.abs(saved(i)) / LARGEST, 1) : 0);
      return token.endsWith("\n") ? [button, element("br")] : [button];
    }));
    for (const [name, count] of [["block", blocks], ["head", heads]]) menus[name].replaceChildren(...options(Array.from({ length: count }, (_, i) => [i, i])));
    refresh();
    suggestions.replaceChildren("Largest mean attention", ...Object.entries(scores).flatMap(([kind, [block, head, weight]], i) => [
      (i ? "; " : " ") + "to " + KINDS[kind] + ": " + nats(weight) + " of ", element("button", { type: "button", class: "quiet", onclick: () => ask({ block, head }) }, block + "." + head)]), ".");
    numbers.refresh();
    choose(Math.min(selected, tokens.length - 1));
  }

  // The token that stays chosen, and the one under the pointer.
  function choose(i) {
    selected = i;
    for (const [j, button] of buttons().entries()) button.tabIndex = j === i ? 0 : -1;
    const [x, ...y] = [answer.loss.map((_, j) => j), answer.loss, answer.alone].map((column) => column.slice(1)), labels = ["given all tokens before", "given " + menus.size.selectedOptions[0].text];
    plot.draw({ curves: labels.map((label, k) => ({ label, x, y: y[k] })), axes: { x: { label: "token, by position", scale: "linear" }, y: { label: "loss in nats", scale: "linear" }, mark: i } });
    look(i);
  }

  function look(i, j = null) {
    const { tokens, loss, alone } = answer, name = "head " + answer.block + "." + answer.head;
    for (const [k, button] of buttons().entries()) {
      button.style.setProperty("--attention", answer.pattern[i][k] ?? 0);
      button.classList.toggle("looking", k === i);
    }
    const change = i ? nats(loss[i]) + " nats with context, " + nats(alone[i]) + " without: it " + (saved(i) < 0 ? "costs " : "saves ") + nats(Math.abs(saved(i))) : "no loss";
    readout.textContent = quoted(tokens[i]) + " (" + i + "): " + change + ". From here " + name + " attends " + (j === null ? attended(i) : weighted(i, j)) + ".";
    canvas.setAttribute("aria-label", "Attention pattern of " + name + "; from " + quoted(tokens[i]) + " " + attended(i));
    paint(canvas, answer, i);
  }

  function rows() {
    const of = answer.tokens.map((token, i) => [String(i), quoted(token), ...[answer.loss[i], answer.alone[i], saved(i)].map((value) => (i ? nats(value) : "")), attended(i)]);
    return table("Losses in nats; attention of head " + answer.block + "." + answer.head, ["", "token", "with", "without", "saved", "attends"], of);
  }

  strip.addEventListener("keydown", (event) => {
    const last = answer.tokens.length - 1, to = { ArrowLeft: selected - 1, ArrowRight: selected + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    buttons()[Math.min(Math.max(to, 0), last)].focus();
  });
  const cell = ({ offsetX, offsetY }) => {
    const { left, top, size } = canvas.cells, [i, j] = [(offsetY - top) / size, (offsetX - left) / size].map(Math.floor);
    return j >= 0 && j <= i && i < answer.tokens.length ? [i, j] : [selected];
  };
  canvas.addEventListener("pointermove", (event) => look(...cell(event)));
  canvas.addEventListener("click", (event) => choose(cell(event)[0]));
  for (const part of [strip, canvas]) part.addEventListener("pointerleave", () => look(selected));

  const widths = new ResizeObserver(() => answer && paint(canvas, answer, selected)), unfollow = followColours(() => answer && look(selected));
  widths.observe(pattern);
  ask({});
  return () => {
    gone = true;
    clearTimeout(timer);
    widths.disconnect();
    unfollow();
    plot.destroy();
    root.replaceChildren();
  };
}

// Rows attend, columns are attended to; labels where there is room for them, and a frame around one row.
function paint(canvas, { tokens, pattern }, row) {
  const ratio = window.devicePixelRatio || 1, n = tokens.length, width = canvas.parentElement.clientWidth, colour = colours(canvas), context = canvas.getContext("2d");
  const labels = tokens.map((token) => (seen(token).length > 11 ? seen(token).slice(0, 10) + "…" : seen(token)).trim() || "␣");
  const font = "11px system-ui, sans-serif";
  context.font = font;
  const margin = 6 + Math.max(...labels.map((label) => context.measureText(label).width)), size = Math.max(Math.min((width - margin - 2) / n, 26), 1), side = margin + size * n + 2, top = 6;
  canvas.cells = { left: margin, top, size };
  [canvas.width, canvas.height] = [side * ratio, (side + top) * ratio];
  [canvas.style.width, canvas.style.height] = [side + "px", side + top + "px"];
  context.scale(ratio, ratio);
  for (const [i, weights] of pattern.entries()) {
    for (const [j, weight] of weights.entries()) {
      context.fillStyle = "rgb(" + viridis(weight).map((part) => Math.round(part * 255)).join(" ") + ")";
      context.fillRect(margin + j * size, top + i * size, size + 0.5, size + 0.5);
    }
  }
  Object.assign(context, { font, fillStyle: colour.ink, strokeStyle: colour.series[1], lineWidth: 2, textAlign: "right", textBaseline: "middle" });
  context.strokeRect(margin, top + row * size, (row + 1) * size, size);
  for (let i = 0; i < n; i += Math.ceil(11 / size)) {
    context.fillText(labels[i], margin - 4, top + (i + 0.5) * size);
    context.save();
    context.translate(margin + (i + 0.5) * size, top + 4 + n * size);
    context.rotate(-Math.PI / 2);
    context.fillText(labels[i], 0, 0);
    context.restore();
  }
}
