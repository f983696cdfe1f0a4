// The server's API: answers as JSON, refusals as errors of one line, and the runs as they change.

export async function ask(address, options = {}) {
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new Error("The server does not answer: `icl page` has ended, or the connection is broken.");
  }
  const kind = response.headers.get("content-type") ?? "";
  if (!kind.startsWith("application/json")) throw new Error((await response.text()).trim() || response.statusText);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error ?? response.statusText);
  return answer;
}

export const post = (address, value = {}) =>
  ask(address, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value) });

// `follow(listener)` calls the listener with all runs, every second or two, until the function that it returns is called.
export function follow(listener) {
  let timer = 0, ended = false;
  const look = async () => {
    let runs = null;
    try {
      runs = (await ask("api/runs")).runs;
      document.documentElement.dataset.live = "true";
    } catch {
      delete document.documentElement.dataset.live;
    }
    if (ended) return;
    if (runs) listener(runs);
    timer = setTimeout(look, runs?.some((run) => run.ended === null) ? 1000 : 2500);
  };
  look();
  return () => {
    ended = true;
    clearTimeout(timer);
  };
}

// Answers of explorers; the documentation has precomputed ones in their place.
export const explorers = {
  inAddress: true, // whether the page's address has the values of the controls
  list: async () => (await ask("api/explorers")).explorers,
  async declaration(id) {
    const declaration = (await this.list()).find((explorer) => explorer.id === id);
    if (!declaration) throw new Error("expected an explorer, got " + id);
    return declaration;
  },
  async answer(id, values) {
    return { answer: await ask("api/explorers/" + encodeURIComponent(id) + "?" + new URLSearchParams(values)), values };
  },
};

// Texts that language models read; the documentation has answers to some in their place.
export const prompts = {
  inAddress: true,
  models: () => ask("api/models"),
  read: (values) => post("api/prompt", values),
};
