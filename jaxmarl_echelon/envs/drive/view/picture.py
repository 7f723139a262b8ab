"""Draws several episodes from above, as one PNG."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxmarl_echelon.envs.drive.view.frames import OUTCOMES, DriveEpisode
from jaxmarl_echelon.envs.drive.view.palette import OUTCOME_COLOURS, OUTCOME_MARKS, SCRIPTED
from jaxmarl_echelon.envs.viewing.panels import add_legend, make_panels, title_panel


def save_drive_picture(
    path: str | Path, episodes: Mapping[int, DriveEpisode], title: str, chosen: int | None
) -> None:
    """Draws the trajectories of all learners, one panel per episode.

    A filled box marks a learner's start, a line the path of the first attempt, a mark its end, and a circle a
    goal; colours show the outcome. Scripted bodies are grey outlines.

    Args:
      path: file to write.
      episodes: by index, at least one.
      title: headline.
      chosen: index of the episode whose title is emphasised; None for none.
    """
    from jaxmarl_echelon.envs.drive.view.road_drawing import draw_roads

    figure, _, panels = make_panels(len(episodes), 1.0, title, lines=2)
    for axes, (index, episode) in zip(panels, episodes.items(), strict=True):
        draw_roads(axes, episode.scene)
        _draw_bodies(axes, episode)
        caption = f"episode {index}: {episode.kind}\n{describe_outcomes(episode)}"
        title_panel(axes, caption, chosen=index == chosen)
    add_legend(figure, _make_handles(), 7)
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
                make_box_outlines(pose[:1, slot], size[slot][None])[0],
                facecolor=colour if learner else "none",
                edgecolor=colour,
                linewidth=0.8,
                zorder=3,
            )
        )
        if not learner:
            continue
        first = episode.states.record.first[:, slot] & episode.states.alive[:, slot]
        end = int(np.argmin(first)) if not first.all() else len(first)
        axes.plot(*pose[:end, slot, :2].T, color=colour, linewidth=1.1, zorder=4)
        mark = OUTCOME_MARKS[episode.outcome[slot]]
        style = {"markersize": 8, "markeredgecolor": "white", "zorder": 5}
        axes.plot(*pose[max(end - 1, 0), slot, :2], mark, color=colour, **style)
        goal, radius = episode.states.goal[0, slot], float(episode.radius[0, slot])
        axes.add_patch(Circle(goal, radius, fill=False, color=colour, linewidth=1.2, zorder=4))


def _make_handles() -> list:
    """Returns the entries of the legend."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, label=name, marker=OUTCOME_MARKS[name], markeredgecolor="white")
        for name, colour in OUTCOME_COLOURS.items()
    ]
    for label, fill in (("learner", "full"), ("scripted", "none")):
        style = {"marker": "s", "fillstyle": fill, "linestyle": "none"}
        handles.append(Line2D([], [], color="#555555" if fill == "full" else SCRIPTED, label=label, **style))
    goal = Line2D([], [], color="#555555", marker="o", fillstyle="none", linestyle="none", label="goal")
    return [*handles, goal]
