// Figures with two axes, drawn by uPlot: curves, and maps of values over two parameters.
//
//   const plot = figure(root, "name for a screen reader", kind);    kind: curves, or map of map.js
//   plot.draw(content);    content of an answer
//   plot.destroy();
//
// A kind has `prepare(content)` -> what is drawn, with `axes`, the uPlot `data`, a `key` that changes whenever the chart
// must be made anew, and `sentence` and `tables` for its text alternatives; `options(drawn, colour)` for uPlot; and
// optionally `beside(drawn)`, elements below the chart. `root.querySelector("figure").drawn` is what is drawn.

import { along, colours, followColours, spelled, ticks } from "./scales.js";
import { described, disclosure, element, table } from "./numbers.js";

const DASHES = [[], [9, 4], [2, 3], [9, 3, 2, 3], [5, 5], [14, 4]];
const MARKERS = ["solid", "dashed", "dotted", "dotted", "dotted", "dotted"];

export function figure(root, name, kind) {
  const canvas = element("div", { class: "canvas", role: "img", tabindex: "0" }), beside = element("div", { class: "beside" });
  const numbers = disclosure("The numbers drawn: " + name, () => element("div", {}, ...kind.tables(name, frame.drawn)));
  const frame = element("figure", { class: kind.name }, canvas, beside, numbers.root);
  root.append(frame);
  let chart = null, key = "", width = 0;

  function make() {
    chart?.destroy();
    width = canvas.clientWidth;
    const { axes, data } = frame.drawn, colour = colours(frame), special = kind.options(frame.drawn, colour);
    const options = {
      ...size(width),
      padding: [10, 20, 0, 0],
      axes: [axisOptions(axes.x, 2, colour, width, kind.grid), axisOptions(axes.y, 3, colour, width, kind.grid)],
      ...special,
      cursor: { drag: { x: false, y: false }, points: { size: 7 }, ...special.cursor },
    };
    chart = new window.uPlot(options, data, canvas);
  }

  const observer = new ResizeObserver(() => {
    if (!chart || !canvas.clientWidth || canvas.clientWidth === width) return;
    width = canvas.clientWidth;
    chart.setSize(size(width));
  });
  observer.observe(canvas);
  const unfollow = followColours(() => frame.drawn && make());

  return {
    draw(content) {
      const drawn = (frame.drawn = kind.prepare(content));
      if (chart && drawn.key === key) chart.setData(drawn.data);
      else make();
      key = drawn.key;
      canvas.setAttribute("aria-label", kind.sentence(name, drawn));
      beside.replaceChildren(...(kind.beside?.(drawn) ?? []));
      numbers.refresh();
    },
    destroy() {
      unfollow();
      observer.disconnect();
      chart?.destroy();
      frame.remove();
    },
  };
}

const size = (width) => ({ width, height: Math.round(Math.max(200, Math.min(width * 0.56, 380))) });

function axisOptions(axis, side, colour, width, grid) {
  return {
    side,
    stroke: colour.ink,
    grid: { show: grid, stroke: colour.line, width: 1 },
    ticks: { stroke: colour.line, width: 1, size: 5 },
    font: "12px system-ui, sans-serif",
    labelFont: (width < 520 ? 12 : 13) + "px system-ui, sans-serif",
    label: side === 3 && width < 360 ? axis.label.split("  ")[0] : axis.label,
    labelSize: 22,
    size: side === 3 ? (_, values) => 16 + 7 * Math.max(4, ...(values ?? []).map((value) => value.length)) : 32,
    splits: (chart, _, low, high) => ticks(low, high, axis.scale, (side === 3 ? chart.height : chart.width) / (side === 3 ? 52 : 80)),
    filter: (_, splits) => splits,
    values: (_, splits) => splits.map((value) => spelled(value, 3)),
  };
}

// [{ label, x, y }] over one x axis; a null, or a value <= 0 on a logarithmic axis, leaves a gap.
export const curves = {
  name: "curves",
  grid: true,

  prepare({ curves, axes }) {
    const data = [curves[0].x, ...curves.map(({ y }) => y.map((value) => (along(value, axes.y.scale) === null ? null : value)))];
    const labels = curves.map((curve) => curve.label);
    return { data, axes, labels, key: JSON.stringify([axes.x, axes.y, labels]) };
  },

  options(drawn, colour) {
    const value = (_, number) => (number === null || number === undefined ? "" : spelled(number));
    const series = drawn.labels.map((label, i) => ({
      label,
      value,
      stroke: colour.series[i % colour.series.length],
      width: 2.25,
      pxAlign: 0,
      dash: DASHES[i % DASHES.length],
      points: { show: drawn.data[0].length <= 20, size: 6, fill: colour.series[i % colour.series.length] },
    }));
    return {
      scales: {
        x: { time: false, distr: drawn.axes.x.scale === "log" ? 3 : 1, range: (_, low, high) => [low, high > low ? high : low + 1] },
        y: { distr: drawn.axes.y.scale === "log" ? 3 : 1, range: (chart) => extent(chart.data.slice(1).flat(), drawn.axes.y.scale) },
      },
      series: [{ label: drawn.axes.x.label, value }, ...series],
      legend: { live: true, markers: { width: 3, dash: (_, i) => MARKERS[(i - 1 + DASHES.length) % DASHES.length] } },
      hooks: { draw: [(chart) => verticalLine(chart, chart.root.closest("figure").drawn.axes.mark, colour)] },
    };
  },

  sentence: (name, { data, axes, labels }) =>
    name + ": " + axes.y.label + " against " + axes.x.label + ". " + labels.map((label, i) => described(label, data[0], data[i + 1])).join(". ") + ".",

  tables: (name, { data, axes, labels }) => [table(name, [axes.x.label, ...labels], data[0].map((x, i) => [x, ...data.slice(1).map((y) => y[i])]))],
};

// The range of an axis: all values, and a margin.
function extent(values, scale) {
  const known = values.map((value) => along(value, scale)).filter((value) => value !== null);
  if (!known.length) return scale === "log" ? [0.1, 10] : [0, 1];
  const low = known.reduce((a, b) => Math.min(a, b)), high = known.reduce((a, b) => Math.max(a, b));
  const flat = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
  const margin = flat ? (scale === "log" ? 0.3 : Math.abs(high) * 0.1 || 1) : (high - low) * 0.06;
  return [low - margin, high + margin].map((value) => (scale === "log" ? 10 ** value : value));
}

// The value of the control on the horizontal axis.
function verticalLine({ ctx, bbox, valToPos }, mark, colour) {
  const x = typeof mark === "number" ? valToPos(mark, "x", true) : NaN;
  if (!(x >= bbox.left && x <= bbox.left + bbox.width)) return;
  ctx.save();
  ctx.strokeStyle = colour.ink;
  ctx.globalAlpha = 0.55;
  ctx.lineWidth = window.devicePixelRatio;
  ctx.setLineDash([3 * ctx.lineWidth, 3 * ctx.lineWidth]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}
