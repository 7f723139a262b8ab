"""Pictures of mech battles: trajectories from above, an animation and an interactive replay."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxmarl_echelon.envs.echelon.animation import save_gif
from jaxmarl_echelon.envs.echelon.frames import LENGTH_UNIT, Frame, deaths, episode_frames, has, snapshot
from jaxmarl_echelon.envs.echelon.outcomes import ENDINGS
from jaxmarl_echelon.envs.echelon.palette import TEAM_COLOURS, terrain_image
from jaxmarl_echelon.envs.echelon.replay import save_replay
from jaxmarl_echelon.envs.echelon.types import TEAMS

_PANELS = 6


class Viewer:
    """Draws evaluations of one environment; see `jaxmarl_echelon.training.evaluation`.

    What of the terrain is destroyed is not recorded: pictures show it as it was at the start, and
    a wreck where a mech died.

    Attributes:
      snapshot: the function to record with.
    """

    snapshot = staticmethod(snapshot)

    def __init__(self, bank, teams: tuple[int, int], outcomes: Sequence[str], period: float = 0.25):
        """Remembers what recordings leave out.

        Args:
          bank: the terrains (`terrain.bank.TerrainBank`).
          teams: numbers of blue and of red mechs.
          outcomes: names of the outcome codes.
          period: seconds per decision.
        """
        self.bank, self.teams, self.outcomes, self.period = bank, tuple(teams), tuple(outcomes), period

    def picture(self, path: Path, evaluation) -> None:
        """Draws the first episodes of an evaluation, one panel each, as a PNG."""
        episodes = [episode_frames(evaluation, index) for index in range(len(evaluation.length))]
        results = [self._result(evaluation, *episode) for episode in enumerate(episodes)]
        panels = [
            Panel(*self._place(frames), frames, self._caption(index, frames, results[index]))
            for index, frames in enumerate(episodes[:_PANELS])
        ]
        often = sorted(sorted(set(results)), key=results.count, reverse=True)
        title = ", ".join(f"{results.count(result)} {result}" for result in often)
        save_picture(path, panels, self.teams[0], f"{len(results)} episodes: {title}")

    def animation(self, path: Path, evaluation, episode: int) -> None:
        """Draws one episode of an evaluation from above, as a GIF."""
        frames = episode_frames(evaluation, episode)
        result = self._result(evaluation, episode, frames)
        save_gif(path, *self._place(frames), frames, self.teams[0], result, self.period)

    def replay(self, path: Path, evaluation, episode: int) -> None:
        """Writes one episode of an evaluation as a page with a 3-D view, for any browser."""
        frames = episode_frames(evaluation, episode)
        result = self._result(evaluation, episode, frames)
        save_replay(path, *self._place(frames), frames, self.teams[0], result, self.period)

    def _place(self, frames: Frame) -> tuple[np.ndarray, np.ndarray]:
        """The voxels and the zone of an episode."""
        index = int(frames.map_index[0])
        return np.asarray(self.bank.voxels.material[index]), np.asarray(self.bank.zone[index])

    def _result(self, evaluation, episode: int, frames: Frame) -> str:
        """How an episode ended, for people: "blue win by zone"."""
        outcome, ending = int(evaluation.outcome[episode]), int(frames.ending[-1])
        if outcome < 0:
            return "not over"
        name = self.outcomes[outcome].replace("_", " ")
        return f"{name} by {ENDINGS[ending]}" if ending >= 0 else name

    def _caption(self, episode: int, frames: Frame, result: str) -> str:
        present, alive = has(frames, "alive")[[0, -1]]
        blue = self.teams[0]
        left = " : ".join(
            f"{alive[side].sum()} of {present[side].sum()}" for side in (slice(blue), slice(blue, None))
        )
        score = " : ".join(f"{seconds:.1f}" for seconds in frames.score[-1])
        seconds = frames.decision[-1] * self.period
        return f"episode {episode}: {result}, {seconds:.1f} s\nalive {left}, zone {score} s"


class Panel(NamedTuple):
    """One episode of a picture.

    Attributes:
      voxels: `[Z, Y, X]` materials.
      zone: x, y and radius of the capture zone.
      frames: the episode's frames, `[T, ...]`.
      caption: its title.
    """

    voxels: np.ndarray
    zone: np.ndarray
    frames: Frame
    caption: str


def save_picture(path: str | Path, panels: Sequence[Panel], blue: int, title: str) -> None:
    """Draws the ways of all mechs on their terrains, as a PNG.

    A dot is a start, a triangle the place of a survivor, a cross a death; the circle is the zone.

    Args:
      path: file to write.
      panels: at least one episode.
      blue: number of mechs of blue.
      title: headline.
    """
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns, 5.4 * rows + 0.8), dpi=100, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        _draw_panel(axes, panel, blue)
    for axes in grid[len(panels) :]:
        axes.axis("off")
    figure.suptitle(title)
    _legend(figure)
    figure.savefig(path)


def _draw_panel(axes, panel: Panel, blue: int) -> None:
    from matplotlib.patches import Circle

    rows, columns = panel.voxels.shape[1:]
    image = terrain_image(panel.voxels)
    axes.imshow(image, origin="lower", extent=(0, columns, 0, rows), interpolation="nearest")
    axes.add_patch(Circle(panel.zone[:2], panel.zone[2], fill=False, color="black", linewidth=1.6))
    position = panel.frames.position * LENGTH_UNIT
    alive, died = has(panel.frames, "alive"), deaths(panel.frames)
    for mech in np.flatnonzero(alive[0]):
        colour = TEAM_COLOURS[int(mech >= blue)]
        end = int(np.argmax(died[:, mech])) if died[:, mech].any() else len(position) - 1
        path = position[: end + 1, mech]
        axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=0.9, alpha=0.85)
        axes.plot(*path[0, :2], "o", color=colour, markersize=3)
        style = dict(marker="X" if died[end, mech] else "^", markersize=7, markeredgecolor="black")
        axes.plot(*path[-1, :2], color=colour, **style)
    axes.set(xlim=(0, columns), ylim=(0, rows), aspect="equal")
    axes.set_title(panel.caption, fontsize=10)


def _legend(figure) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, label=team) for team, colour in zip(TEAMS, TEAM_COLOURS, strict=True)
    ]
    for marker, label in (("o", "start"), ("^", "alive at the end"), ("X", "destroyed")):
        handles.append(Line2D([], [], color="#555555", marker=marker, linestyle="none", label=label))
    handles.append(Line2D([], [], color="black", label="capture zone"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
