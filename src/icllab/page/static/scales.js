// Numbers as text, and ticks of linear and logarithmic axes.

export function spelled(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "none";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return Number(mantissa) + "e" + Number(exponent);
  }
  return String(Number(value.toPrecision(digits)));
}

// Ticks within [low, high], about `count` of them, at round numbers.
export function ticks(low, high, scale, count) {
  return scale === "log" ? logarithmic(low, high, count) : linear(low, high, count);
}

function linear(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 1e-12 * Math.max(Math.abs(low), Math.abs(high)))) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function logarithmic(low, high, count) {
  const [from, to] = [Math.log10(low), Math.log10(high)];
  const first = Math.floor(from), last = Math.ceil(to);
  const within = (list) => list.filter((v) => v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9));
  const decades = (mantissas, step) => {
    const found = [];
    for (let e = first; e <= last; e++) if (e % step === 0) for (const m of mantissas) found.push(Number(m + "e" + e));
    return within(found);
  };
  for (const mantissas of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]]) {
    const found = decades(mantissas, 1);
    if (found.length <= count * 1.5 && (mantissas.length < 9 || to - from < 0.9)) return found.length > 1 ? found : linear(low, high, count);
  }
  const step = Math.ceil((last - first) / Math.max(count, 1));
  return decades([1], step);
}

// Where a value lies on an axis: its logarithm on a logarithmic one, null where it has no place.
export function along(value, scale) {
  if (value === null || value === undefined || !Number.isFinite(value)) return null;
  if (scale !== "log") return value;
  return value > 0 ? Math.log10(value) : null;
}

// The colours of the page or of the documentation, as they are at this moment.
export function colours(element) {
  const style = getComputedStyle(element);
  const read = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const series = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d00", "#666666"];
  return {
    ink: read("--ink", "#1b1b1b"),
    paper: read("--paper", "#ffffff"),
    line: read("--line", "#cccccc"),
    muted: read("--muted", "#666666"),
    accent: read("--accent", "#0072b2"),
    series: series.map((colour, i) => read("--series-" + (i + 1), colour)),
  };
}

// `followColours(listener)` calls the listener after a change of colours, until the function that it returns is called.
export function followColours(listener) {
  const themes = new MutationObserver(listener), dark = window.matchMedia("(prefers-color-scheme: dark)");
  for (const node of [document.documentElement, document.body]) themes.observe(node, { attributes: true, attributeFilter: ["data-theme", "class"] });
  dark.addEventListener("change", listener);
  return () => {
    themes.disconnect();
    dark.removeEventListener("change", listener);
  };
}
