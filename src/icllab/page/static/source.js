// Where the page's explorers have their answers from: the server, which asks the library.

async function asked(path, parameters, signal) {
  const query = new URLSearchParams(parameters).toString();
  const response = await fetch(query ? path + "?" + query : path, { signal, headers: { Accept: "application/json" } });
  const found = await response.json().catch(() => null);
  if (!response.ok || found === null) throw new Error(found?.error ?? "the server answered with status " + response.status);
  return found;
}

export const server = {
  moved: "address", // what is moved is kept in the page's address
  grid: () => null,
  async list() {
    return (await asked("/api/explorers")).explorers;
  },
  async declaration(id) {
    const found = (await this.list()).find((one) => one.id === id);
    if (!found) throw new Error("expected an explorer, got " + id);
    return found;
  },
  async answer(id, values, signal) {
    return { answer: await asked("/api/explorers/" + encodeURIComponent(id), values, signal), values };
  },
  async results(claims, signal) {
    const { results } = await asked("/api/results", {}, signal);
    return results.filter((one) => claims.includes(one.claim) && !one.fault && !one.control && one.cells === one.of);
  },
  points(result, id, values, signal) {
    return asked("/api/results/" + encodeURIComponent(result) + "/points", { explorer: id, ...values }, signal);
  },
};
