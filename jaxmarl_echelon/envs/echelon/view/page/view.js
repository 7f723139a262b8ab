// The battle in three dimensions with a camera, names over the mechs, and the side panel.

class View {
  constructor(recording, player) {
    this.recording = recording;
    this.player = player;
    this.camera = new Camera(recording.size);
    this.scene = new Scene(byId("scene"), recording);
    this.overlay = new Overlay(byId("overlay"), recording);
    this.panel = new Panel(recording, (mech) => this.follow(mech));
    byId("cut").max = byId("cut").value = recording.size[2];
    byId("cut").oninput = (event) => this.scene.setCut(Number(event.target.value));
    this.connect(byId("overlay"));
  }

  draw(moment, followed) {
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.scene.canvas, this.overlay.canvas]) fit(canvas, ratio);
    if (followed !== NOBODY) this.camera.target = this.recording.mech(followed, moment).position;
    const view = this.camera.matrix(this.scene.canvas.width / this.scene.canvas.height);
    this.scene.draw(view, moment);
    this.overlay.draw(view, moment, followed, ratio);
    this.panel.update(moment, followed);
  }

  reset() {
    this.camera.reset();
  }

  follow(mech) {
    this.player.follow(mech);
    if (this.player.followed !== NOBODY) this.camera.distance = Math.min(this.camera.distance, 40);
  }

  connect(surface) {
    let travelled = 0;
    surface.onpointerdown = (event) => {
      surface.setPointerCapture(event.pointerId);
      travelled = 0;
    };
    surface.onpointermove = (event) => {
      if (!event.buttons) return;
      travelled += Math.abs(event.movementX) + Math.abs(event.movementY);
      const moves = event.shiftKey || event.buttons === 2;
      if (moves) this.player.followed = NOBODY;
      if (moves) this.camera.pan(event.movementX, event.movementY, surface.clientHeight);
      else this.camera.orbit(event.movementX, event.movementY);
    };
    surface.onpointerup = (event) => {
      const mech = travelled < 4 ? this.overlay.pick(event.offsetX, event.offsetY) : NOBODY;
      if (mech !== NOBODY) this.follow(mech);
    };
    surface.oncontextmenu = (event) => event.preventDefault();
    surface.onwheel = (event) => {
      event.preventDefault();
      this.camera.zoom(event.deltaY);
    };
  }
}
