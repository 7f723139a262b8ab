// A recorded drive on a map, decoded.

class Recording extends FlatRecording {
  constructor(raw) {
    super(raw);
    this.beams = this.angles.length;
    this.longestStep = 3;
  }

  /** Time in s at a moment; the last decision may be shorter than the others. */
  seconds(moment) {
    const frame = Math.floor(moment);
    const next = Math.min(frame + 1, this.last);
    return this.dt * (this.step[frame] + (moment - frame) * (this.step[next] - this.step[frame]));
  }

  clock(moment) {
    return `${this.seconds(moment).toFixed(2)} s`;
  }

  eventRows() {
    return this.events.map(([frame, , text]) => ({ frame, text, colour: this.outcomeColour }));
  }

  colour(car) {
    return this.colours.cars[car % this.colours.cars.length];
  }

  /** Mean speed of a car from one frame to the next, m/s. */
  speed(frame, car) {
    const start = Math.max(Math.min(frame, this.last - 1), 0);
    const end = Math.min(start + 1, this.last);
    const [from, to] = [start, end].map((time) => this.poseAt(time, car));
    const passed = this.seconds(end) - this.seconds(start);
    return passed > 0 ? Math.hypot(to[0] - from[0], to[1] - from[1]) / passed : 0;
  }

  /** Number of the lap that a car is driving, from 1. */
  currentLap(frame, car) {
    return Math.floor(Math.max(this.progress[frame * this.bodies + car], 0) / this.lap) + 1;
  }

  /** Whether a cell of the map, counted from the lower left by rows, is a wall. */
  isWall(cell) {
    return ((this.walls[cell >> 3] >> (cell & 7)) & 1) === 1;
  }
}
