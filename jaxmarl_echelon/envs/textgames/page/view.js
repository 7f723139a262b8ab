// The position after a ply, and the scores once the game is over.

class View {
  constructor(recording) {
    this.recording = recording;
    byId("caption").textContent = recording.caption;
  }

  draw(moment) {
    const { recording } = this;
    const ply = Math.floor(moment);
    byId("position").textContent = recording.positions[ply];
    byId("move").textContent = recording.moves[ply];
    byId("message").textContent = ply === recording.last ? recording.scores : "";
  }

  reset() {}
}
