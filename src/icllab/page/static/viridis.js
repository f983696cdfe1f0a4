// The colour map viridis (Stéfan van der Walt and Nathaniel Smith, CC0), which is even in lightness and can be read
// without telling red from green: seventeen of its colours, and straight lines between them.

const STOPS = [
  "440154", "48186a", "472d7b", "424086", "3b528b", "33638d", "2c728e", "26828e", "21918c",
  "1fa088", "28ae80", "3fbc73", "5ec962", "84d44b", "addc30", "d8e219", "fde725",
];

// Red, green and blue from 0 to 1 at a fraction of the way.
export function viridis(fraction) {
  const place = Math.min(Math.max(fraction, 0), 1) * (STOPS.length - 1);
  const i = Math.min(Math.floor(place), STOPS.length - 2), share = place - i;
  return [0, 2, 4].map((at) => {
    const [one, other] = [STOPS[i], STOPS[i + 1]].map((hex) => parseInt(hex.slice(at, at + 2), 16) / 255);
    return one + share * (other - one);
  });
}
