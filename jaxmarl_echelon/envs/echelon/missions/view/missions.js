// Additional content of mission replays: orders, objectives, coverage, tracks, status reports, success.

const flag = (bytes, index) => ((bytes[index >> 3] >> (index & 7)) & 1) === 1;

Object.assign(Recording.prototype, {
  /** A team's order in words. */
  wordsAt(team, moment) {
    const past = this.words[team].filter(([frame]) => frame <= moment);
    return past[past.length - 1][1];
  },

  /** x, y and radius of a team's objective. */
  objective(team, moment) {
    const start = 6 * Math.floor(moment) + 3 * team;
    return Array.from(this.frames.zone.slice(start, start + 3));
  },

  /** Centres of the cells that a team has entered. */
  coveredCells(team, moment) {
    const width = this.frames.covered.length / (2 * this.count);
    const start = (2 * Math.floor(moment) + team) * width;
    const bytes = this.frames.covered.slice(start, start + width);
    const found = [];
    for (let index = 0; index < 8 * width; index++) {
      const column = index % this.cellColumns;
      const row = Math.floor(index / this.cellColumns);
      if (flag(bytes, index)) found.push([(column + 0.5) * this.cell, (row + 0.5) * this.cell]);
    }
    return found;
  },

  /** Pairs of mechs in which the first has a confirmed track of the second. */
  tracksAt(moment) {
    const width = this.frames.tracks.length / (this.mechs * this.count);
    const found = [];
    for (let viewer = 0; viewer < this.mechs; viewer++) {
      const start = (Math.floor(moment) * this.mechs + viewer) * width;
      const bytes = this.frames.tracks.slice(start, start + width);
      for (let target = 0; target < this.mechs; target++) if (flag(bytes, target)) found.push([viewer, target]);
    }
    return found;
  },

  /** Cumulative reward of blue's mechs from each family of components, on average. */
  paidUntil(moment) {
    return this.families.map((_, index) => {
      let sum = 0;
      for (let frame = 0; frame <= moment; frame++) sum += this.frames.paid[frame * this.families.length + index];
      return sum;
    });
  },

  /** Shares of the families in the cumulative reward, by absolute value. */
  paidShares(moment) {
    const sizes = this.paidUntil(moment).map(Math.abs);
    const whole = Math.max(sizes.reduce((sum, size) => sum + size, 0), 1e-9);
    return sizes.map((size) => size / whole);
  },

  /** Green, yellow or red. */
  reportColour(mech, moment) {
    const percent = this.value("report", Math.floor(moment), mech);
    return this.statusColours[percent >= 67 ? 0 : percent >= 33 ? 1 : 2];
  },
});

Scene.prototype.drawZone = function (moment) {
  const { recording } = this;
  for (const team of [0, 1]) {
    const [x, y, radius] = recording.objective(team, moment);
    const colour = rgb(recording.teams[team]);
    const wide = radius + recording.area;
    this.mesh(this.ring, place([x, y, 0.2 * team], [radius, radius, 0.4]), colour);
    this.mesh(this.ring, place([x, y, 0.4], [radius, radius, 3]), colour, 0.3);
    this.mesh(this.ring, place([x, y, 0], [wide, wide, 0.2]), colour, 0.5);
    const half = 0.9 * recording.cell;
    for (const middle of recording.coveredCells(team, moment)) {
      this.mesh(this.cube, place([...middle, 0.05 + 0.02 * team], [half, half, 0.04]), colour, 0.3);
    }
  }
  for (const [viewer, target] of recording.tracksAt(moment)) {
    const [from, to] = [viewer, target].map((mech) => recording.mech(mech, moment).position);
    this.mesh(this.cube, along(from, to, 0.06), [0.8, 0.8, 0.8], 0.5);
  }
};

const drawPlainTag = Overlay.prototype.drawTag;
Overlay.prototype.drawTag = function (mech, spot, followed) {
  drawPlainTag.call(this, mech, spot, followed);
  this.pen.fillStyle = this.recording.reportColour(mech.index, this.moment);
  this.pen.beginPath();
  this.pen.arc(spot.x, spot.y - 30, 4, 0, 2 * Math.PI);
  this.pen.fill();
};

const drawPlainOverlay = Overlay.prototype.draw;
Overlay.prototype.draw = function (view, moment, followed, ratio) {
  this.moment = moment;
  drawPlainOverlay.call(this, view, moment, followed, ratio);
};

Panel.prototype.updateScore = function (moment) {
  const { recording } = this;
  const success = recording.score(moment);
  const header = document.querySelector("header");
  this.orders ??= [0, 1].map((team) => {
    const line = element("p", "", header);
    line.style.cssText = `margin: 2px 8px; color: ${recording.teams[team]}; filter: brightness(1.35)`;
    return line;
  });
  ["score-blue", "score-red"].forEach((id, team) => {
    byId(id).style.cssText = `width:${50 * Math.min(success[team], 1)}%;background:${recording.teams[team]}`;
    const side = ["blue", "red"][team];
    this.orders[team].textContent = `${side} ${success[team].toFixed(2)}: ${recording.wordsAt(team, moment)}`;
  });
  this.updatePaid(moment, header);
  const alive = [0, 1].map((team) => recording.living(team, moment));
  byId("headline").textContent = `${alive[0]} alive  |  ${recording.clock(moment)}  |  ${alive[1]} alive`;
};

/** Blue's cumulative reward by family, and a bar of their shares. */
Panel.prototype.updatePaid = function (moment, header) {
  const { families, familyColours } = this.recording;
  if (!this.paid) {
    const line = element("p", "", header);
    line.style.cssText = "margin: 2px 8px";
    const bar = element("div", "", header);
    bar.style.cssText = "display: flex; height: 5px; margin: 0 8px; background: #0008";
    this.paid = {
      whole: element("span", "", line),
      parts: families.map((_, index) => {
        const text = element("span", "", line);
        text.style.cssText = `margin-left: 12px; color: ${familyColours[index]}; filter: brightness(1.35)`;
        return { text, piece: element("div", "", bar) };
      }),
    };
  }
  const paid = this.recording.paidUntil(moment);
  const shares = this.recording.paidShares(moment);
  const signed = (value) => `${value < 0 ? "" : "+"}${value.toFixed(2)}`;
  this.paid.whole.textContent = `paid to blue ${signed(paid.reduce((sum, value) => sum + value, 0))}`;
  this.paid.parts.forEach(({ text, piece }, index) => {
    text.textContent = `${families[index]} ${signed(paid[index])} (${Math.round(100 * shares[index])} %)`;
    piece.style.cssText = `width: ${100 * shares[index]}%; background: ${familyColours[index]}`;
  });
};
