// Elements of the page: buttons, the slider of time, keys, and the list of events.

const byId = (id) => document.getElementById(id);

function element(tag, className, parent, text = "") {
  const created = document.createElement(tag);
  created.className = className;
  created.textContent = text;
  parent.append(created);
  return created;
}

/** A row of the side panel: a coloured mark and a text. */
function markedRow(parent, colour, text, onClick, filled = true) {
  const row = element("button", "row", parent);
  const mark = element("i", "", row).style;
  mark.background = filled ? colour : "transparent";
  mark.boxShadow = `inset 0 0 0 2px ${colour}`;
  const label = element("span", "", row, text);
  row.onclick = onClick;
  return { row, label };
}

/** Sets the resolution of a canvas to its size on the screen. */
function fit(canvas, ratio) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((side) => Math.round(side * ratio));
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
}

class EventList {
  constructor(recording, player) {
    this.rows = recording.eventRows().map(({ frame, text, colour = "", subject = NOBODY }) => {
      const item = element("li", "", byId("events"), `${recording.clock(frame)}  ${text}`);
      item.style.color = colour;
      item.onclick = () => {
        if (subject !== NOBODY) player.followed = subject;
        player.seek(frame);
      };
      return { frame, item };
    });
    this.past = -1;
  }

  update(moment) {
    const past = this.rows.filter(({ frame }) => frame <= moment);
    if (past.length === this.past) return;
    this.past = past.length;
    for (const { frame, item } of this.rows) item.classList.toggle("past", frame <= moment);
    if (past.length) past[past.length - 1].item.scrollIntoView({ block: "nearest" });
  }
}

function connectControls(player) {
  byId("play").onclick = () => player.setPlaying(!player.playing);
  byId("reset").onclick = () => player.reset();
  byId("moment").max = player.recording.last;
  byId("moment").value = 0;
  byId("moment").oninput = (event) => player.seek(Number(event.target.value));
  window.addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLSelectElement;
    if (typing || !player.press(event.key)) return;
    event.preventDefault();
    if (event.target instanceof HTMLButtonElement) event.target.blur();
  });
}
