// Answers of the documentation's explorers: grids that were computed when it was built, since a page that is opened from
// a disk has no server. The answer is that at the nearest point of the grid, and the controls move there.

export function precomputed(data) {
  const { declaration, grid, answers, templates, pool } = data, decoded = new Map();
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  const order = new Uint16Array(bytes(data.order));
  const scales = new Map(declaration.controls.map((control) => [control.name, control.scale]));

  function array(index, exact) {
    if (!decoded.has(index)) {
      decoded.set(index, Array.from(new (exact ? Float64Array : Float32Array)(bytes(pool[index])), (value) => (Number.isFinite(value) ? value : null)));
    }
    return decoded.get(index);
  }

  // A template has its numbers left out: [i] is the answer's i-th leaf.
  function filled(template, leaves) {
    if (Array.isArray(template)) {
      if (template.length !== 1 || typeof template[0] !== "number") return template.map((one) => filled(one, leaves));
      const leaf = leaves[template[0]];
      if (!Array.isArray(leaf)) return leaf;
      const [index, columns, exact] = leaf, values = array(index, exact);
      if (!columns) return values;
      return Array.from({ length: values.length / columns }, (_, i) => values.slice(i * columns, (i + 1) * columns));
    }
    if (template === null || typeof template !== "object") return template;
    return Object.fromEntries(Object.entries(template).map(([name, one]) => [name, filled(one, leaves)]));
  }

  function nearest(name, value) {
    const place = (v) => (scales.get(name).startsWith("log") ? (v > 0 ? Math.log(v) : -50) : v);
    if (typeof grid[name][0] === "string") return Math.max(grid[name].indexOf(value), 0);
    const off = grid[name].map((one) => Math.abs(place(one) - place(Number(value))));
    return off.indexOf(Math.min(...off));
  }

  return {
    inAddress: false,
    grid: () => grid,
    declaration: async () => declaration,
    async answer(id, values) {
      let at = 0;
      const found = { ...values };
      for (const name of Object.keys(grid)) {
        const i = nearest(name, values[name]);
        at = at * grid[name].length + i;
        found[name] = grid[name][i];
      }
      const [template, leaves] = answers[order[at]];
      if (typeof template === "string") throw new Error(template);
      return { answer: filled(templates[template], leaves), values: found };
    },
  };
}
