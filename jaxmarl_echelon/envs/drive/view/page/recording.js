// Recorded driving, decoded.

class Recording extends FlatRecording {
  constructor(raw) {
    super(raw);
    this.features = raw.arrays.seen.shape[2];
  }

  eventRows() {
    return this.events.map(([seconds, learner, what]) => ({
      frame: Math.round(seconds / this.period),
      text: `${learner}: ${what}`,
      subject: learner,
    }));
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
