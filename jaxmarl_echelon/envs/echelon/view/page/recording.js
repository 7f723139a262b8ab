// A recorded battle, decoded.

class Recording extends EpisodeRecording {
  constructor(raw) {
    super(raw);
    this.voxels = decodeArray(raw.voxels);
    this.frames = decodeArrays(raw.frames);
    [this.count, this.mechs, this.places] = raw.frames.projectile_kind.shape;
    this.clouds = raw.frames.smoke_left.shape[2];
    this.last = this.count - 1;
    this.died = this.names.map((_, mech) => this.deathOf(mech));
  }

  /** First frame in which a mech is dead; Infinity for survivors. */
  deathOf(mech) {
    for (let frame = 0; frame < this.count; frame++) {
      if (!this.is("alive", frame, mech)) return frame;
    }
    return Infinity;
  }

  team(mech) {
    return mech < this.blue ? 0 : 1;
  }

  /** Mechs that take part in the battle. */
  present() {
    return this.names.map((_, mech) => mech).filter((mech) => this.died[mech] > 0);
  }

  value(name, frame, mech) {
    return this.frames[name][frame * this.mechs + mech];
  }

  is(status, frame, mech) {
    return ((this.value("status", frame, mech) >> this.status.indexOf(status)) & 1) === 1;
  }

  fired(weapon, frame, mech) {
    return ((this.value("shots", frame, mech) >> weapon) & 1) === 1;
  }

  /** Point number `index` of a frame, in voxels. */
  point(name, frame, index) {
    const values = this.frames[name];
    const perFrame = values.length / this.count;
    const start = frame * perFrame + 3 * index;
    return [0, 1, 2].map((axis) => values[start + axis] * this.lengthUnit);
  }

  /** A mech between frames; the dead stay where they died. */
  mech(mech, moment) {
    const frame = Math.min(Math.floor(moment), this.died[mech]);
    const next = Math.min(frame + 1, this.last, this.died[mech]);
    const share = next > frame ? moment - frame : 0;
    return {
      index: mech,
      team: this.team(mech),
      size: this.sizes[mech],
      alive: moment < this.died[mech],
      position: mix(this.point("position", frame, mech), this.point("position", next, mech), share),
      yaw: mixAngle(this.yaw(frame, mech), this.yaw(next, mech), share),
      hp: this.value("hp", frame, mech),
      heat: this.value("heat", frame, mech),
      is: (status) => this.is(status, frame, mech),
    };
  }

  yaw(frame, mech) {
    return this.value("yaw", frame, mech) * this.yawUnit;
  }

  /** Projectiles at a moment: [{kind, start, end}], a streak that ends at the projectile. */
  projectiles(moment) {
    const [frame, next] = this.around(moment);
    const share = moment - frame;
    const flying = [];
    for (let index = 0; index < this.mechs * this.places; index++) {
      const [before, after] = [frame, next].map((f) => this.frames.projectile_kind[f * this.mechs * this.places + index]);
      if (after === NOBODY && (before === NOBODY || share > 0.5)) continue;
      const kind = after === NOBODY ? before : after;
      const end = this.point("projectile", after === NOBODY ? frame : next, index);
      const start = before === kind
        ? this.point("projectile", frame, index)
        : this.point("position", next, Math.floor(index / this.places));
      flying.push({ kind, start: mix(start, end, share - 0.4), end: mix(start, end, share) });
    }
    return flying;
  }

  /** Clouds of smoke at a moment: [{center, share of life left}]. */
  smoke(moment) {
    const frame = Math.floor(moment);
    const found = [];
    for (let index = 0; index < this.mechs * this.clouds; index++) {
      const left = this.frames.smoke_left[frame * this.mechs * this.clouds + index];
      if (left > 0) found.push({ center: this.point("smoke", frame, index), left: left / this.smokeLife });
    }
    return found;
  }

  /** The two frames around a moment, the same one twice at the end. */
  around(moment) {
    const frame = Math.floor(moment);
    return [frame, Math.min(frame + 1, this.last)];
  }

  /** Shots of the decision under way: [frame, weapon, shooter, target]. */
  beamsAt(moment) {
    const frame = Math.ceil(moment);
    return this.beams.filter((beam) => beam[0] === frame);
  }

  /** Kills and damage of a mech up to a moment. */
  deeds(mech, moment) {
    let [kills, dealt] = [0, 0];
    for (let frame = 1; frame <= moment; frame++) {
      kills += this.value("kills", frame, mech);
      dealt += this.value("dealt", frame, mech);
    }
    return { kills, dealt };
  }

  living(team, moment) {
    return this.present().filter((mech) => this.team(mech) === team && moment < this.died[mech]).length;
  }

  /** Seconds that both teams have held the zone. */
  score(moment) {
    const frame = Math.floor(moment);
    return [0, 1].map((team) => this.frames.score[2 * frame + team]);
  }

  teamColour(team) {
    return team === NOBODY ? this.neutralColour : this.teams[team];
  }

  ownerColour(moment) {
    return this.teamColour(this.holders[Math.floor(moment)]);
  }

  eventRows() {
    return this.events.map(([frame, team, text]) => ({ frame, text, colour: this.teamColour(team) }));
  }
}
