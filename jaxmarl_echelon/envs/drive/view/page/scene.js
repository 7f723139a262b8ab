// Draws a moment of the recording: roads, bodies, goals, and the observation of the followed learner.

class View extends FlatView {
  constructor(recording, player) {
    super(recording, player);
    this.panel = new Panel(recording, (learner) => player.follow(learner));
  }

  drawScene(moment, followed) {
    const { recording } = this;
    const frame = Math.floor(moment);
    this.drawRoads();
    for (const learner of recording.learners) {
      if (recording.flag("alive", frame, learner) && !recording.flag("ghost", frame, learner)) {
        const radius = recording.goal_radius[frame * recording.agents + learner];
        this.circle(recording.goalAt(frame, learner), radius, recording.colour(learner), learner === followed ? 3 : 1.2);
      }
    }
    for (let body = 0; body < recording.bodies; body++) {
      if (recording.isPresent(frame, body)) this.drawBody(moment, frame, body, body === followed);
    }
    if (byId("seen").checked && recording.isLearner(followed)) this.drawSeen(frame, followed);
    this.panel.show(frame, followed);
  }

  drawRoads() {
    const { context, recording } = this;
    const { segment, segment_kind: kinds, colours } = recording;
    for (const kind of Object.keys(colours.roads)) {
      context.strokeStyle = colours.roads[kind];
      context.lineWidth = 1.2 * colours.widths[kind] * this.pixel;
      context.beginPath();
      for (let index = 0; index < kinds.length; index++) {
        if (kinds[index] !== Number(kind)) continue;
        context.moveTo(segment[4 * index], segment[4 * index + 1]);
        context.lineTo(segment[4 * index + 2], segment[4 * index + 3]);
      }
      context.stroke();
    }
  }

  drawBody(moment, frame, body, isFollowed) {
    const { context, recording } = this;
    const [x, y, heading] = recording.poseBetween(moment, body);
    const [length, width] = recording.size.subarray(2 * body, 2 * body + 2);
    context.save();
    context.translate(x, y);
    context.rotate(heading);
    context.lineWidth = (isFollowed ? 3 : 1.5) * this.pixel;
    context.fillStyle = context.strokeStyle = recording.colour(body);
    if (recording.flag("ghost", frame, body)) context.strokeRect(-length / 2, -width / 2, length, width);
    else context.fillRect(-length / 2, -width / 2, length, width);
    context.strokeStyle = recording.colours.ink;
    if (isFollowed || recording.flag("colliding", frame, body) || recording.flag("offroad", frame, body)) {
      context.strokeRect(-length / 2, -width / 2, length, width);
    }
    context.beginPath();
    context.moveTo(length * 0.15, 0);
    context.lineTo(length / 2, 0);
    context.stroke();
    context.restore();
  }

  /** Draws the blocks of an observation in the learner's frame, from their numbers alone. */
  drawSeen(frame, learner) {
    const { context, recording } = this;
    const { view } = recording;
    const [x, y, heading] = recording.poseAt(frame, learner);
    context.save();
    context.translate(x, y);
    context.rotate(heading);
    context.strokeStyle = "#862e9c";
    context.lineWidth = 2 * this.pixel;
    for (const name of ["lanes", "edges", "roads"]) {
      for (const row of recording.rows(frame, learner, name)) {
        const half = row.half_length * view.half;
        const [middleX, middleY] = [row.x * view.position, row.y * view.position];
        context.beginPath();
        context.moveTo(middleX - half * row.cos, middleY - half * row.sin);
        context.lineTo(middleX + half * row.cos, middleY + half * row.sin);
        context.stroke();
      }
    }
    for (const row of recording.rows(frame, learner, "partners")) {
      context.save();
      context.translate(row.x * view.position, row.y * view.position);
      context.rotate(Math.atan2(row.sin, row.cos));
      const [length, width] = [row.length * view.length, row.width * view.width];
      context.strokeRect(-length / 2 - 0.3, -width / 2 - 0.3, length + 0.6, width + 0.6);
      context.restore();
    }
    for (const row of recording.rows(frame, learner, "ego")) {
      this.circle([row.goal_x * view.goal, row.goal_y * view.goal], 1, "#862e9c", 2);
    }
    context.restore();
  }
}
