// Vectors are [x, y, z] with z up; matrices are 16 numbers in column-major order, as in WebGL.

const add = (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
const subtract = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
const scaled = (a, factor) => [a[0] * factor, a[1] * factor, a[2] * factor];
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [
  a[1] * b[2] - a[2] * b[1],
  a[2] * b[0] - a[0] * b[2],
  a[0] * b[1] - a[1] * b[0],
];
const magnitude = (a) => Math.hypot(...a);
const normalized = (a) => scaled(a, 1 / Math.max(magnitude(a), 1e-9));
const mix = (a, b, share) => add(scaled(a, 1 - share), scaled(b, share));

function multiply(a, b) {
  const product = new Float32Array(16);
  for (let column = 0; column < 4; column++) {
    for (let row = 0; row < 4; row++) {
      for (let k = 0; k < 4; k++) product[4 * column + row] += a[4 * k + row] * b[4 * column + k];
    }
  }
  return product;
}

/** Camera space (looking along -z) to clip space; `field` is the vertical angle of view. */
function perspective(field, aspect, near, far) {
  const zoom = 1 / Math.tan(field / 2);
  const depth = near - far;
  return new Float32Array([
    zoom / aspect, 0, 0, 0,
    0, zoom, 0, 0,
    0, 0, (far + near) / depth, -1,
    0, 0, (2 * far * near) / depth, 0,
  ]);
}

/** World to camera space, for an eye that looks at `target` with z upwards. */
function lookAt(eye, target) {
  const back = normalized(subtract(eye, target));
  const right = normalized(cross([0, 0, 1], back));
  const up = cross(back, right);
  return new Float32Array([
    right[0], up[0], back[0], 0,
    right[1], up[1], back[1], 0,
    right[2], up[2], back[2], 0,
    -dot(right, eye), -dot(up, eye), -dot(back, eye), 1,
  ]);
}

/** Position of a point on a screen of `width` x `height`, y downwards; null behind the eye. */
function project(matrix, point, width, height) {
  const [x, y, , w] = [0, 1, 2, 3].map(
    (row) => matrix[row] * point[0] + matrix[4 + row] * point[1] + matrix[8 + row] * point[2] + matrix[12 + row],
  );
  if (w <= 0) return null;
  return { x: (0.5 + (0.5 * x) / w) * width, y: (0.5 - (0.5 * y) / w) * height, depth: w };
}

/** The unit cube around the origin, stretched to `size`, turned by `yaw` and moved to `center`. */
function place(center, size, yaw = 0) {
  const [cos, sin] = [Math.cos(yaw), Math.sin(yaw)];
  return new Float32Array([
    cos * size[0], sin * size[0], 0, 0,
    -sin * size[1], cos * size[1], 0, 0,
    0, 0, size[2], 0,
    ...center, 1,
  ]);
}

/** The unit cube as a bar of `width` from `start` to `end`. */
function along(start, end, width) {
  const axis = subtract(end, start);
  const upright = Math.hypot(axis[0], axis[1]) < 1e-6;
  const side = scaled(normalized(upright ? [1, 0, 0] : cross([0, 0, 1], axis)), width);
  const other = scaled(normalized(cross(axis, side)), width);
  return new Float32Array([...axis, 0, ...side, 0, ...other, 0, ...mix(start, end, 0.5), 1]);
}
