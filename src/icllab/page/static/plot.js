// Curves on two axes, drawn by uPlot.
//
//   const plot = await curvePlot(root, "name for those who do not see it");
//   plot.draw({ curves: [{ label, x, y }], axes: { x: { label, scale }, y: { label, scale }, mark } }, points);
//   plot.restyle();    after a change of colours
//   plot.destroy();
//
// Points, which may be left out, are [{ label, x, y, error }], drawn with bars of one standard error; they may say the
// number of their colour (series), that of their shape, and what the shape stands for (kind). What is drawn is
// `plot.drawn`, and a table below the figure. Values that are null, or not positive on a logarithmic axis, leave a gap.

import { along, colours, spelled, ticks } from "./scales.js";
import { described, disclosure, element, table } from "./numbers.js";
import { uPlotLibrary } from "./vendor.js";

const DASHES = [[], [9, 4], [2, 3], [9, 3, 2, 3], [5, 5], [14, 4]];

export async function curvePlot(root, name) {
  const uPlot = await uPlotLibrary();
  const canvas = element("div", { class: "canvas", role: "img", tabindex: "0" });
  const numbers = disclosure("The numbers drawn: " + name, () => asTable(name, plot.drawn));
  const shapes = element("p", { class: "shapes", hidden: true });
  const figure = element("figure", { class: "curves" }, canvas, shapes, numbers.root);
  root.append(figure);
  let chart = null, shape = "", size = 0;

  const plot = {
    element: figure,
    drawn: null,
    draw(answer, points = []) {
      const drawn = prepared(uPlot, answer, points);
      plot.drawn = drawn;
      figure.drawn = drawn;
      const wanted = JSON.stringify([answer.axes.x, answer.axes.y, drawn.labels, drawn.points.map((one) => one.label)]);
      if (chart && wanted === shape) chart.setData(drawn.data);
      else {
        shape = wanted;
        make();
      }
      canvas.setAttribute("aria-label", sentence(name, drawn));
      shapes.textContent = key(points);
      shapes.hidden = !points.length;
      numbers.refresh();
    },
    restyle() {
      if (plot.drawn) make();
    },
    destroy() {
      watcher.disconnect();
      chart?.destroy();
      figure.remove();
    },
  };

  function make() {
    chart?.destroy();
    size = canvas.clientWidth;
    chart = new uPlot(options(plot, figure, size), plot.drawn.data, canvas);
  }

  const watcher = new ResizeObserver(() => {
    const width = canvas.clientWidth;
    if (chart && width && width !== size) {
      size = width;
      chart.setSize({ width, height: height(width) });
    }
  });
  watcher.observe(canvas);
  return plot;
}

const height = (width) => Math.round(Math.max(260, Math.min(width * 0.56, 380)));

// One x for all curves, as uPlot has it; curves of another x are joined in, with the gaps that this makes spanned.
function prepared(uPlot, { curves, axes }, points) {
  const fit = (values, scale) => values.map((value) => (along(value, scale) === null ? null : value));
  const tables = curves.map((one) => [one.x, fit(one.y, axes.y.scale)]);
  const same = curves.every((one) => one.x.length === curves[0].x.length && one.x.every((x, i) => x === curves[0].x[i]));
  const data = same ? [tables[0][0], ...tables.map((one) => one[1])] : uPlot.join(tables);
  return { data, axes, labels: curves.map((one) => one.label), points };
}

function options(plot, figure, width) {
  const colour = colours(figure), { axes, labels } = plot.drawn;
  const narrow = width < 520;
  const line = (axis, side) => ({
    side,
    stroke: colour.ink,
    grid: { stroke: colour.line, width: 1 },
    ticks: { stroke: colour.line, width: 1, size: 5 },
    font: "12px system-ui, sans-serif",
    labelFont: (narrow ? 12 : 13) + "px system-ui, sans-serif",
    label: axis.label,
    labelSize: 22,
    size: side === 3 ? (_, values) => 16 + 7 * Math.max(4, ...(values ?? []).map((value) => value.length)) : 32,
    splits: (chart, _, low, high) => ticks(low, high, axis.scale, (side === 3 ? chart.height : chart.width) / (side === 3 ? 52 : 80)),
    filter: (_, splits) => splits,
    values: (_, splits) => splits.map((value) => spelled(value, 3)),
  });
  return {
    width,
    height: height(width),
    padding: [10, narrow ? 12 : 20, 0, 0],
    scales: {
      x: { time: false, distr: axes.x.scale === "log" ? 3 : 1, range: (_, low, high) => [low, high > low ? high : low + 1] },
      y: { distr: axes.y.scale === "log" ? 3 : 1, range: () => reach(plot.drawn) },
    },
    axes: [line(axes.x, 2), line(axes.y, 3)],
    series: [
      { label: axes.x.label, value: (_, value) => (value === null ? "" : spelled(value)) },
      ...labels.map((label, i) => ({
        label,
        stroke: colour.series[i % colour.series.length],
        width: 2.25,
        pxAlign: 0,
        dash: DASHES[i % DASHES.length],
        spanGaps: false,
        points: { show: plot.drawn.data[0].length <= 40, size: 6, fill: colour.series[i % colour.series.length] },
        value: (_, value) => (value === null || value === undefined ? "" : spelled(value)),
      })),
    ],
    legend: { live: true, markers: { width: 3, dash: (_, i) => ["solid", "dashed", "dotted"][Math.min((i - 1 + DASHES.length) % DASHES.length, 2)] } },
    cursor: { drag: { x: false, y: false }, points: { size: 7 } },
    hooks: { draw: [(chart) => overlay(chart, plot.drawn, colour)] },
  };
}

// The y range: all that is drawn, points with their errors too, and a margin.
function reach({ data, points, axes }) {
  const scale = axes.y.scale;
  const values = data.slice(1).flat().concat(points.flatMap((one) => one.y.flatMap((y, i) => [y, y + (one.error?.[i] ?? 0)])));
  const found = values.map((value) => along(value, scale)).filter((value) => value !== null);
  if (!found.length) return scale === "log" ? [0.1, 10] : [0, 1];
  let low = found.reduce((a, b) => Math.min(a, b)), high = found.reduce((a, b) => Math.max(a, b));
  const flat = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
  const margin = flat ? (scale === "log" ? 0.3 : Math.abs(high) * 0.1 || 1) : (high - low) * 0.06;
  low -= margin;
  high += margin;
  return scale === "log" ? [10 ** low, 10 ** high] : [low, high];
}

// The controls' own place as a vertical line, and points with their errors.
function overlay(chart, { axes, points }, colour) {
  const { ctx, bbox } = chart, ratio = window.devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  if (axes.mark !== null && axes.mark !== undefined) {
    const x = chart.valToPos(axes.mark, "x", true);
    ctx.strokeStyle = colour.ink;
    ctx.globalAlpha = 0.55;
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
  }
  points.forEach((one, k) => {
    const own = colour.series[(one.series ?? k) % colour.series.length];
    ctx.strokeStyle = own;
    ctx.fillStyle = colour.paper;
    ctx.lineWidth = 1.6 * ratio;
    one.x.forEach((value, i) => {
      if (one.y[i] === null || along(one.y[i], axes.y.scale) === null) return;
      const x = chart.valToPos(value, "x", true), y = chart.valToPos(one.y[i], "y", true), error = one.error?.[i];
      if (error) {
        const floor = axes.y.scale === "log" ? Math.max(one.y[i] - error, one.y[i] * 1e-3) : one.y[i] - error;
        ctx.beginPath();
        ctx.moveTo(x, chart.valToPos(one.y[i] + error, "y", true));
        ctx.lineTo(x, chart.valToPos(floor, "y", true));
        ctx.stroke();
      }
      marker(ctx, one.shape ?? k, x, y, 4 * ratio);
    });
  });
  ctx.restore();
}

// Which shape is what: "○ d = 10   □ d = 20".
function key(points) {
  const kinds = new Map(points.map((one, k) => ["○□◇△"[(one.shape ?? k) % 4] + " " + (one.kind || one.label), true]));
  return [...kinds.keys()].join("   ");
}

// Circle, square, diamond, triangle: shapes besides colours.
export function marker(ctx, shape, x, y, r) {
  const corners = [[], [[-1, -1], [1, -1], [1, 1], [-1, 1]], [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]], [[0, -1.2], [1.2, 1], [-1.2, 1]]][shape % 4];
  ctx.beginPath();
  if (corners.length) corners.forEach(([dx, dy], i) => ctx[i ? "lineTo" : "moveTo"](x + dx * r, y + dy * r));
  else ctx.arc(x, y, r, 0, 2 * Math.PI);
  ctx.closePath();
  ctx.fill();
  ctx.stroke();
}

function sentence(name, { data, axes, labels, points }) {
  const each = labels.map((label, i) => described(label, data[0], data[i + 1]));
  const laid = points.map((one) => "points, " + one.label + ": " + one.x.length);
  return name + ": " + axes.y.label + " against " + axes.x.label + ". " + [...each, ...laid].join(". ") + ".";
}

function asTable(name, { data, axes, labels, points }) {
  const made = element("div", {}, table(name, [axes.x.label, ...labels], data[0].map((x, i) => [x, ...data.slice(1).map((y) => y[i])])));
  for (const one of points) {
    made.append(table(one.label, [axes.x.label, axes.y.label, "standard error"], one.x.map((x, i) => [x, one.y[i], one.error?.[i] ?? null])));
  }
  return made;
}
