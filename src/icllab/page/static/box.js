// The box about a surface: walls with grid lines, ticks, titles, and the scale of colours; drawn on a plain canvas.

import { TALL, backs } from "./camera.js";
import { spelled, ticks } from "./scales.js";
import { viridis } from "./viridis.js";

// `places` maps a value of each axis into the box; `ranges` are the ends of the axes.
export function drawBox(context, view, axes, ranges, places, colour) {
  const back = backs(view), front = { x: -back.x, y: -back.y };
  const side = view.pitch < 78;
  const marks = {};
  for (const name of ["x", "y", "z"]) marks[name] = ticks(...ranges[name], axes[name].scale, view.scale / (name === "z" ? 26 : view.narrow ? 18 : 28));
  context.lineWidth = 1;
  context.strokeStyle = colour.line;
  const stroke = (points) => {
    context.beginPath();
    points.forEach((point, i) => context[i ? "lineTo" : "moveTo"](...view.project(...point).slice(0, 2)));
    context.stroke();
  };
  for (const value of marks.x) {
    const x = places.x(value);
    stroke([[x, front.y, 0], [x, back.y, 0], ...(side ? [[x, back.y, TALL]] : [])]);
  }
  for (const value of marks.y) {
    const y = places.y(value);
    stroke([[front.x, y, 0], [back.x, y, 0], ...(side ? [[back.x, y, TALL]] : [])]);
  }
  if (side) for (const value of marks.z) {
    const z = places.z(value);
    stroke([[front.x, back.y, z], [back.x, back.y, z], [back.x, front.y, z]]);
  }
  if (side) stroke([[front.x, back.y, 0], [front.x, back.y, TALL], [back.x, back.y, TALL], [back.x, front.y, TALL], [back.x, front.y, 0]]);
  context.strokeStyle = colour.muted;
  stroke([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0], [-1, -1, 0]]);
  context.fillStyle = colour.ink;
  context.textBaseline = "middle";
  edge(context, view, marks.x.map((value) => [value, places.x(value), front.y]), [0, front.y], axes.x.label);
  edge(context, view, marks.y.map((value) => [value, front.x, places.y(value)]), [front.x, 0], axes.y.label);
  if (side) height(context, view, marks.z, places.z, axes.z.label, colour);
  bar(context, view, ranges.z, marks.z, places.z, colour, side ? "" : axes.z.label);
}

// Tick labels and the title of an edge at the floor, outside of the box.
function edge(context, view, marks, middle, title) {
  const [cx, cy] = view.project(0, 0, 0), [mx, my] = view.project(...middle, 0);
  const away = Math.hypot(mx - cx, my - cy) || 1;
  const [dx, dy] = [(mx - cx) / away, Math.max((my - cy) / away, 0.45)];
  context.font = "12px system-ui, sans-serif";
  context.textAlign = dx > 0.35 ? "left" : dx < -0.35 ? "right" : "center";
  for (const [value, x, y] of marks) {
    const [px, py] = view.project(x, y, 0);
    context.fillText(spelled(value, 3), px + dx * 9, py + dy * 12);
  }
  context.font = "13px system-ui, sans-serif";
  if (view.narrow) title = title.split("  ")[0];
  const wide = context.measureText(title).width;
  let left = mx + dx * 52 - (dx > 0.35 ? 0 : dx < -0.35 ? wide : wide / 2);
  left = Math.min(Math.max(left, 4), view.width - wide - 4);
  const lowest = Math.max(...marks.map(([, x, y]) => view.project(x, y, 0)[1]));
  context.textAlign = "left";
  context.fillText(title, left, Math.min(Math.max(my + dy * 46, lowest - 30), view.height - 10));
}

// Ticks and title of the height, at the corner that is farthest left.
function height(context, view, marks, place, title, colour) {
  const corners = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
  const corner = corners.reduce((a, b) => (view.project(...b, 0)[0] < view.project(...a, 0)[0] ? b : a));
  context.strokeStyle = colour.muted;
  context.beginPath();
  context.moveTo(...view.project(...corner, 0).slice(0, 2));
  context.lineTo(...view.project(...corner, TALL).slice(0, 2));
  context.stroke();
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "right";
  for (const value of marks) {
    const [px, py] = view.project(...corner, place(value));
    context.fillText(spelled(value, 3), px - 7, py);
  }
  const [px, py] = view.project(...corner, TALL);
  context.font = "13px system-ui, sans-serif";
  context.textAlign = "left";
  context.fillText(title, Math.max(px + 14 - context.measureText(title).width, 4), Math.max(py - 18, 10));
}

function bar(context, view, range, marks, place, colour, title) {
  const tall = Math.round(view.height * 0.36), left = view.width - (view.narrow ? 46 : 62), top = 14;
  for (let i = 0; i < tall; i++) {
    context.fillStyle = "rgb(" + viridis(1 - i / (tall - 1)).map((part) => Math.round(part * 255)).join(",") + ")";
    context.fillRect(left, top + i, 11, 1.5);
  }
  context.fillStyle = colour.ink;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  let last = Infinity;
  for (const value of marks) {
    const y = top + tall * (1 - place(value) / TALL);
    if (last - y < 13) continue;
    context.fillText(spelled(value, 3), left + 15, y);
    last = y;
  }
  if (title) {
    context.font = "13px system-ui, sans-serif";
    context.textAlign = "right";
    context.fillText(title, left - 10, top + 6);
  }
}
