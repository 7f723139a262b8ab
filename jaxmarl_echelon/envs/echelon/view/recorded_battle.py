"""Recording of one battle, and quantities derived from it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxmarl_echelon.envs.echelon.battle.state import NO_MECH, TEAMS
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CLASSES, FLAMER, LASER, PAINTER, WEAPON
from jaxmarl_echelon.envs.echelon.view.snapshot import LENGTH_UNIT, YAW_UNIT, BattleFrame, has_status
from physics.angles import wrap_angle_by_remainder

# Shooter and target have moved by the end of a decision.
_RANGE_SLACK, _ARC_SLACK = 2.0, 0.3
_SHORTEST_GOAL = 60.0


@dataclass(frozen=True)
class RecordedBattle:
    """Recorded battle of M mechs with T frames, and its terrain.

    Attributes:
      voxels: `[Z, Y, X]` uint8 materials at the start.
      zone: x, y and radius of the capture zone.
      frames: `[T, ...]`, as NumPy arrays.
      blue: number of blue's mechs.
      result: outcome in words.
      period: seconds per decision.
    """

    voxels: np.ndarray
    zone: np.ndarray
    frames: BattleFrame
    blue: int
    result: str
    period: float

    @property
    def last(self) -> int:
        """Index of the last frame."""
        return len(self.frames.decision) - 1

    @cached_property
    def position(self) -> np.ndarray:
        """`[T, M, 3]` in voxels."""
        return self.frames.position * LENGTH_UNIT

    @cached_property
    def team(self) -> np.ndarray:
        """`[M]` index into `TEAMS`."""
        return (np.arange(self.frames.yaw.shape[1]) >= self.blue).astype(int)

    @cached_property
    def alive(self) -> np.ndarray:
        """Bool `[T, M]`: alive; mechs that are dead in the first frame do not take part."""
        return has_status(self.frames, "alive")

    @cached_property
    def deaths(self) -> np.ndarray:
        """Bool `[T, M]`: died during the decision that led to the frame."""
        return np.concatenate([np.zeros_like(self.alive[:1]), self.alive[:-1] & ~self.alive[1:]])

    @cached_property
    def holders(self) -> np.ndarray:
        """Int `[T]`: team whose score grew most during the last decision, or -1 for neither."""
        gain = np.diff(self.frames.score, axis=0, prepend=self.frames.score[:1])
        return np.where(gain[:, 0] == gain[:, 1], NO_MECH, np.argmax(gain, axis=1))

    @property
    def score_goal(self) -> float:
        """Score (seconds) of a full bar: the winning score if finite, else the largest one, at least 60."""
        goal = float(self.frames.zone_seconds[-1])
        return goal if np.isfinite(goal) else max(float(np.max(self.frames.score[-1])), _SHORTEST_GOAL)

    @cached_property
    def short_names(self) -> list[str]:
        """Abbreviated names of the mechs: "B0"."""
        return [f"{TEAMS[team][0].upper()}{mech - team * self.blue}" for mech, team in enumerate(self.team)]

    @cached_property
    def names(self) -> list[str]:
        """Names of the mechs: "blue 0 heavy"; numbers count within the team."""
        return [
            f"{TEAMS[team]} {mech - team * self.blue} {CLASSES[self.frames.classes[0, mech]]}"
            for mech, team in enumerate(self.team)
        ]

    @cached_property
    def beams(self) -> list[tuple[int, int, int, int]]:
        """Shots of instant-hit weapons, as (frame, weapon, shooter, target).

        Targets are not recorded but reconstructed: weapons fire at the nearest enemy within range and
        arc, so the target is the nearest such enemy that was hit (painter: painted by the shooter).
        """
        distance, error = self._aim()
        enemy = self.team[:, None] != self.team
        hit = has_status(self.frames, "hit")[:, None]
        painted = self.frames.painter[:, None] == np.arange(len(self.team))[:, None]
        marks = {LASER: hit, FLAMER: hit, PAINTER: painted & has_status(self.frames, "painted")[:, None]}
        found = []
        for weapon, marked in marks.items():
            near = distance <= WEAPON.range[weapon] + _RANGE_SLACK
            ahead = error <= WEAPON.half_arc[weapon] + _ARC_SLACK
            candidate = np.where(enemy & marked & near & ahead, distance, np.inf)
            fired = (self.frames.shots >> weapon & 1 == 1) & np.isfinite(candidate.min(axis=-1))
            target = candidate.argmin(axis=-1)
            found += [(int(t), weapon, int(mech), int(target[t, mech])) for t, mech in np.argwhere(fired)]
        return sorted(found)

    def _aim(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns distances and bearing errors `[T, M, M]` from each mech (rows) to each other one."""
        offset = self.position[:, None] - self.position[:, :, None]
        bearing = np.arctan2(offset[..., 1], offset[..., 0]) - (self.frames.yaw * YAW_UNIT)[:, :, None]
        return np.linalg.norm(offset, axis=-1), np.abs(wrap_angle_by_remainder(bearing))

    @cached_property
    def events(self) -> list[tuple[int, int, str]]:
        """Events in order of time: (frame, team or -1, sentence)."""
        said = sorted(self._kills() + self._captures(), key=lambda event: event[0])
        return [*said, (self.last, NO_MECH, self.result)]

    def _kills(self) -> list[tuple[int, int, str]]:
        """Returns the deaths as events; each mech has one killer, but frames do not say which of several."""
        said = []
        for t, victim in np.argwhere(self.deaths):
            killers = np.flatnonzero((self.frames.kills[t] > 0) & (self.team != self.team[victim]))
            by = f" by {' or '.join(self.names[mech] for mech in killers)}" if killers.size else ""
            said.append((int(t), int(1 - self.team[victim]), f"{self.names[victim]} destroyed{by}"))
        return said

    def _captures(self) -> list[tuple[int, int, str]]:
        said, owner = [], NO_MECH
        for t, holder in enumerate(self.holders):
            if holder not in (NO_MECH, owner):
                owner = int(holder)
                said.append((t, owner, f"{TEAMS[owner]} holds the zone"))
        return said
