// In the documentation: every element with a name of an explorer gets it when it comes into sight, its data with it.

window.iclExplorers = window.iclExplorers || {};
const beside = new URL(".", document.currentScript.src);

function fetched(id) {
  if (window.iclExplorers[id]) return Promise.resolve(window.iclExplorers[id]);
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL(id + ".js", beside).href;
    script.onload = () => resolve(window.iclExplorers[id]);
    script.onerror = () => reject(new Error("expected " + script.src + ", found none"));
    document.head.append(script);
  });
}

async function begin(root) {
  const id = root.dataset.explorer;
  try {
    await modules.explore.show(root, id, modules.grid.precomputed(await fetched(id)));
  } catch (error) {
    root.textContent = error.message;
  }
}

function watch() {
  const seen = new IntersectionObserver((entries) => {
    for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
      seen.unobserve(target);
      begin(target);
    }
  }, { rootMargin: "400px" });
  for (const root of document.querySelectorAll("[data-explorer]")) seen.observe(root);
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", watch);
else watch();
