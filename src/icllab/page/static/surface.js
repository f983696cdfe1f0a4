// A surface that can be turned: heights over two axes, with a path over it, a mark and points.
//
//   const figure = surfaceFigure(root, "name", { yaw, pitch }, (view) => ...);
//   figure.draw({ x, y, z, axes, path, mark }, points);
//   figure.restyle();  figure.destroy();
//
// Dragging and the arrow keys turn it, and so do the buttons. What is drawn is `figure.drawn`, and a table below it.

import { START, TALL, camera } from "./camera.js";
import { drawBox } from "./box.js";
import { canvasPainter, webglPainter } from "./mesh.js";
import { along, colours, spelled, ticks } from "./scales.js";
import { disclosure, element, table } from "./numbers.js";
import { marker } from "./plot.js";

const KEYS = { ArrowLeft: [-5, 0], ArrowRight: [5, 0], ArrowUp: [0, 5], ArrowDown: [0, -5] };
const TURNS = [["←", "turn left", [-15, 0]], ["→", "turn right", [15, 0]], ["↑", "look from higher", [0, 10]], ["↓", "look from lower", [0, -10]]];
const PATH = [[[1, 1, 1], 6.5], [[0.835, 0.369, 0], 3.5]]; // colour and width in pixels: a white edge, vermilion within

export function surfaceFigure(root, name, start, turned = () => {}) {
  const under = element("canvas", { "aria-hidden": "true" }), filled = element("canvas", { "aria-hidden": "true" });
  const over = element("canvas", { "aria-hidden": "true" });
  const stage = element("div", { class: "stage", role: "img", tabindex: "0" }, under, filled, over);
  const readout = element("p", { class: "readout" });
  const buttons = element("div", { class: "turns", role: "group", "aria-label": "turn the surface" },
    ...TURNS.map(([text, label, by]) => element("button", { type: "button", "aria-label": label, title: label, onclick: () => turn(...by, true) }, text)),
    element("button", { type: "button", onclick: () => look({ yaw: 0, pitch: 90 }) }, "from above"),
    element("button", { type: "button", onclick: () => look(START) }, "reset view"));
  const numbers = disclosure("The numbers drawn: " + name, () => asTable(name, figure.drawn));
  const whole = element("figure", { class: "surface" }, stage, element("div", { class: "below" }, buttons, readout), numbers.root);
  root.append(whole);

  const angle = { ...START, ...start };
  let painter = webglPainter(filled);
  if (!painter) {
    painter = canvasPainter(filled);
    whole.append(element("p", { class: "note" }, "This browser has no WebGL 2: the surface is drawn without contour lines."));
  }
  stage.dataset.renderer = painter.kind;
  let scene = null, view = null, waiting = 0;

  const figure = {
    element: whole,
    drawn: null,
    draw(surface, points = null) {
      figure.drawn = whole.drawn = { ...surface, points };
      scene = built(figure.drawn);
      painter.load(scene.mesh);
      stage.setAttribute("aria-label", sentence(name, figure.drawn));
      numbers.refresh();
      soon();
    },
    restyle: () => soon(),
    destroy() {
      watcher.disconnect();
      cancelAnimationFrame(waiting);
      painter.free();
      whole.remove();
    },
  };

  const soon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(paint);
  };
  const look = ({ yaw, pitch }) => {
    Object.assign(angle, { yaw, pitch });
    soon();
    turned({ ...angle });
  };
  const turn = (yaw, pitch, done) => {
    angle.yaw = ((((angle.yaw + yaw + 180) % 360) + 360) % 360) - 180;
    angle.pitch = Math.min(Math.max(angle.pitch + pitch, 0), 90);
    soon();
    if (done) turned({ ...angle });
  };

  function paint() {
    const width = stage.clientWidth, height = stage.clientHeight, ratio = Math.min(window.devicePixelRatio || 1, 2);
    if (!scene || !width || !height) return;
    for (const canvas of [under, filled, over]) {
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
      }
    }
    view = camera(width, height, angle.yaw, angle.pitch);
    const colour = colours(whole), { axes } = figure.drawn;
    const [below, above] = [under, over].map((canvas) => {
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      return context;
    });
    drawBox(below, view, axes, scene.ranges, scene.places, colour);
    painter.paint(view, PATH.map(([own, wide]) => ({ colour: own, corners: ribbon(scene.path, view, wide) })));
    drawMarks(above, view, scene, colour);
  }

  stage.addEventListener("keydown", (event) => {
    if (event.key in KEYS) turn(...KEYS[event.key], true);
    else if (event.key === "Home") look(START);
    else return;
    event.preventDefault();
  });
  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    stage.setPointerCapture(event.pointerId);
    let [x, y] = [event.clientX, event.clientY];
    const move = (next) => {
      turn((next.clientX - x) * 0.5, (next.clientY - y) * 0.4, false);
      [x, y] = [next.clientX, next.clientY];
    };
    const end = () => {
      stage.removeEventListener("pointermove", move);
      turned({ ...angle });
    };
    stage.addEventListener("pointermove", move);
    for (const kind of ["pointerup", "pointercancel"]) stage.addEventListener(kind, end, { once: true });
  });
  stage.addEventListener("pointermove", (event) => {
    if (!view || !scene || event.buttons) return;
    const frame = stage.getBoundingClientRect();
    readout.textContent = pointed(figure.drawn, scene, view, event.clientX - frame.left, event.clientY - frame.top);
  });

  const watcher = new ResizeObserver(soon);
  watcher.observe(stage);
  return figure;
}

// The surface in the box: vertices, normals and triangles; a vertex without a height has no triangle.
function built({ x, y, z, axes, path, mark, points }) {
  const scaled = { x: x.map((v) => along(v, axes.x.scale)), y: y.map((v) => along(v, axes.y.scale)) };
  const high = z.flat().map((v) => along(v, axes.z.scale));
  const others = [...(path?.z ?? []), ...(points?.z ?? [])].map((v) => along(v, axes.z.scale));
  const known = [...high, ...others].filter((v) => v !== null);
  let low = known.reduce((a, b) => Math.min(a, b), Infinity), top = known.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!known.length) [low, top] = [0, 1];
  if (top - low < 1e-9 * Math.max(1, Math.abs(low))) [low, top] = [low - 0.5, top + 0.5];
  const ends = { x: [scaled.x[0], scaled.x[x.length - 1]], y: [scaled.y[0], scaled.y[y.length - 1]], z: [low, top] };
  const into = (name, v) => (v - ends[name][0]) / (ends[name][1] - ends[name][0]);
  const places = {};
  for (const name of ["x", "y", "z"]) {
    places[name] = (value) => {
      const v = along(value, axes[name].scale);
      return v === null ? null : name === "z" ? TALL * into(name, v) : 2 * into(name, v) - 1;
    };
  }
  const [rows, columns] = [x.length, y.length];
  const spots = new Float32Array(3 * rows * columns), normals = new Float32Array(3 * rows * columns);
  const heights = new Float32Array(rows * columns);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
    const k = i * columns + j, height = high[k];
    spots.set([2 * into("x", scaled.x[i]) - 1, 2 * into("y", scaled.y[j]) - 1, height === null ? NaN : TALL * into("z", height)], 3 * k);
    heights[k] = height ?? NaN;
  }
  const slope = (k, one, other, at) => {
    const run = spots[3 * other + at] - spots[3 * one + at], rise = spots[3 * other + 2] - spots[3 * one + 2];
    return Number.isFinite(rise / run) ? rise / run : 0;
  };
  const triangles = [];
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
    const k = i * columns + j;
    const dx = slope(k, Math.max(i - 1, 0) * columns + j, Math.min(i + 1, rows - 1) * columns + j, 0);
    const dy = slope(k, i * columns + Math.max(j - 1, 0), i * columns + Math.min(j + 1, columns - 1), 1);
    const length = Math.hypot(dx, dy, 1);
    normals.set([-dx / length, -dy / length, 1 / length], 3 * k);
    if (i + 1 < rows && j + 1 < columns) {
      for (const corners of [[k, k + columns, k + 1], [k + 1, k + columns, k + columns + 1]]) {
        if (corners.every((one) => !Number.isNaN(heights[one]))) triangles.push(...corners);
      }
    }
  }
  const original = { x: [x[0], x[x.length - 1]], y: [y[0], y[y.length - 1]] };
  original.z = axes.z.scale === "log" ? [10 ** low, 10 ** top] : [low, top];
  const marks = ticks(...original.z, axes.z.scale, 8).map((v) => along(v, axes.z.scale));
  const spacing = axes.z.scale === "log" ? (top - low > 2 ? 0.25 : (top - low) / 10) : marks.length > 1 ? (marks[1] - marks[0]) / 2 : 1;
  const mesh = { points: spots, normals, heights, triangles: new Uint32Array(triangles), low, high: top, spacing };
  const place = (one) => [places.x(one[0]), places.y(one[1]), places.z(one[2])];
  const list = (of) => (of ? of.x.map((_, i) => place([of.x[i], of.y[i], of.z[i]])).filter((p) => !p.includes(null)) : []);
  const spot = mark ? place([mark.x, mark.y, mark.z]) : null;
  return { mesh, places, ranges: original, path: list(path), points: list(points), mark: spot && !spot.includes(null) ? spot : null };
}

// A line of a width as triangles, in pixels and depth.
function ribbon(path, view, width) {
  const seen = path.map((point) => view.project(...point)), corners = [];
  let last = seen[0];
  for (const next of seen.slice(1)) {
    const [dx, dy] = [next[0] - last[0], next[1] - last[1]], length = Math.hypot(dx, dy);
    if (length < 0.7 && next !== seen[seen.length - 1]) continue;
    const [px, py] = length ? [(-dy / length) * (width / 2), (dx / length) * (width / 2)] : [0, 0];
    const [ex, ey] = length ? [(dx / length) * width * 0.25, (dy / length) * width * 0.25] : [0, 0];
    const a = [last[0] + px - ex, last[1] + py - ey, last[2]], b = [last[0] - px - ex, last[1] - py - ey, last[2]];
    const c = [next[0] + px + ex, next[1] + py + ey, next[2]], d = [next[0] - px + ex, next[1] - py + ey, next[2]];
    corners.push(...a, ...b, ...c, ...c, ...b, ...d);
    last = next;
  }
  return corners;
}

function drawMarks(context, view, { path, mark, points }, colour) {
  const ring = (place, radius, fill) => {
    const [x, y] = view.project(...place);
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fillStyle = fill;
    context.fill();
    context.stroke();
    return [x, y];
  };
  context.lineWidth = 2;
  context.strokeStyle = "#000000";
  if (path.length) ring(path[0], 4, "#ffffff");
  for (const point of points) {
    const [x, y] = view.project(...point);
    context.fillStyle = "#ffffff";
    marker(context, 2, x, y, 5);
  }
  if (!mark) return;
  const [x, y] = view.project(...mark), [, floor] = view.project(mark[0], mark[1], 0);
  context.lineWidth = 1;
  context.strokeStyle = colour.ink;
  context.setLineDash([3, 3]);
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x, floor);
  context.stroke();
  context.setLineDash([]);
  context.lineWidth = 2;
  context.strokeStyle = "#000000";
  ring(mark, 6, "#f0e442");
}

// The numbers at the vertex under the pointer, of those near it the one nearest to the viewer.
function pointed({ x, y, z, axes }, { mesh }, view, px, py) {
  let found = -1, nearest = Infinity;
  for (let k = 0; k < mesh.heights.length; k++) {
    if (Number.isNaN(mesh.heights[k])) continue;
    const [sx, sy, depth] = view.project(mesh.points[3 * k], mesh.points[3 * k + 1], mesh.points[3 * k + 2]);
    const off = Math.hypot(sx - px, sy - py);
    if (off < 14 && depth + off / 40 < nearest) [found, nearest] = [k, depth + off / 40];
  }
  if (found < 0) return "";
  const i = Math.floor(found / y.length), j = found % y.length;
  const symbol = (axis) => axis.label.split("  ")[0];
  return symbol(axes.x) + " = " + spelled(x[i], 3) + ", " + symbol(axes.y) + " = " + spelled(y[j], 3) + ": " + axes.z.label + " " + spelled(z[i][j], 4);
}

function sentence(name, { x, y, z, axes, path, mark, points }) {
  let least = null, most = null;
  z.forEach((row, i) => row.forEach((height, j) => {
    if (height === null) return;
    if (!least || height < least[0]) least = [height, x[i], y[j]];
    if (!most || height > most[0]) most = [height, x[i], y[j]];
  }));
  const symbol = (axis) => axis.label.split("  ")[0];
  const say = ([height, at, other]) => spelled(height, 3) + " at " + symbol(axes.x) + " = " + spelled(at, 3) + ", " + symbol(axes.y) + " = " + spelled(other, 3);
  const parts = [name + ": " + axes.z.label + " over " + axes.x.label + " and " + axes.y.label];
  if (least) parts.push("least " + say(least) + ", largest " + say(most));
  if (path?.z.length) parts.push(path.label + " from " + spelled(path.z[0], 3) + " to " + spelled(path.z[path.z.length - 1], 3));
  if (mark) parts.push("mark at " + say([mark.z, mark.x, mark.y]));
  if (points?.x.length) parts.push(points.x.length + " points of a stored result");
  return parts.join(". ") + ". Arrow keys turn it.";
}

function asTable(name, { x, y, z, axes, path, points }) {
  const made = element("div", {}, table(name + ": " + axes.z.label + "; rows " + axes.x.label + ", columns " + axes.y.label,
    ["", ...y.map((value) => spelled(value, 8))], x.map((value, i) => [value, ...z[i]])));
  for (const [label, of] of [[path?.label, path], ["stored result", points]]) {
    if (of?.x.length) made.append(table(label, [axes.x.label, axes.y.label, axes.z.label], of.x.map((value, i) => [value, of.y[i], of.z[i]])));
  }
  return made;
}
