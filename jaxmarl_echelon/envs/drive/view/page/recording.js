// The recorded episode, decoded. A moment is a number of decisions since the start; fractions lie between frames.

const ARRAYS = { int8: Int8Array, uint8: Uint8Array, float32: Float32Array };

/** An array from {dtype, shape, data}, data in base64 with the lowest byte first. */
function decodeArray({ dtype, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  return new ARRAYS[dtype](bytes.buffer);
}

class Recording {
  constructor(raw) {
    Object.assign(this, raw);
    for (const [name, field] of Object.entries(raw.arrays)) this[name] = decodeArray(field);
    [this.count, this.bodies] = raw.arrays.pose.shape;
    this.features = raw.arrays.seen.shape[2];
    this.last = this.count - 1;
  }

  isLearner(body) {
    return this.learners.includes(body);
  }

  colour(body) {
    return this.isLearner(body) ? this.colours.outcomes[this.outcomes[body]] : this.colours.scripted;
  }

  isPresent(frame, body) {
    return this.present[frame * this.bodies + body] > 0;
  }

  /** A flag of a learner: "alive", "ghost", "colliding" or "offroad". */
  flag(name, frame, learner) {
    return learner < this.agents && this[name][frame * this.agents + learner] > 0;
  }

  poseAt(frame, body) {
    const place = 3 * (frame * this.bodies + body);
    return [this.pose[place], this.pose[place + 1], this.pose[place + 2]];
  }

  /** The pose between two frames; respawned bodies jump. */
  poseBetween(moment, body) {
    const frame = Math.floor(moment);
    const here = this.poseAt(frame, body);
    const share = moment - frame;
    if (share === 0 || frame === this.last || !this.isPresent(frame + 1, body)) return here;
    const next = this.poseAt(frame + 1, body);
    if (Math.hypot(next[0] - here[0], next[1] - here[1]) > 6) return here;
    const turn = Math.atan2(Math.sin(next[2] - here[2]), Math.cos(next[2] - here[2]));
    return [here[0] + share * (next[0] - here[0]), here[1] + share * (next[1] - here[1]), here[2] + share * turn];
  }

  goalAt(frame, learner) {
    const place = 2 * (frame * this.agents + learner);
    return [this.goal[place], this.goal[place + 1]];
  }

  /** The rows of a block of a learner's observation, as objects by field; empty rows are omitted. */
  rows(frame, learner, name) {
    const block = this.view.blocks[name];
    if (!block) return [];
    const [count, width] = block.shape.length === 2 ? block.shape : [1, block.shape[0]];
    const first = (frame * this.agents + learner) * this.features + block.start;
    const rows = [];
    for (let row = 0; row < count; row++) {
      const values = this.seen.subarray(first + row * width, first + (row + 1) * width);
      if (values.some((value) => value !== 0)) {
        rows.push(Object.fromEntries(block.fields.map((field, index) => [field, values[index]])));
      }
    }
    return rows;
  }

  /** Rewards of a learner by component, in a step and in total. */
  earnings(frame, learner) {
    return this.components.map((name, index) => {
      let total = 0;
      const at = (time) => this.earned[(time * this.agents + learner) * this.components.length + index];
      for (let time = 0; time <= frame; time++) total += at(time);
      return { name, now: at(frame), total };
    });
  }
}
