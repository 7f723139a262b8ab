// The list of units, the score, and the last event.

class Panel {
  constructor(recording, follow) {
    this.recording = recording;
    this.rows = recording.present().map((mech) => this.addUnit(mech, follow));
  }

  addUnit(mech, follow) {
    const team = this.recording.team(mech);
    const button = element("button", "unit", byId(["units-blue", "units-red"][team]));
    button.style.borderColor = this.recording.teams[team];
    button.onclick = () => follow(mech);
    element("span", "name", button, this.recording.names[mech]);
    const state = element("span", "state", button);
    const bars = [0, 1].map(() => element("div", "", element("div", "bar", button)));
    return { mech, button, state, bars };
  }

  update(moment, followed) {
    for (const row of this.rows) this.updateUnit(row, moment, followed);
    this.updateScore(moment);
    this.updateMessage(moment);
  }

  updateUnit({ mech, button, state, bars }, moment, followed) {
    const now = this.recording.mech(mech, moment);
    const { kills, dealt } = this.recording.deeds(mech, moment);
    const [hp, heat] = now.alive ? [now.hp, now.heat] : [0, 0];
    button.classList.toggle("dead", !now.alive);
    button.classList.toggle("followed", mech === followed);
    state.textContent = `${"✕".repeat(Math.min(kills, 10))} ${dealt}`;
    button.title = `${hp} % hit points, ${heat} % heat, ${kills} kills, ${dealt} damage done`;
    bars[0].style.cssText = `width:${hp}%;background:${hpColour(hp)}`;
    bars[1].style.cssText = `width:${Math.min(heat, 100)}%;background:${heatColour(heat)}`;
  }

  updateScore(moment) {
    const { recording } = this;
    const scores = recording.score(moment);
    ["score-blue", "score-red"].forEach((id, team) => {
      const share = Math.min(scores[team] / recording.scoreGoal, 1);
      byId(id).style.cssText = `width:${50 * share}%;background:${recording.teams[team]}`;
    });
    const side = (team) => `${recording.living(team, moment)} alive, ${scores[team].toFixed(1)} s`;
    byId("headline").textContent = `blue ${side(0)}  |  ${recording.clock(moment)}  |  red ${side(1)}`;
  }

  /** The last event, for three seconds. */
  updateMessage(moment) {
    const recent = this.recording.events.filter(
      ([frame]) => frame <= moment && (moment - frame) * this.recording.period < 3,
    );
    const [, team, text] = recent.length ? recent[recent.length - 1] : [0, NOBODY, ""];
    byId("message").textContent = text;
    byId("message").style.color = this.recording.teamColour(team);
  }
}
