// Playback: time, camera and user input.

class Player {
  constructor(recording) {
    this.recording = recording;
    this.camera = new Camera(recording.size);
    this.scene = new Scene(byId("scene"), recording);
    this.overlay = new Overlay(byId("overlay"), recording);
    this.panel = new Panel(recording, { follow: (mech) => this.follow(mech), seek: (frame) => this.seek(frame) });
    this.moment = 0;
    this.followed = NOBODY;
    this.playing = true;
    this.before = performance.now();
  }

  /** Draws the current moment and schedules the next call. */
  tick(now) {
    const seconds = clamp((now - this.before) / 1000, 0, 0.1);
    this.before = now;
    if (this.playing) this.advance(seconds);
    this.draw();
    requestAnimationFrame((next) => this.tick(next));
  }

  advance(seconds) {
    const { last, period } = this.recording;
    this.moment = Math.min(this.moment + (seconds * Number(byId("speed").value)) / period, last);
    if (this.moment === last) this.setPlaying(false);
    byId("moment").value = this.moment;
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.scene.canvas, this.overlay.canvas]) fit(canvas, ratio);
    if (this.followed !== NOBODY) {
      this.camera.target = this.recording.mech(this.followed, this.moment).position;
    }
    const view = this.camera.matrix(this.scene.canvas.width / this.scene.canvas.height);
    this.scene.draw(view, this.moment);
    this.overlay.draw(view, this.moment, this.followed, ratio);
    this.panel.update(this.moment, this.followed);
  }

  setPlaying(playing) {
    if (playing && this.moment === this.recording.last) this.seek(0);
    this.playing = playing;
    byId("play").textContent = playing ? "Pause" : "Play";
  }

  seek(moment) {
    this.moment = clamp(moment, 0, this.recording.last);
    byId("moment").value = this.moment;
  }

  /** Follows a unit with the camera; selecting it again stops following. */
  follow(mech) {
    this.followed = mech === this.followed ? NOBODY : mech;
    if (this.followed !== NOBODY) this.camera.distance = Math.min(this.camera.distance, 40);
  }

  reset() {
    this.followed = NOBODY;
    this.camera.reset();
  }

  press(key) {
    const step = (frames) => {
      this.setPlaying(false);
      this.seek(Math.round(this.moment) + frames);
    };
    const actions = {
      " ": () => this.setPlaying(!this.playing),
      ArrowLeft: () => step(-1),
      ArrowRight: () => step(1),
      Escape: () => this.follow(this.followed),
      Home: () => this.reset(),
    };
    if (key in actions) actions[key]();
    return key in actions;
  }
}

/** Sets the resolution of a canvas to its size on the screen. */
function fit(canvas, ratio) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((side) => Math.round(side * ratio));
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
}

function connectControls(player) {
  byId("play").onclick = () => player.setPlaying(!player.playing);
  byId("reset").onclick = () => player.reset();
  byId("moment").max = player.recording.last;
  byId("moment").value = 0;
  byId("moment").oninput = (event) => player.seek(Number(event.target.value));
  byId("cut").max = byId("cut").value = player.recording.size[2];
  byId("cut").oninput = (event) => player.scene.setCut(Number(event.target.value));
  window.addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLSelectElement;
    if (typing || !player.press(event.key)) return;
    event.preventDefault();
    if (event.target instanceof HTMLButtonElement) event.target.blur();
  });
}

function connectPointer(player, surface) {
  let travelled = 0;
  surface.onpointerdown = (event) => {
    surface.setPointerCapture(event.pointerId);
    travelled = 0;
  };
  surface.onpointermove = (event) => {
    if (!event.buttons) return;
    travelled += Math.abs(event.movementX) + Math.abs(event.movementY);
    const moves = event.shiftKey || event.buttons === 2;
    if (moves) player.followed = NOBODY;
    if (moves) player.camera.pan(event.movementX, event.movementY, surface.clientHeight);
    else player.camera.orbit(event.movementX, event.movementY);
  };
  surface.onpointerup = (event) => {
    const mech = travelled < 4 ? player.overlay.pick(event.offsetX, event.offsetY) : NOBODY;
    if (mech !== NOBODY) player.follow(mech);
  };
  surface.oncontextmenu = (event) => event.preventDefault();
  surface.onwheel = (event) => {
    event.preventDefault();
    player.camera.zoom(event.deltaY);
  };
}

function start(recording) {
  try {
    const player = new Player(recording);
    connectControls(player);
    connectPointer(player, byId("overlay"));
    requestAnimationFrame((now) => player.tick(now));
  } catch (error) {
    byId("message").textContent = error.message;
  }
}
