"""Draws several episodes from above, as one PNG."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxmarl_echelon.envs.drive.view.frames import OUTCOMES, DriveEpisode
from jaxmarl_echelon.envs.drive.view.palette import OUTCOME_COLOURS, SCRIPTED
from jaxmarl_echelon.envs.viewing.panels import add_legend, make_panels


def save_drive_picture(path: str | Path, episodes: Sequence[DriveEpisode], title: str) -> None:
    """Draws the trajectories of all learners, one panel per episode.

    A box marks a start, a line the path of the first attempt, and a circle a goal; colours show the outcome.

    Args:
      path: file to write.
      episodes: at least one.
      title: headline.
    """
    from jaxmarl_echelon.envs.drive.view.road_drawing import draw_roads

    figure, panels, _ = make_panels(len(episodes), (5.4, 5.2), title)
    for index, (axes, episode) in enumerate(zip(panels, episodes, strict=True)):
        draw_roads(axes, episode.scene)
        _draw_bodies(axes, episode)
        axes.set_title(f"episode {index}: {episode.kind}, {describe_outcomes(episode)}", fontsize=9)
    handles = _make_handles()
    add_legend(figure, handles, len(handles))
    figure.savefig(path)


def describe_outcomes(episode: DriveEpisode) -> str:
    """Returns the number of learners and the outcomes of their first attempts."""
    outcomes = [episode.outcome[slot] for slot in episode.learners]
    counts = ", ".join(f"{outcomes.count(name)} {name}" for name in OUTCOMES if name in outcomes)
    return f"{len(outcomes)} learners: {counts}"


def _draw_bodies(axes, episode: DriveEpisode) -> None:
    from matplotlib.patches import Circle, Polygon

    from jaxmarl_echelon.envs.drive.view.road_drawing import make_box_outlines

    pose, size = episode.pose, episode.scene.size
    for slot in np.flatnonzero(episode.states.present[0]):
        learner = slot < episode.agents and episode.scene.learner[slot]
        colour = OUTCOME_COLOURS[episode.outcome[slot]] if learner else SCRIPTED
        axes.add_patch(
            Polygon(
                make_box_outlines(pose[:1, slot], size[slot][None])[0], color=colour, linewidth=0, zorder=3
            )
        )
        if not learner:
            continue
        first = episode.states.record.first[:, slot] & episode.states.alive[:, slot]
        end = int(np.argmin(first)) if not first.all() else len(first)
        axes.plot(*pose[:end, slot, :2].T, color=colour, linewidth=1.1, zorder=4)
        goal = episode.states.goal[0, slot]
        axes.add_patch(Circle(goal, 2.0, fill=False, color=colour, linewidth=1.2, zorder=4))


def _make_handles() -> list:
    """Returns the entries of the legend."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, label=name) for name, colour in OUTCOME_COLOURS.items()]
    handles.append(Line2D([], [], color=SCRIPTED, marker="s", linestyle="none", label="scripted"))
    goal = Line2D([], [], color="#555555", marker="o", fillstyle="none", linestyle="none", label="goal")
    return [*handles, goal]
