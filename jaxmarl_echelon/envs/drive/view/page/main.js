// Time, mouse and keys.

function start(recording) {
  const at = (id) => document.getElementById(id);
  const scene = new Scene(at("scene"), recording);
  let moment = 0;
  let playing = true;
  let followed = null;
  let before = performance.now();
  let held = null;

  const follow = (body) => { followed = followed === body ? null : body; };
  const goTo = (value) => { moment = Math.min(Math.max(value, 0), recording.last); };
  const panel = new Panel(recording, (learner) => { followed = learner; }, goTo);
  const toggle = () => {
    if (!playing && moment >= recording.last) moment = 0;
    playing = !playing;
  };

  at("moment").max = recording.last;
  at("moment").oninput = (event) => { playing = false; goTo(Number(event.target.value)); };
  at("play").onclick = toggle;
  at("reset").onclick = () => { followed = null; scene.showWhole(); };

  scene.canvas.onwheel = (event) => {
    event.preventDefault();
    scene.zoom = Math.min(Math.max(scene.zoom * Math.exp(-event.deltaY / 600), 0.5), 30);
  };
  scene.canvas.onmousedown = (event) => { held = { x: event.offsetX, y: event.offsetY, moved: false }; };
  scene.canvas.onmousemove = (event) => {
    if (!held) return;
    const [dx, dy] = [event.offsetX - held.x, event.offsetY - held.y];
    if (Math.hypot(dx, dy) > 2 || held.moved) {
      followed = null;
      scene.center = [scene.center[0] - dx / scene.scale, scene.center[1] + dy / scene.scale];
      held = { x: event.offsetX, y: event.offsetY, moved: true };
    }
  };
  scene.canvas.onmouseup = (event) => {
    if (held && !held.moved) pick(scene.toWorld(event.offsetX, event.offsetY));
    held = null;
  };

  /** Follows the body nearest to a point, if one is near. */
  function pick([x, y]) {
    let best = [6, null];
    for (let body = 0; body < recording.bodies; body++) {
      if (!recording.isPresent(Math.floor(moment), body)) continue;
      const pose = recording.poseBetween(moment, body);
      const distance = Math.hypot(pose[0] - x, pose[1] - y);
      if (distance < best[0]) best = [distance, body];
    }
    if (best[1] !== null) follow(best[1]);
  }

  document.onkeydown = (event) => {
    const keys = {
      " ": toggle,
      ArrowLeft: () => { playing = false; goTo(Math.ceil(moment) - 1); },
      ArrowRight: () => { playing = false; goTo(Math.floor(moment) + 1); },
      Escape: () => { followed = null; },
      Home: () => at("reset").onclick(),
    };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  };

  function frame(now) {
    if (playing) goTo(moment + ((now - before) / 1000 / recording.period) * Number(at("speed").value));
    if (moment >= recording.last) playing = false;
    before = now;
    at("play").textContent = playing ? "Pause" : "Play";
    at("moment").value = moment;
    at("clock").textContent = `${(moment * recording.period).toFixed(1)} s`;
    scene.draw(moment, followed, at("seen").checked);
    panel.show(Math.floor(moment), followed);
    requestAnimationFrame(frame);
  }
  requestAnimationFrame(frame);
}
