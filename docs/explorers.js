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

// Answers to some texts, with the patterns of all heads, row after row, as bytes.
function readings({ models, texts, sizes, answers }) {
  return {
    inAddress: false,
    models: async () => ({ models, texts, sizes, missing: "" }),
    async read({ text, size, block, head }) {
      const answer = answers[text], n = answer.tokens.length, weights = Uint8Array.from(atob(answer.pattern), (c) => c.charCodeAt(0));
      if (block === null) [block, head] = [answer.block, answer.head];
      const first = ((block * answer.heads + head) * n * (n + 1)) / 2, row = (i) => first + (i * (i + 1)) / 2;
      return { ...answer, block, head, alone: answer.alone[size], pattern: answer.tokens.map((_, i) => Array.from(weights.subarray(row(i), row(i + 1)), (weight) => weight / 255)) };
    },
  };
}

async function begin(root) {
  const id = root.dataset.explorer;
  try {
    const data = await fetched(id);
    if (data.absent) throw new Error(data.absent);
    if (id === "prompt") await modules.prompt.show(root, readings(data));
    else await modules.explore.show(root, id, modules.grid.precomputed(data));
  } catch (error) {
    root.textContent = error.message;
    root.style.minHeight = "0";
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
