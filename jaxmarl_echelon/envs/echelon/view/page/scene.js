// The battle in three dimensions, drawn with WebGL.

const VERTEX = `#version 300 es
in vec3 position;
in vec4 colour;
uniform mat4 view, model;
uniform vec4 tint;
out vec4 shade;
void main() {
  gl_Position = view * (model * vec4(position, 1.0));
  shade = colour * tint;
}`;

// Transparent surfaces skip pixels in a fixed pattern, so that the order of drawing does not matter.
const FRAGMENT = `#version 300 es
precision mediump float;
in vec4 shade;
out vec4 pixel;
const float PATTERN[16] = float[](
  0.0, 8.0, 2.0, 10.0, 12.0, 4.0, 14.0, 6.0, 3.0, 11.0, 1.0, 9.0, 15.0, 7.0, 13.0, 5.0);
void main() {
  ivec2 cell = ivec2(gl_FragCoord.xy) & 3;
  if (shade.a < (PATTERN[4 * cell.y + cell.x] + 0.5) / 16.0) discard;
  pixel = vec4(shade.rgb, 1.0);
}`;

const NOWHERE = place([0, 0, 0], [1, 1, 1]);
const HULL = 0.55;

/** "#rrggbb" to numbers from 0 to 1. */
function rgb(text) {
  return [1, 3, 5].map((start) => parseInt(text.slice(start, start + 2), 16) / 255);
}

class Scene {
  constructor(canvas, recording) {
    this.canvas = canvas;
    this.recording = recording;
    this.gl = canvas.getContext("webgl2");
    if (!this.gl) throw new Error("This page needs WebGL 2.");
    this.program = this.link();
    this.gl.useProgram(this.program);
    this.uniforms = Object.fromEntries(
      ["view", "model", "tint"].map((name) => [name, this.gl.getUniformLocation(this.program, name)]),
    );
    this.gl.enable(this.gl.DEPTH_TEST);
    this.cube = this.upload(cubeMesh());
    this.ball = this.upload(ballMesh());
    this.ring = this.upload(ringMesh());
    this.setCut(recording.size[2]);
  }

  link() {
    const { gl } = this;
    const program = gl.createProgram();
    for (const [type, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(type);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
    return program;
  }

  upload(mesh) {
    const { gl } = this;
    const array = gl.createVertexArray();
    gl.bindVertexArray(array);
    const buffers = [
      this.attribute("position", new Float32Array(mesh.positions), 3, gl.FLOAT),
      this.attribute("colour", new Uint8Array(mesh.colours), 4, gl.UNSIGNED_BYTE),
      this.fill(gl.ELEMENT_ARRAY_BUFFER, new Uint32Array(mesh.indices)),
    ];
    return { array, buffers, count: mesh.indices.length };
  }

  attribute(name, values, width, type) {
    const { gl } = this;
    const location = gl.getAttribLocation(this.program, name);
    const buffer = this.fill(gl.ARRAY_BUFFER, values);
    gl.enableVertexAttribArray(location);
    gl.vertexAttribPointer(location, width, type, type !== gl.FLOAT, 0, 0);
    return buffer;
  }

  fill(target, values) {
    const { gl } = this;
    const buffer = gl.createBuffer();
    gl.bindBuffer(target, buffer);
    gl.bufferData(target, values, gl.STATIC_DRAW);
    return buffer;
  }

  release({ array, buffers }) {
    this.gl.deleteVertexArray(array);
    for (const buffer of buffers) this.gl.deleteBuffer(buffer);
  }

  /** Hides the terrain above a height. */
  setCut(cut) {
    if (this.terrain) this.release(this.terrain);
    this.terrain = this.upload(terrainMesh(this.recording, cut));
  }

  draw(view, moment) {
    const { gl, canvas } = this;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0.08, 0.09, 0.11, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.uniformMatrix4fv(this.uniforms.view, false, view);
    this.mesh(this.terrain, NOWHERE, [1, 1, 1]);
    this.drawZone(moment);
    for (const mech of this.recording.present()) this.drawMech(this.recording.mech(mech, moment));
    for (const beam of this.recording.beamsAt(moment)) this.drawBeam(beam, moment);
    this.drawFlashes(moment);
    for (const shot of this.recording.projectiles(moment)) this.drawProjectile(shot);
    for (const cloud of this.recording.smoke(moment)) {
      const radius = this.recording.smokeRadius;
      this.mesh(this.ball, place(cloud.center, [radius, radius, radius]), [0.9, 0.9, 0.9], 0.25 + 0.4 * cloud.left);
    }
  }

  mesh({ array, count }, model, colour, alpha = 1) {
    const { gl } = this;
    gl.bindVertexArray(array);
    gl.uniformMatrix4fv(this.uniforms.model, false, model);
    gl.uniform4f(this.uniforms.tint, ...colour, alpha);
    gl.drawElements(gl.TRIANGLES, count, gl.UNSIGNED_INT, 0);
  }

  drawZone(moment) {
    const [x, y, radius] = this.recording.zone;
    const colour = rgb(this.recording.ownerColour(moment));
    this.mesh(this.ring, place([x, y, 0], [radius, radius, 0.4]), colour);
    this.mesh(this.ring, place([x, y, 0.4], [radius, radius, 3]), colour, 0.3);
  }

  /** A hull of the size of the collision box, and a turret with a gun that shows the heading. */
  drawMech(mech) {
    const [width, depth, height] = mech.size;
    const bottom = mech.position[2] - height / 2;
    const at = (share) => [mech.position[0], mech.position[1], bottom + share * height];
    if (!mech.alive) {
      this.mesh(this.cube, place(at(0.25), [width, depth, 0.5 * height]), rgb(this.recording.wreckColour));
      return;
    }
    const colour = this.mechColour(mech);
    const crouch = mech.is("fallen") ? 0.5 : 1;
    const part = (share, size) => this.mesh(this.cube, place(at(share * crouch), size, mech.yaw), colour);
    this.mesh(this.cube, place(at((HULL / 2) * crouch), [width, depth, HULL * crouch * height]), scaled(colour, 0.75));
    part(0.5 + HULL / 2, [0.7 * width, 0.7 * depth, (1 - HULL) * crouch * height]);
    const gun = along(at(0.8 * crouch), this.muzzle(mech, crouch), 0.14 * width);
    this.mesh(this.cube, gun, [0.95, 0.93, 0.88]);
  }

  mechColour(mech) {
    const colour = rgb(this.recording.teams[mech.team]);
    if (mech.is("hit")) return mix(colour, [1, 1, 1], 0.55);
    return mech.is("shutdown") ? scaled(colour, 0.45) : colour;
  }

  muzzle(mech, crouch = 1) {
    const forward = scaled([Math.cos(mech.yaw), Math.sin(mech.yaw), 0], 0.85 * mech.size[0]);
    return add(mech.position, [forward[0], forward[1], (0.8 * crouch - 0.5) * mech.size[2]]);
  }

  drawBeam([, weapon, shooter, target], moment) {
    const start = this.muzzle(this.recording.mech(shooter, moment));
    const end = this.recording.mech(target, moment).position;
    this.mesh(this.cube, along(start, end, this.recording.beamWidths[weapon]), rgb(this.recording.weapons[weapon]));
  }

  /** A muzzle flash for every mech that fires, also if the shot is too fast to be recorded. */
  drawFlashes(moment) {
    const frame = Math.ceil(moment);
    for (const index of this.recording.present()) {
      const mech = this.recording.mech(index, moment);
      for (let weapon = 0; weapon < this.recording.weapons.length; weapon++) {
        if (!this.recording.fired(weapon, frame, index)) continue;
        this.mesh(this.ball, place(this.muzzle(mech), [0.4, 0.4, 0.4]), rgb(this.recording.weapons[weapon]));
      }
    }
  }

  drawProjectile({ kind, start, end }) {
    const colour = rgb(this.recording.weapons[kind]);
    this.mesh(this.cube, along(start, end, 0.15), colour, 0.6);
    this.mesh(this.ball, place(end, [0.3, 0.3, 0.3]), colour);
  }
}
