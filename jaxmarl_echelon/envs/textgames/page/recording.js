// A recorded game: texts of positions and moves. A moment is a number of plies.

class Recording extends EpisodeRecording {
  constructor(raw) {
    super(raw);
    this.last = this.positions.length - 1;
  }

  clock(moment) {
    return `ply ${Math.floor(moment)}`;
  }
}
