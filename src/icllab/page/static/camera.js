// How the box of a surface is seen: an orthographic view, turned about the vertical axis and tilted.
//
// Inside the box x and y go from -1 to 1 and heights from 0 to TALL. Screen coordinates are pixels from the top left;
// depth grows away from the viewer.

export const TALL = 1.15;
export const START = { yaw: -50, pitch: 26 };

export function camera(width, height, yaw, pitch) {
  const radians = Math.PI / 180;
  const [c, s, up, flat] = [Math.cos(yaw * radians), Math.sin(yaw * radians), Math.sin(pitch * radians), Math.cos(pitch * radians)];
  const narrow = width < 520;
  // Half the box's breadth on the screen: its diagonal, so that it keeps its size while it is turned; but from above.
  const above = Math.min(Math.max((pitch - 70) / 20, 0), 1);
  const reach = Math.SQRT2 + above * (Math.abs(c) + Math.abs(s) - Math.SQRT2);
  const scale = Math.min((width - (narrow ? 96 : 190)) / (2 * reach), (height - 78) / (2 * reach * up + TALL * flat));
  const middle = { x: width / 2 - (narrow ? 2 : 12), y: height / 2 - 12 };
  return {
    yaw, pitch, c, s, up, flat, scale, middle, width, height, narrow,
    project(x, y, z) {
      const across = x * c - y * s, away = x * s + y * c, high = z - TALL / 2;
      return [middle.x + scale * across, middle.y - scale * (high * flat + away * up), away * flat - high * up];
    },
  };
}

// The sides of the box that are farther from the viewer, where its walls stand.
export const backs = (view) => ({ x: view.s > 0 ? 1 : -1, y: view.c > 0 ? 1 : -1 });
