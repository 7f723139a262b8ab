"""Recording of one mission, and quantities derived from it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxmarl_echelon.envs.echelon.battle.state import NO_MECH, TEAMS
from jaxmarl_echelon.envs.echelon.missions.view.frames import PERCENT, REWARD_GROUPS
from jaxmarl_echelon.envs.echelon.missions.view.words import order_in_words
from jaxmarl_echelon.envs.echelon.view.recorded_battle import RecordedBattle
from jaxmarl_echelon.palette import GOLD, GREEN, NEUTRAL, PURPLE, SKY

# Colours of `REWARD_GROUPS`.
FAMILY_COLOURS = (SKY, GOLD, GREEN, PURPLE, NEUTRAL)
# Colours of status reports: green, yellow, red.
STATUS_COLOURS = ("#4dd199", "#f0c419", "#a01030")
_GREEN, _YELLOW = 2 / 3, 1 / 3


@dataclass(frozen=True)
class RecordedMission(RecordedBattle):
    """Recorded mission of M mechs.

    Attributes:
      verbs: names of the verbs.
      cell: edge of a coverage cell, voxels.
      columns: coverage cells along x.
      area: width of the area of operations around an objective, voxels.
    """

    verbs: tuple[str, ...]
    cell: int
    columns: int
    area: float

    @property
    def score_goal(self) -> float:
        """Success that fills a bar of the score."""
        return 1.0

    @cached_property
    def words(self) -> list[list[str]]:
        """Orders in words of each team at every moment, `[K][T]`."""
        found = []
        for team in range(len(TEAMS)):
            said: dict[tuple, str] = {}
            rows = zip(
                self.frames.verb[:, team],
                self.frames.parameters[:, team],
                self.frames.zone[:, team],
                strict=True,
            )
            column = []
            for verb, parameters, zone in rows:
                key = (int(verb), *map(int, parameters), *map(float, zone))
                if key not in said:
                    said[key] = order_in_words(self.verbs[verb], parameters / PERCENT, zone)
                column.append(said[key])
            found.append(column)
        return found

    def covered(self, moment: int, team: int) -> np.ndarray:
        """Returns the centres `[N, 2]` of the coverage cells that a team has entered by a moment."""
        bits = np.unpackbits(self.frames.covered[moment, team], bitorder="little")
        number = np.flatnonzero(bits)
        return (np.stack([number % self.columns, number // self.columns], -1) + 0.5) * self.cell

    @cached_property
    def tracks(self) -> np.ndarray:
        """Bool `[T, M, M]`: the viewer has a confirmed track of the target."""
        bits = np.unpackbits(self.frames.tracks, axis=-1, bitorder="little")
        return bits[..., : self.frames.tracks.shape[1]].astype(bool)

    @cached_property
    def paid(self) -> np.ndarray:
        """Cumulative reward `[T, F]` from each of `REWARD_GROUPS`, mean over blue's mechs."""
        return np.cumsum(self.frames.paid, axis=0)

    def shares(self, moment: int) -> np.ndarray:
        """Returns shares `[F]` of `REWARD_GROUPS` in the cumulative reward, by absolute value."""
        size = np.abs(self.paid[moment])
        return size / max(size.sum(), 1e-9)

    def paid_in_words(self, moment: int) -> str:
        """Returns blue's reward in words: "paid +0.57: shaping 21 %, objective 9 %, success 70 %"."""
        shares = zip(REWARD_GROUPS, self.shares(moment), strict=True)
        parts = ", ".join(f"{name} {PERCENT * share:.0f} %" for name, share in shares if share >= 0.005)
        return f"paid {self.paid[moment].sum():+.2f}" + (f": {parts}" if parts else "")

    def status_colour(self, moment: int, mech: int) -> str:
        """Returns the colour of a mech's last status report."""
        share = self.frames.report[moment, mech] / PERCENT
        return STATUS_COLOURS[0 if share >= _GREEN else 1 if share >= _YELLOW else 2]

    @cached_property
    def events(self) -> list[tuple[int, int, str]]:
        """Events in order of time: (frame, team or -1, sentence)."""
        said = sorted(self._kills() + self._orders() + self._finds(), key=lambda event: event[0])
        return [*said, (self.last, NO_MECH, self.result)]

    def _orders(self) -> list[tuple[int, int, str]]:
        """Returns events of orders: at the start and at changes."""
        said = []
        for team, words in enumerate(self.words):
            changes = [t for t in range(len(words)) if t == 0 or words[t] != words[t - 1]]
            said += [(t, team, f"{'GO: ' if t else ''}{words[t]}") for t in changes]
        return said

    def _finds(self) -> list[tuple[int, int, str]]:
        """Returns events of first confirmed tracks."""
        said = []
        for target in range(self.tracks.shape[2]):
            seen = np.argwhere(self.tracks[:, :, target])
            if len(seen):
                moment, viewer = (int(i) for i in seen[0])
                said.append(
                    (moment, int(self.team[viewer]), f"{self.names[viewer]} has found {self.names[target]}")
                )
        return said
