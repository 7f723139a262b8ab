// Converts voxels to triangles, visible faces only. Transparent materials have an alpha below 255.

// Per face: its normal, its corners within the unit cube (counter-clockwise from outside), its brightness.
const FACES = [
  { out: [0, 0, 1], corners: [[0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]], light: 1.0 },
  { out: [0, 0, -1], corners: [[0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 0, 0]], light: 0.45 },
  { out: [1, 0, 0], corners: [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 1]], light: 0.82 },
  { out: [-1, 0, 0], corners: [[0, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 1]], light: 0.66 },
  { out: [0, 1, 0], corners: [[1, 1, 0], [0, 1, 0], [0, 1, 1], [1, 1, 1]], light: 0.58 },
  { out: [0, -1, 0], corners: [[0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1]], light: 0.74 },
];
const FLOOR = { corners: [[0, 0, 0.03], [1, 0, 0.03], [1, 1, 0.03], [0, 1, 0.03]], light: 1.0 };

/** Triangles of quads that are added one by one. */
class Mesh {
  constructor() {
    this.positions = [];
    this.colours = [];
    this.indices = [];
  }

  add(corners, colour) {
    const first = this.positions.length / 3;
    for (const corner of corners) {
      this.positions.push(...corner);
      this.colours.push(...colour);
    }
    this.indices.push(first, first + 1, first + 2, first, first + 2, first + 3);
  }
}

/** Material of a cell of the terrain below the height `cut`; air elsewhere. */
function materialAt(recording, cut, x, y, z) {
  const [width, depth] = recording.size;
  if (x < 0 || y < 0 || z < 0 || x >= width || y >= depth || z >= cut) return recording.air;
  return recording.voxels[(z * depth + y) * width + x];
}

/** The faces of the terrain below the height `cut`. */
function terrainMesh(recording, cut) {
  const mesh = new Mesh();
  const [width, depth] = recording.size;
  const at = (x, y, z) => materialAt(recording, cut, x, y, z);
  for (let z = 0; z < cut; z++) {
    for (let y = 0; y < depth; y++) {
      for (let x = 0; x < width; x++) {
        const material = at(x, y, z);
        if (material === recording.air) continue;
        const append = recording.ground.includes(material) ? addGround : addBlock;
        append(mesh, recording, at, material, [x, y, z]);
      }
    }
  }
  return mesh;
}

/** Mechs stand inside cells of dirt, water and lava: these are drawn as their floor. */
function addGround(mesh, recording, at, material, cell) {
  if (!recording.ground.includes(at(cell[0], cell[1], cell[2] + 1))) addFace(mesh, recording, material, cell, FLOOR);
}

function addBlock(mesh, recording, at, material, cell) {
  for (const face of FACES) {
    const [x, y, z] = add(cell, face.out);
    if (z >= 0 && !hides(recording, at(x, y, z), material)) addFace(mesh, recording, material, cell, face);
  }
}

/** Whether a neighbour covers the face of a block towards it. */
function hides(recording, neighbour, material) {
  if (neighbour === recording.air || recording.ground.includes(neighbour)) return false;
  return neighbour === material || recording.alpha[neighbour] === 255;
}

function addFace(mesh, recording, material, cell, face) {
  const checker = (cell[0] + cell[1] + cell[2]) % 2 ? 0.96 : 1;
  const light = face.light * checker * (0.8 + (0.2 * cell[2]) / recording.size[2]);
  const colour = recording.materials[material].map((channel) => Math.round(channel * light));
  mesh.add(face.corners.map((corner) => add(cell, corner)), [...colour, recording.alpha[material]]);
}

/** The unit cube around the origin. */
function cubeMesh() {
  const mesh = new Mesh();
  for (const face of FACES) {
    const grey = Math.round(255 * face.light);
    mesh.add(face.corners.map((corner) => subtract(corner, [0.5, 0.5, 0.5])), [grey, grey, grey, 255]);
  }
  return mesh;
}

/** The ball of radius 1 around the origin. */
function ballMesh(steps = 12) {
  const mesh = new Mesh();
  const at = (i, j) => {
    const [angle, height] = [(2 * Math.PI * i) / steps, Math.PI * (j / steps - 0.5)];
    return [Math.cos(angle) * Math.cos(height), Math.sin(angle) * Math.cos(height), Math.sin(height)];
  };
  for (let j = 0; j < steps; j++) {
    const grey = Math.round(255 * (0.55 + (0.45 * j) / steps));
    for (let i = 0; i < steps; i++) {
      mesh.add([at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)], [grey, grey, grey, 255]);
    }
  }
  return mesh;
}

/** An upright band of radius and height 1 around the origin. */
function ringMesh(steps = 72) {
  const mesh = new Mesh();
  const at = (i, z) => [Math.cos((2 * Math.PI * i) / steps), Math.sin((2 * Math.PI * i) / steps), z];
  for (let i = 0; i < steps; i++) {
    mesh.add([at(i, 0), at(i + 1, 0), at(i + 1, 1), at(i, 1)], [255, 255, 255, 255]);
  }
  return mesh;
}
