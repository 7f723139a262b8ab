// Side panel: list of learners, rewards of the followed learner, and events.

class Panel {
  constructor(recording, onFollow, onMoment) {
    this.recording = recording;
    document.getElementById("caption").textContent = recording.caption;
    this.rows = recording.learners.map((learner) => this.learnerRow(learner, onFollow));
    this.events = recording.events.map(([seconds, learner, what]) => {
      const item = document.createElement("li");
      item.textContent = `${seconds.toFixed(1)} s   ${learner}: ${what}`;
      item.onclick = () => {
        onFollow(learner);
        onMoment(Math.round(seconds / recording.period));
      };
      document.getElementById("events").append(item);
      return { item, frame: Math.round(seconds / recording.period) };
    });
  }

  learnerRow(learner, onFollow) {
    const button = document.createElement("button");
    const mark = document.createElement("i");
    mark.style.background = this.recording.colour(learner);
    button.append(mark, `${learner}  ${this.recording.outcomes[learner]}`);
    button.onclick = () => onFollow(learner);
    document.getElementById("learners").append(button);
    return { button, learner };
  }

  show(frame, followed) {
    const { recording } = this;
    for (const { button, learner } of this.rows) button.classList.toggle("followed", learner === followed);
    for (const event of this.events) event.item.classList.toggle("past", event.frame < frame);
    const place = document.getElementById("followed");
    if (followed === null || !recording.isLearner(followed)) {
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
