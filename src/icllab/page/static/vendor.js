// The page's way to the vendored plotting library: loaded once, from beside this file, when it is first needed.
// The documentation includes the same file by a tag of its own.

let loading = null;

export function uPlotLibrary() {
  if (window.uPlot) return Promise.resolve(window.uPlot);
  loading ??= new Promise((resolve, reject) => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL("vendor/uPlot.min.css", import.meta.url).href;
    document.head.append(style);
    const script = document.createElement("script");
    script.src = new URL("vendor/uPlot.iife.min.js", import.meta.url).href;
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => reject(new Error("expected the plotting library at " + script.src + ", found none"));
    document.head.append(script);
  });
  return loading;
}
