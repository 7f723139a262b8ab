"""Viewer of mech battles: a picture of trajectories, an animation and an interactive replay."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxmarl_echelon.envs import base
from jaxmarl_echelon.envs.echelon.battle.state import TEAMS
from jaxmarl_echelon.envs.echelon.results import ENDINGS
from jaxmarl_echelon.envs.echelon.view.animation import save_battle_gif
from jaxmarl_echelon.envs.echelon.view.palette import TEAM_COLOURS, terrain_image
from jaxmarl_echelon.envs.echelon.view.recorded_battle import RecordedBattle
from jaxmarl_echelon.envs.echelon.view.replay import save_replay
from jaxmarl_echelon.envs.echelon.view.snapshot import take_battle_snapshot
from jaxmarl_echelon.envs.viewing.panels import add_legend, choose_panels, make_panels, title_panel

_TITLE = 120


class PanelStyle(NamedTuple):
    """Contents of the panels of a picture.

    Attributes:
      mark: `(axes, episode)` draws the objectives.
      caption: `(episode) -> str`, title of an episode's panel.
      legend: `() -> handles`, legend entries of `mark`.
      columns: most panels in a row.
      lines: of the captions.
    """

    mark: Callable
    caption: Callable
    legend: Callable
    columns: int = 3
    lines: int = 2


class BattleViewer(base.Viewer):
    """Draws evaluations of one environment; see `jaxmarl_echelon.training.program.evaluation`.

    Terrain destruction is not recorded: images show the terrain at the start of the episode, and a
    wreck at the place of each death.

    Attributes:
      snapshot: the function to record with.
    """

    snapshot = staticmethod(take_battle_snapshot)

    def __init__(self, bank, teams: tuple[int, int], outcomes: Sequence[str], period: float = 0.25):
        """Stores the static data that recordings do not contain.

        Args:
          bank: the terrains (`terrain.bank.TerrainBank`).
          teams: numbers of blue and of red mechs.
          outcomes: names of the outcome codes.
          period: seconds per decision.
        """
        self.bank, self.teams, self.outcomes, self.period = bank, tuple(teams), tuple(outcomes), period

    def picture(self, path: Path, evaluation) -> None:
        """Draws the first episodes of an evaluation, one panel each, as a PNG."""
        self.picture_with(path, evaluation, None)

    def picture_with(self, path: Path, evaluation, episode: int | None) -> None:
        """Draws the first episodes of an evaluation and the chosen one, one panel each, as a PNG."""
        results = [self._result(evaluation, index) for index in range(len(evaluation.length))]
        often = sorted(sorted(set(results)), key=results.count, reverse=True)
        counts = ", ".join(f"{results.count(result)} {result}" for result in often)
        title = "\n".join(textwrap.wrap(f"{len(results)} episodes: {counts}", _TITLE))
        shown = {i: self._episode(evaluation, i) for i in choose_panels(len(results), episode)}
        save_picture(path, shown, title, episode)

    def animation(self, path: Path, evaluation, episode: int) -> None:
        """Draws one episode of an evaluation from above, as a GIF."""
        save_battle_gif(path, self._episode(evaluation, episode))

    def replay(self, path: Path, evaluation, episode: int) -> None:
        """Writes one episode of an evaluation as a page with a 3-D view, for any browser."""
        save_replay(path, self._episode(evaluation, episode))

    def _episode(self, evaluation, index: int) -> RecordedBattle:
        frames = super()._episode(evaluation, index)
        terrain = int(frames.map_index[0])
        return RecordedBattle(
            voxels=np.asarray(self.bank.voxels.material[terrain]),
            zone=np.asarray(self.bank.zone[terrain]),
            frames=frames,
            blue=self.teams[0],
            result=self._result(evaluation, index),
            period=self.period,
        )

    def _result(self, evaluation, index: int) -> str:
        """Returns the outcome of an episode in words: "blue win by zone"."""
        outcome, ending = int(evaluation.results["outcome"][index]), int(evaluation.frames.ending[-1, index])
        if outcome < 0:
            return "not over"
        name = self.outcomes[outcome].replace("_", " ")
        return f"{name} by {ENDINGS[ending]}" if ending >= 0 else name


def save_picture(
    path: str | Path,
    episodes: Mapping[int, RecordedBattle],
    title: str,
    chosen: int | None,
    style: PanelStyle | None = None,
) -> None:
    """Draws the trajectories of all mechs on their terrains, as a PNG.

    A dot marks a start, a triangle a survivor, a cross a death; blue's are filled, red's outlined. The circle
    is the zone.

    Args:
      path: file to write.
      episodes: by index, at least one; each gets a panel.
      title: headline.
      chosen: index of the episode whose title is emphasised; None for none.
      style: what panels show; by default zone, result and score.
    """
    style = style or PanelStyle(_mark_zone, _caption, _zone_handles)
    figure, _, panels = make_panels(len(episodes), 1.0, title, columns=style.columns, lines=style.lines)
    for axes, (index, episode) in zip(panels, episodes.items(), strict=True):
        _draw_panel(axes, episode, style.mark)
        title_panel(axes, f"episode {index}: {style.caption(episode)}", chosen=index == chosen)
    add_legend(figure, [*_team_handles(), *style.legend()], 6)
    figure.savefig(path)


def _mark_zone(axes, episode: RecordedBattle) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle(episode.zone[:2], episode.zone[2], fill=False, color="black", linewidth=1.6))


def _draw_panel(axes, episode: RecordedBattle, mark: Callable) -> None:
    rows, columns = episode.voxels.shape[1:]
    image = terrain_image(episode.voxels)
    axes.imshow(image, origin="lower", extent=(0, columns, 0, rows), interpolation="nearest")
    mark(axes, episode)
    for mech in np.flatnonzero(episode.alive[0]):
        colour, died = TEAM_COLOURS[episode.team[mech]], episode.deaths[:, mech]
        end = int(np.argmax(died)) if died.any() else episode.last
        path = episode.position[: end + 1, mech]
        axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=1.2, alpha=0.9)
        axes.plot(*path[0, :2], "o", color=colour, markersize=3.5)
        first = episode.team[mech] == 0
        style = {
            "markerfacecolor": colour if first else "white",
            "markeredgecolor": "black" if first else colour,
        }
        mark = "X" if died[end] else "^"
        axes.plot(*path[-1, :2], mark, markersize=9, markeredgewidth=0.8 if first else 1.8, zorder=4, **style)
    axes.set(xlim=(0, columns), ylim=(0, rows), aspect="equal", xticks=[], yticks=[])


def _caption(episode: RecordedBattle) -> str:
    present, alive = episode.alive[[0, -1]]
    sides = [episode.team == team for team in range(len(TEAMS))]
    left = " : ".join(f"{alive[side].sum()} of {present[side].sum()}" for side in sides)
    score = " : ".join(f"{seconds:.1f}" for seconds in episode.frames.score[-1])
    seconds = episode.frames.decision[-1] * episode.period
    return f"{episode.result}, {seconds:.1f} s\nalive {left}, zone {score} s"


def _zone_handles() -> list:
    from matplotlib.lines import Line2D

    return [Line2D([], [], color="black", label="capture zone")]


def _team_handles() -> list:
    """Returns legend entries of teams, starts and ends."""
    from matplotlib.lines import Line2D

    handles = []
    for team, colour, face in zip(TEAMS, TEAM_COLOURS, (TEAM_COLOURS[0], "white"), strict=True):
        style = {"marker": "^", "markersize": 9, "markerfacecolor": face, "markeredgecolor": colour}
        handles.append(Line2D([], [], color=colour, label=team, **style))
    for marker, label in (("o", "start"), ("^", "alive at the end"), ("X", "destroyed")):
        handles.append(Line2D([], [], color="#555555", marker=marker, linestyle="none", label=label))
    return handles
