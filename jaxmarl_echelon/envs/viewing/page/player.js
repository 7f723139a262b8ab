// Playback. An environment's scripts define `Recording` and `View`, whose objects draw moments and reset themselves.

class Player {
  constructor(recording) {
    this.recording = recording;
    this.moment = 0;
    this.followed = NOBODY;
    this.playing = true;
    this.before = performance.now();
    this.events = new EventList(recording, this);
    this.view = new View(recording, this);
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
    this.seek(this.moment + (seconds * Number(byId("speed").value)) / period);
    if (this.moment === last) this.setPlaying(false);
  }

  draw() {
    byId("clock").textContent = this.recording.clock(this.moment);
    this.events.update(this.moment);
    this.view.draw(this.moment, this.followed);
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

  /** Follows a body or unit; selecting it again stops following. */
  follow(subject) {
    this.followed = subject === this.followed ? NOBODY : subject;
  }

  reset() {
    this.followed = NOBODY;
    this.view.reset();
  }

  press(key) {
    const step = (frame) => {
      this.setPlaying(false);
      this.seek(frame);
    };
    const actions = {
      " ": () => this.setPlaying(!this.playing),
      ArrowLeft: () => step(Math.ceil(this.moment) - 1),
      ArrowRight: () => step(Math.floor(this.moment) + 1),
      Escape: () => this.follow(this.followed),
      Home: () => this.reset(),
    };
    if (key in actions) actions[key]();
    return key in actions;
  }
}

function start(recording) {
  try {
    const player = new Player(recording);
    connectControls(player);
    requestAnimationFrame((now) => player.tick(now));
  } catch (error) {
    byId("message").textContent = error.message;
  }
}
