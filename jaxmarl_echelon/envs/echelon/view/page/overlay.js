// Bars and names above the mechs, drawn in 2-D over the scene so that walls never hide them.

const BADGES = { fallen: "fallen", shutdown: "shut down", legged: "legged", painted: "painted", ecm: "ECM", eccm: "ECCM" };
// Beyond this distance only names are drawn.
const BADGE_DISTANCE = 60;

class Overlay {
  constructor(canvas, recording) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.recording = recording;
    this.places = [];
  }

  draw(view, moment, followed, ratio) {
    const { pen, canvas } = this;
    const [width, height] = [canvas.width / ratio, canvas.height / ratio];
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.places = [];
    for (const index of this.recording.present()) {
      const mech = this.recording.mech(index, moment);
      const spot = project(view, add(mech.position, [0, 0, mech.size[2] / 2 + 0.8]), width, height);
      if (!mech.alive || !spot) continue;
      this.places.push({ index, ...spot });
      this.drawTag(mech, spot, index === followed);
    }
  }

  drawTag(mech, { x, y, depth }, followed) {
    const { pen } = this;
    const reach = clamp((mech.size[0] * 500) / depth, 9, 40);
    this.drawBar(x - reach, y - 9, 2 * reach, mech.hp / 100, hpColour(mech.hp));
    this.drawBar(x - reach, y - 4, 2 * reach, Math.min(mech.heat, 100) / 100, heatColour(mech.heat));
    pen.font = followed ? "bold 12px system-ui, sans-serif" : "10px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.lineWidth = 3;
    pen.strokeStyle = "#000a";
    pen.fillStyle = followed ? "#ffd21f" : "#f4f2ec";
    const known = followed || depth < BADGE_DISTANCE ? badges(mech) : [];
    const text = [this.recording.short[mech.index], ...known].join(" · ");
    pen.strokeText(text, x, y - 13);
    pen.fillText(text, x, y - 13);
  }

  drawBar(x, y, width, share, colour) {
    this.pen.fillStyle = "#000b";
    this.pen.fillRect(x - 1, y - 1, width + 2, 5);
    this.pen.fillStyle = colour;
    this.pen.fillRect(x, y, width * share, 3);
  }

  /** Mech with its tag near a point of the screen, or -1. */
  pick(x, y) {
    const near = this.places
      .map((place) => ({ ...place, distance: Math.hypot(place.x - x, place.y - y) }))
      .filter((place) => place.distance < 30)
      .sort((a, b) => a.distance - b.distance);
    return near.length ? near[0].index : NOBODY;
  }
}

function badges(mech) {
  return Object.keys(BADGES).filter((status) => mech.is(status)).map((status) => BADGES[status]);
}

function hpColour(percent) {
  return percent > 60 ? "#37b24d" : percent > 30 ? "#f0b429" : "#e03131";
}

function heatColour(percent) {
  return percent > 100 ? "#ff3b30" : "#f7862b";
}
