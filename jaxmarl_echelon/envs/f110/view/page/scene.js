// Draws a moment of the recording: walls, the beams of car 0, and the cars.

class View extends FlatView {
  constructor(recording, player) {
    super(recording, player);
    this.map = this.drawMap();
    this.rows = Array.from({ length: recording.bodies }, (_, car) =>
      markedRow(byId("cars"), recording.colour(car), "", () => player.follow(car), recording.filled[car]));
  }

  /** The map as an image of one pixel per cell; its first row is the northernmost. */
  drawMap() {
    const { recording } = this;
    const [rows, columns] = recording.cells;
    const map = document.createElement("canvas");
    [map.width, map.height] = [columns, rows];
    const pen = map.getContext("2d");
    pen.fillStyle = recording.colours.wall;
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        if (recording.isWall(row * columns + column)) pen.fillRect(column, rows - 1 - row, 1, 1);
      }
    }
    return map;
  }

  drawScene(moment, followed) {
    const { context, recording } = this;
    const [[left, bottom], [right, top]] = [recording.low, recording.high];
    context.save();
    context.imageSmoothingEnabled = false;
    context.transform(1, 0, 0, -1, left, top);
    context.drawImage(this.map, 0, 0, right - left, top - bottom);
    context.restore();
    const frame = Math.floor(moment);
    this.drawBeams(frame, recording.poseBetween(moment, 0));
    for (let car = 0; car < recording.bodies; car++) this.drawCar(moment, frame, car, car === followed);
    this.rows.forEach(({ row, label }, car) => {
      row.classList.toggle("followed", car === followed);
      const lap = recording.lap ? `   lap ${recording.currentLap(frame, car)}` : "";
      label.textContent = `${recording.names[car]}   ${recording.speed(frame, car).toFixed(1)} m/s${lap}`;
    });
  }

  drawBeams(frame, [x, y, heading]) {
    const { context, recording } = this;
    context.strokeStyle = recording.colours.beam;
    context.lineWidth = this.pixel;
    recording.angles.forEach((angle, beam) => {
      const range = recording.scan[frame * recording.beams + beam];
      this.line([x, y], [x + range * Math.cos(heading + angle), y + range * Math.sin(heading + angle)]);
    });
  }

  drawCar(moment, frame, car, isFollowed) {
    const { context, recording } = this;
    const [length, width] = recording.size;
    this.within(recording.poseBetween(moment, car), () => {
      const filled = recording.filled[car];
      context.lineWidth = (isFollowed ? 4 : filled ? 1 : 2.5) * this.pixel;
      context.strokeStyle = filled ? recording.colours.ink : recording.colour(car);
      context.fillStyle = filled ? recording.colour(car) : recording.colours.paper;
      context.fillRect(-length / 2, -width / 2, length, width);
      context.strokeRect(-length / 2, -width / 2, length, width);
      const steer = recording.steer[frame * recording.bodies + car];
      const [ahead, aside] = [0.25 * length * Math.cos(steer), 0.25 * length * Math.sin(steer)];
      context.lineWidth = 3 * this.pixel;
      context.strokeStyle = recording.colours.ink;
      this.line([0.35 * length - ahead, -aside], [0.35 * length + ahead, aside]);
    });
  }
}
