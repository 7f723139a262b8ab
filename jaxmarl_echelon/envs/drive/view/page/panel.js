// Side panel: list of learners, and rewards of the followed learner.

class Panel {
  constructor(recording, onFollow) {
    this.recording = recording;
    byId("caption").textContent = recording.caption;
    this.rows = recording.learners.map((learner) => {
      const text = `${learner}  ${recording.outcomes[learner]}`;
      const { row } = markedRow(byId("learners"), recording.colour(learner), text, () => onFollow(learner));
      return { row, learner };
    });
  }

  show(frame, followed) {
    const { recording } = this;
    for (const { row, learner } of this.rows) row.classList.toggle("followed", learner === followed);
    const place = byId("followed");
    if (!recording.isLearner(followed)) {
      place.replaceChildren();
      return;
    }
    const table = document.createElement("table");
    const add = (...cells) => {
      const row = table.insertRow();
      for (const cell of cells) row.insertCell().textContent = cell;
    };
    const speed = recording.speed[frame * recording.bodies + followed];
    add("speed", `${speed.toFixed(1)} m/s`, "");
    add("reward", "now", "so far");
    for (const { name, now, total } of recording.earnings(frame, followed)) add(name, now.toFixed(3), total.toFixed(2));
    place.replaceChildren(table);
  }
}
