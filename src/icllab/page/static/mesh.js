// Two ways to fill the surface: WebGL, where contour lines are drawn by the pixel, and a plain canvas without it.

import { TALL } from "./camera.js";
import { viridis } from "./viridis.js";

const SURFACE_VERTEX = `#version 300 es
in vec3 place; in vec3 normal; in float value;
uniform vec4 turn; uniform vec4 frame;
out float height; out vec3 facing;
vec3 seen(vec3 p) {
  float across = p.x * turn.x - p.y * turn.y, away = p.x * turn.y + p.y * turn.x;
  return vec3(across, p.z * turn.w + away * turn.z, away * turn.w - p.z * turn.z);
}
void main() {
  vec3 at = seen(place - vec3(0.0, 0.0, ${(TALL / 2).toFixed(4)}));
  gl_Position = vec4(at.xy * frame.xy + frame.zw, at.z / 3.0, 1.0);
  facing = seen(normal);
  height = value;
}`;
const SURFACE_FRAGMENT = `#version 300 es
precision highp float;
in float height; in vec3 facing;
uniform sampler2D colours; uniform vec3 levels;
out vec4 colour;
void main() {
  float fraction = clamp((height - levels.x) / (levels.y - levels.x), 0.0, 1.0);
  vec3 own = texture(colours, vec2(fraction * 0.996 + 0.002, 0.5)).rgb;
  float lit = 0.8 + 0.2 * abs(dot(normalize(facing), normalize(vec3(-0.45, 0.75, -0.55))));
  float step = height / levels.z, width = max(fwidth(step), 1e-5);
  float line = 1.0 - smoothstep(0.5, 1.4, abs(fract(step - 0.5) - 0.5) / width);
  line *= 1.0 - smoothstep(0.15, 0.4, width);
  colour = vec4(mix(own * lit, vec3(fraction < 0.55 ? 1.0 : 0.0), line * 0.5), 1.0);
}`;
const LINE_VERTEX = `#version 300 es
in vec3 place;
void main() { gl_Position = vec4(place, 1.0); }`;
const LINE_FRAGMENT = `#version 300 es
precision highp float;
uniform vec4 own; out vec4 colour;
void main() { colour = vec4(own.rgb * own.a, own.a); }`;

// A painter of { points, heights, normals, triangles, low, high, spacing } in the box, or null without WebGL 2.
export function webglPainter(canvas) {
  const gl = canvas.getContext("webgl2", { antialias: true, alpha: true, premultipliedAlpha: true });
  if (!gl) return null;
  const surface = program(gl, SURFACE_VERTEX, SURFACE_FRAGMENT), line = program(gl, LINE_VERTEX, LINE_FRAGMENT);
  const [points, normals, heights, triangles, ribbon] = Array.from({ length: 5 }, () => gl.createBuffer());
  const table = new Uint8Array(256 * 4);
  for (let i = 0; i < 256; i++) table.set([...viridis(i / 255).map((part) => Math.round(part * 255)), 255], 4 * i);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, 256, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, table);
  for (const [name, value] of [["MIN_FILTER", gl.LINEAR], ["MAG_FILTER", gl.LINEAR], ["WRAP_S", gl.CLAMP_TO_EDGE], ["WRAP_T", gl.CLAMP_TO_EDGE]]) {
    gl.texParameteri(gl.TEXTURE_2D, gl["TEXTURE_" + name], value);
  }
  gl.enable(gl.BLEND);
  gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  let mesh = null;

  const attribute = (where, name, buffer, size) => {
    const at = gl.getAttribLocation(where, name);
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.enableVertexAttribArray(at);
    gl.vertexAttribPointer(at, size, gl.FLOAT, false, 0, 0);
  };

  return {
    kind: "webgl",
    load(given) {
      mesh = given;
      for (const [buffer, values] of [[points, mesh.points], [normals, mesh.normals], [heights, mesh.heights]]) {
        gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
        gl.bufferData(gl.ARRAY_BUFFER, values, gl.DYNAMIC_DRAW);
      }
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, triangles);
      gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, mesh.triangles, gl.DYNAMIC_DRAW);
    },
    paint(view, ribbons) {
      gl.viewport(0, 0, canvas.width, canvas.height);
      gl.clearColor(0, 0, 0, 0);
      gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
      gl.enable(gl.DEPTH_TEST);
      gl.depthMask(true);
      gl.useProgram(surface);
      attribute(surface, "place", points, 3);
      attribute(surface, "normal", normals, 3);
      attribute(surface, "value", heights, 1);
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, triangles);
      gl.uniform4f(gl.getUniformLocation(surface, "turn"), view.c, view.s, view.up, view.flat);
      gl.uniform4f(
        gl.getUniformLocation(surface, "frame"), (2 * view.scale) / view.width, (2 * view.scale) / view.height,
        (2 * view.middle.x) / view.width - 1, 1 - (2 * view.middle.y) / view.height
      );
      gl.uniform3f(gl.getUniformLocation(surface, "levels"), mesh.low, mesh.high, mesh.spacing);
      gl.drawElements(gl.TRIANGLES, mesh.triangles.length, gl.UNSIGNED_INT, 0);
      gl.useProgram(line);
      gl.depthMask(false);
      for (const hidden of [true, false]) {
        gl[hidden ? "disable" : "enable"](gl.DEPTH_TEST);
        for (const { corners, colour } of ribbons) {
          gl.uniform4f(gl.getUniformLocation(line, "own"), ...colour, hidden ? 0.3 : 1);
          attribute(line, "place", ribbon, 3);
          gl.bufferData(gl.ARRAY_BUFFER, inClip(corners, view), gl.DYNAMIC_DRAW);
          gl.drawArrays(gl.TRIANGLES, 0, corners.length / 3);
        }
      }
    },
    free() {
      gl.getExtension("WEBGL_lose_context")?.loseContext();
    },
  };
}

// Pixels and depths as WebGL has them; lines are drawn a little nearer than they are, so that the surface they lie on
// does not hide them.
function inClip(corners, view) {
  const found = new Float32Array(corners.length);
  for (let i = 0; i < corners.length; i += 3) {
    found[i] = (2 * corners[i]) / view.width - 1;
    found[i + 1] = 1 - (2 * corners[i + 1]) / view.height;
    found[i + 2] = corners[i + 2] / 3 - 0.02;
  }
  return found;
}

function program(gl, vertex, fragment) {
  const made = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader) || "no shader");
    gl.attachShader(made, shader);
  }
  gl.linkProgram(made);
  if (!gl.getProgramParameter(made, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(made) || "no program");
  return made;
}

// The same without WebGL: triangles from the farthest to the nearest, in flat colours.
export function canvasPainter(canvas) {
  const context = canvas.getContext("2d");
  let mesh = null;
  const fill = (corners, style) => {
    context.fillStyle = context.strokeStyle = style;
    context.beginPath();
    corners.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"](x, y));
    context.closePath();
    context.fill();
    context.stroke();
  };
  return {
    kind: "canvas",
    load(given) {
      mesh = given;
    },
    paint(view, ribbons) {
      const ratio = canvas.width / view.width;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, view.width, view.height);
      context.lineWidth = 0.6;
      const seen = [], faces = [];
      for (let i = 0; i < mesh.points.length; i += 3) seen.push(view.project(mesh.points[i], mesh.points[i + 1], mesh.points[i + 2]));
      for (let i = 0; i < mesh.triangles.length; i += 3) {
        const [a, b, c] = mesh.triangles.slice(i, i + 3);
        faces.push([seen[a][2] + seen[b][2] + seen[c][2], a, b, c]);
      }
      faces.sort((one, other) => other[0] - one[0]);
      for (const [, ...face] of faces) {
        const mean = face.reduce((sum, i) => sum + mesh.heights[i], 0) / 3;
        const own = viridis((mean - mesh.low) / (mesh.high - mesh.low || 1));
        fill(face.map((i) => seen[i]), "rgb(" + own.map((part) => Math.round(part * 255)).join(",") + ")");
      }
      for (const { corners, colour } of ribbons) {
        const style = "rgb(" + colour.map((part) => Math.round(part * 255)).join(",") + ")";
        for (let i = 0; i < corners.length; i += 9) fill([0, 3, 6].map((k) => [corners[i + k], corners[i + k + 1]]), style);
      }
    },
    free() {},
  };
}
