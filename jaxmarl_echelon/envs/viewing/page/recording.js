// Recorded episodes, decoded. A moment is a number of decisions since the start; fractions lie between two frames.

const ARRAYS = {
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  float32: Float32Array,
};
const NOBODY = -1;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** An array from {dtype, shape, data}, data in base64 with the lowest byte first. */
function decodeArray({ dtype, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  return new ARRAYS[dtype](bytes.buffer);
}

/** Arrays by name, decoded. */
function decodeArrays(fields) {
  return Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, decodeArray(field)]));
}

/** Interpolates between the angles a and b, along the shorter arc. */
function mixAngle(a, b, share) {
  const turn = ((b - a + 3 * Math.PI) % (2 * Math.PI)) - Math.PI;
  return a + turn * share;
}

/** An episode; subclasses set `last`, the index of the last frame, and have `period`, seconds per decision. */
class EpisodeRecording {
  constructor(raw) {
    Object.assign(this, raw);
  }

  /** The time at a moment in words. */
  clock(moment) {
    return `${(moment * this.period).toFixed(1)} s`;
  }

  /** Events in order of time: [{frame, text, colour, subject}]; `subject` is followed on a click. */
  eventRows() {
    return this.events.map(([frame, , text]) => ({ frame, text }));
  }
}

/** An episode of bodies on a map, with `low` and `high` corners; `arrays.pose` has x, y and heading. */
class FlatRecording extends EpisodeRecording {
  constructor(raw) {
    super(raw);
    Object.assign(this, decodeArrays(raw.arrays));
    [this.count, this.bodies] = raw.arrays.pose.shape;
    this.last = this.count - 1;
    this.longestStep = 6;
  }

  isPresent() {
    return true;
  }

  poseAt(frame, body) {
    const place = 3 * (frame * this.bodies + body);
    return [this.pose[place], this.pose[place + 1], this.pose[place + 2]];
  }

  /** The pose between two frames; bodies that are placed elsewhere jump. */
  poseBetween(moment, body) {
    const frame = Math.floor(moment);
    const here = this.poseAt(frame, body);
    const share = moment - frame;
    if (share === 0 || frame === this.last || !this.isPresent(frame + 1, body)) return here;
    const next = this.poseAt(frame + 1, body);
    if (Math.hypot(next[0] - here[0], next[1] - here[1]) > this.longestStep) return here;
    return [
      here[0] + share * (next[0] - here[0]),
      here[1] + share * (next[1] - here[1]),
      here[2] + share * Math.atan2(Math.sin(next[2] - here[2]), Math.cos(next[2] - here[2])),
    ];
  }
}
