// A map of values over two parameters: colours, a path and a mark over them, on uPlot's axes. Its grid is even on its axes.

import { along, spelled } from "./scales.js";
import { element, table } from "./numbers.js";
import { viridis } from "./viridis.js";

const symbol = (axis) => axis.label.split("  ")[0];

// { x, y, z, axes, path, mark } with z[i][j] at x[i], y[j]; a value that has no place on the scale of z leaves a gap.
export const map = {
  name: "map",
  grid: false,

  prepare(content) {
    const { x, y, z, axes } = content;
    const heights = z.map((row) => row.map((value) => along(value, axes.z.scale)));
    const known = heights.flat().filter((value) => value !== null);
    let low = known.reduce((a, b) => Math.min(a, b), Infinity), high = known.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!(high - low > 1e-9 * Math.max(1, Math.abs(low)))) [low, high] = [(low || 0) - 0.5, (low || 0) + 0.5];
    const key = JSON.stringify([axes, x[0], x[x.length - 1], y[0], y[y.length - 1]]);
    return { ...content, heights, low, high, data: [x, x.map(() => null)], key };
  },

  options({ x, y, axes }, colour) {
    const ends = (values) => () => [values[0], values[values.length - 1]];
    const scale = (name, values) => ({ distr: axes[name].scale === "log" ? 3 : 1, range: ends(values) });
    const content = (chart) => chart.root.closest("figure").drawn;
    return {
      scales: { x: { time: false, ...scale("x", x) }, y: scale("y", y) },
      series: [{}, {}],
      legend: { show: false },
      hooks: {
        drawClear: [(chart) => paint(chart, content(chart))],
        draw: [(chart) => overlay(chart, content(chart), colour)],
        setCursor: [(chart) => {
          const readout = chart.root.closest("figure").querySelector(".readout"), { left, top } = chart.cursor;
          if (readout) readout.textContent = left < 0 ? "" : nearest(content(chart), chart.posToVal(left, "x"), chart.posToVal(top, "y"));
        }],
      },
    };
  },

  beside({ axes, low, high }) {
    const value = (height) => spelled(axes.z.scale === "log" ? 10 ** height : height, 3);
    return [
      element("p", { class: "scale" }, axes.z.label + ": " + value(low) + " ", element("span", { class: "bar" }), " " + value(high)),
      element("p", { class: "readout" }),
    ];
  },

  sentence(name, { x, y, z, axes, path, mark }) {
    const points = z.flatMap((row, i) => row.map((value, j) => [value, x[i], y[j]])).filter(([value]) => value !== null);
    const place = ([value, a, b]) => spelled(value, 3) + " at " + symbol(axes.x) + " = " + spelled(a, 3) + ", " + symbol(axes.y) + " = " + spelled(b, 3);
    const parts = [name + ": " + axes.z.label + " over " + axes.x.label + " and " + axes.y.label];
    if (points.length) {
      const [least, largest] = [(a, b) => (b[0] < a[0] ? b : a), (a, b) => (b[0] > a[0] ? b : a)].map((choose) => points.reduce(choose));
      parts.push("least " + place(least) + ", largest " + place(largest));
    }
    if (path?.z.length) parts.push(path.label + " from " + spelled(path.z[0], 3) + " to " + spelled(path.z[path.z.length - 1], 3));
    if (mark) parts.push("mark at " + place([mark.z, mark.x, mark.y]));
    return parts.join(". ") + ".";
  },

  tables(name, { x, y, z, axes, path }) {
    const caption = name + ": " + axes.z.label + "; rows " + axes.x.label + ", columns " + axes.y.label;
    const tables = [table(caption, ["", ...y.map((value) => spelled(value, 8))], x.map((value, i) => [value, ...z[i]]))];
    if (path) tables.push(table(path.label, [axes.x.label, axes.y.label, axes.z.label], path.x.map((value, i) => [value, path.y[i], path.z[i]])));
    return tables;
  },
};

// A picture with a pixel for each point of the grid, which the browser interpolates.
function paint({ ctx, bbox }, { x, y, heights, low, high }) {
  const image = new ImageData(x.length, y.length);
  for (const [i, column] of heights.entries()) {
    for (const [j, height] of column.entries()) {
      const colour = height === null ? [0, 0, 0] : viridis((height - low) / (high - low)), alpha = height === null ? 0 : 1;
      image.data.set([...colour, alpha].map((part) => Math.round(part * 255)), 4 * ((y.length - 1 - j) * x.length + i));
    }
  }
  const canvas = new OffscreenCanvas(x.length, y.length);
  canvas.getContext("2d").putImageData(image, 0, 0);
  ctx.drawImage(canvas, 0.5, 0.5, x.length - 1, y.length - 1, bbox.left, bbox.top, bbox.width, bbox.height);
}

// The path with a white edge and a ring at its start, and the point at which the controls are.
function overlay({ ctx, bbox, valToPos }, { path, mark }, colour) {
  const ratio = window.devicePixelRatio || 1;
  const ring = (x, y, radius, fill) => {
    ctx.beginPath();
    ctx.arc(valToPos(x, "x", true), valToPos(y, "y", true), radius * ratio, 0, 2 * Math.PI);
    ctx.fillStyle = fill;
    ctx.strokeStyle = "#000000";
    ctx.lineWidth = 2 * ratio;
    ctx.fill();
    ctx.stroke();
  };
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.strokeStyle = colour.muted;
  ctx.lineWidth = ratio;
  ctx.stroke();
  ctx.clip();
  ctx.lineJoin = "round";
  for (const [stroke, width] of path ? [["#ffffff", 6.5], ["#d55e00", 3.5]] : []) {
    ctx.beginPath();
    path.x.forEach((x, i) => ctx.lineTo(valToPos(x, "x", true), valToPos(path.y[i], "y", true)));
    ctx.strokeStyle = stroke;
    ctx.lineWidth = width * ratio;
    ctx.stroke();
  }
  if (path?.x.length) ring(path.x[0], path.y[0], 4, "#ffffff");
  if (mark) ring(mark.x, mark.y, 6, "#f0e442");
  ctx.restore();
}

// The numbers at the grid point that is nearest to a place.
function nearest({ x, y, z, axes }, across, up) {
  const index = (values, scale, value) => {
    const distances = values.map((other) => Math.abs(along(other, scale) - along(value, scale)));
    return distances.indexOf(Math.min(...distances));
  };
  const i = index(x, axes.x.scale, across), j = index(y, axes.y.scale, up);
  return symbol(axes.x) + " = " + spelled(x[i], 3) + ", " + symbol(axes.y) + " = " + spelled(y[j], 3) + ": " + axes.z.label + " " + spelled(z[i][j], 4);
}
