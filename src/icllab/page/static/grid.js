// Answers of the documentation's explorers: grids that were computed when it was built, since a page that is opened from
// a disk has no server. The answer is that at the nearest point of the grid, and the controls move there.

import { nearest } from "./controls.js";

export function precomputed(data) {
  const { declaration, grid, answers, templates, pool } = data, decoded = new Map();
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;

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

  return {
    inAddress: false,
    declaration: async () => declaration,
    async answer(id, values) {
      let at = 0;
      const found = { ...values };
      for (const control of declaration.controls.filter(({ name }) => name in grid)) {
        const options = grid[control.name], i = control.kind === "choice" ? options.indexOf(values[control.name]) : nearest(control, values[control.name]);
        at = at * options.length + i;
        found[control.name] = options[i];
      }
      const [template, leaves] = answers[at];
      if (typeof template === "string") throw new Error(template);
      return { answer: filled(templates[template], leaves), values: found };
    },
  };
}
