// A map from above on a canvas, in world coordinates with y upwards, that can be moved and zoomed.

class FlatView {
  /** Draws a `FlatRecording`; subclasses define `drawScene(moment, followed)`. */
  constructor(recording, player) {
    this.recording = recording;
    this.player = player;
    this.canvas = byId("scene");
    this.context = this.canvas.getContext("2d");
    this.held = null;
    this.reset();
    this.connect();
  }

  reset() {
    const { low, high } = this.recording;
    this.center = [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2];
    this.zoom = 1;
  }

  get scale() {
    const { low, high } = this.recording;
    const { clientWidth, clientHeight } = this.canvas;
    return this.zoom * Math.min(clientWidth / (high[0] - low[0]), clientHeight / (high[1] - low[1]));
  }

  toWorld(x, y) {
    const { clientWidth, clientHeight } = this.canvas;
    return [this.center[0] + (x - clientWidth / 2) / this.scale, this.center[1] - (y - clientHeight / 2) / this.scale];
  }

  draw(moment, followed) {
    const { context, canvas, recording } = this;
    const ratio = window.devicePixelRatio || 1;
    fit(canvas, ratio);
    if (followed !== NOBODY) this.center = recording.poseBetween(moment, followed).slice(0, 2);
    context.fillStyle = recording.colours.paper;
    context.fillRect(0, 0, canvas.width, canvas.height);
    const scale = this.scale * ratio;
    context.setTransform(scale, 0, 0, -scale, canvas.width / 2 - scale * this.center[0], canvas.height / 2 + scale * this.center[1]);
    this.pixel = 1 / this.scale;
    this.drawScene(moment, followed);
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  /** Calls `draw` with the coordinates of a pose. */
  within([x, y, heading], draw) {
    this.context.save();
    this.context.translate(x, y);
    this.context.rotate(heading);
    draw();
    this.context.restore();
  }

  line(start, end) {
    this.context.beginPath();
    this.context.moveTo(...start);
    this.context.lineTo(...end);
    this.context.stroke();
  }

  circle([x, y], radius, colour, width) {
    const { context } = this;
    context.strokeStyle = colour;
    context.lineWidth = width * this.pixel;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.stroke();
  }

  connect() {
    const { canvas, player } = this;
    canvas.onwheel = (event) => {
      event.preventDefault();
      this.zoom = clamp(this.zoom * Math.exp(-event.deltaY / 600), 0.5, 30);
    };
    canvas.onpointerdown = (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.held = { x: event.offsetX, y: event.offsetY, moved: false };
    };
    canvas.onpointermove = (event) => {
      if (!this.held) return;
      const [dx, dy] = [event.offsetX - this.held.x, event.offsetY - this.held.y];
      if (Math.hypot(dx, dy) <= 2 && !this.held.moved) return;
      player.followed = NOBODY;
      this.center = [this.center[0] - dx / this.scale, this.center[1] + dy / this.scale];
      this.held = { x: event.offsetX, y: event.offsetY, moved: true };
    };
    canvas.onpointerup = (event) => {
      if (this.held && !this.held.moved) this.pick(this.toWorld(event.offsetX, event.offsetY));
      this.held = null;
    };
  }

  /** Follows the body nearest to a point, if one is near. */
  pick([x, y]) {
    const { recording, player } = this;
    let best = [recording.longestStep, NOBODY];
    for (let body = 0; body < recording.bodies; body++) {
      if (!recording.isPresent(Math.floor(player.moment), body)) continue;
      const pose = recording.poseBetween(player.moment, body);
      const distance = Math.hypot(pose[0] - x, pose[1] - y);
      if (distance < best[0]) best = [distance, body];
    }
    if (best[1] !== NOBODY) player.follow(best[1]);
  }
}
