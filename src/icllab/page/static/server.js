// What the server is asked: answers as JSON, refusals as errors of one line, and what goes on as it changes.

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

export const tell = (address, value = {}) =>
  ask(address, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value) });

// One stream of events for the whole page: `follow(f)` calls f with every state, at once with the last one.
const followers = new Set();
let source = null, last = null;

export function follow(listener) {
  followers.add(listener);
  if (last) listener(last);
  if (!source) {
    source = new EventSource("/api/events");
    source.addEventListener("message", (event) => {
      last = JSON.parse(event.data);
      document.documentElement.dataset.live = "true";
      for (const one of followers) one(last);
    });
    source.addEventListener("error", () => delete document.documentElement.dataset.live);
  }
  return () => followers.delete(listener);
}
