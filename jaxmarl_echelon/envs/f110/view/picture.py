"""Draws several episodes of cars on their map, as one PNG."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxmarl_echelon.envs.f110.view.frames import RecordedDrive
from jaxmarl_echelon.envs.f110.view.style import (
    FREE,
    OUTCOME_MARKS,
    WALL,
    bound_positions,
    car_colour,
    is_filled,
    pick_outcome_colour,
    sample_walls,
)
from jaxmarl_echelon.envs.viewing.panels import WIDTH, add_legend, make_panels, title_panel
from jaxmarl_echelon.palette import NEUTRAL, RISING
from physics.boxes import box_corners

_END_SIDE = 1.8
_LATELY = 2.0


def save_chase_picture(
    path: str | Path, episodes: Sequence[RecordedDrive], shown: Sequence[int], chosen: int | None
) -> None:
    """Draws all attackers' paths on one map by outcome, and below the ends of some episodes.

    Args:
      path: file to write.
      episodes: on the same map; at least one.
      shown: indices of the episodes whose ends are drawn.
      chosen: index of the episode whose title is emphasised; None for none.
    """
    poses = [episode.frames.pose for episode in episodes]
    low, high = bound_positions(poses, margin=0.8)
    height = float(np.clip(WIDTH * (high - low)[1] / (high - low)[0], 1.6, 4.5))
    figure, overview, panels = make_panels(len(shown), 0.8, _count(episodes), overview=height)
    _draw_map(overview, episodes[0], low, high)
    for episode in episodes:
        colour, path_ = pick_outcome_colour(episode.outcome), episode.frames.pose[:, 0]
        overview.plot(*episode.frames.pose[:, 1:, :2].T, color=NEUTRAL, linewidth=0.7, alpha=0.5)
        overview.plot(*path_[:, :2].T, color=colour, linewidth=1.2, alpha=0.8)
    for episode in episodes:
        _mark_end(overview, episode, 0)
    overview.set(xlabel="x [m]", ylabel="y [m]")
    for axes, index in zip(panels, shown, strict=True):
        _draw_end(axes, episodes[index])
        title = f"episode {episodes[index].number}: {episodes[index].describe()}"
        title_panel(axes, title, chosen=index == chosen)
    add_legend(figure, [*_car_handles(episodes[0]), *_outcome_handles(episodes)], 8)
    figure.savefig(path)


def save_race_picture(
    path: str | Path, episodes: Sequence[RecordedDrive], shown: Sequence[int], chosen: int | None
) -> None:
    """Draws races, one panel each: car 0's line coloured by its speed, the other cars' in their colours.

    Args:
      path: file to write.
      episodes: all of an evaluation, for the headline.
      shown: indices of the episodes that are drawn.
      chosen: index of the episode whose title is emphasised; None for none.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    figure, _, panels = make_panels(len(shown), 0.85, _count(episodes))
    speeds = np.concatenate([episodes[index].speed[:, 0] for index in shown])
    # Without the few slow moments of a standing start.
    scale = ScalarMappable(Normalize(np.quantile(speeds, 0.05), speeds.max()), RISING)
    for axes, index in zip(panels, shown, strict=True):
        episode = episodes[index]
        here = [one.frames.pose for one in episodes if one.grid is episode.grid]
        _draw_map(axes, episode, *bound_positions(here, margin=1.0))
        axes.set(xticks=[], yticks=[])
        _draw_race(axes, episode, scale)
        laps = ", ".join(str(lap) for lap in episode.completed_laps[-1])
        title = f"episode {episode.number}: {episode.describe()}\nlaps of each car: {laps}"
        title_panel(axes, title, chosen=index == chosen)
    figure.colorbar(
        scale, ax=panels, label=f"speed of {episodes[0].names[0]} [m/s]", shrink=0.7, aspect=30, extend="min"
    )
    add_legend(figure, [*_car_handles(episodes[0]), *_outcome_handles(episodes)], 6)
    figure.savefig(path)


def _draw_race(axes, episode: RecordedDrive, scale) -> None:
    from matplotlib.collections import LineCollection

    points = episode.frames.pose[..., :2]
    for car in range(1, len(episode.names)):
        axes.plot(*points[:, car].T, color=car_colour(car, race=True), linewidth=0.8, alpha=0.8)
    line = np.stack([points[:-1, 0], points[1:, 0]], axis=1)
    axes.add_collection(
        LineCollection(list(line), colors=scale.to_rgba(episode.speed[1:, 0]), linewidths=2.2)
    )
    for car in range(len(episode.names)):
        _mark_start(axes, points[0, car], car_colour(car, race=True))
        colour = car_colour(car, race=True)
        axes.plot(*points[-1, car], "X", color=colour, markersize=9, markeredgecolor="white", zorder=5)


def _mark_start(axes, place, colour: str) -> None:
    axes.plot(*place, "o", color=colour, markersize=5, markeredgecolor="white", zorder=4)


def _mark_end(axes, episode: RecordedDrive, car: int) -> None:
    """Marks where a car is at the end, by the outcome's colour and shape."""
    mark = OUTCOME_MARKS.get(episode.outcome, "o")
    place, colour = episode.frames.pose[-1, car, :2], pick_outcome_colour(episode.outcome)
    size = 13 if mark == "*" else 9
    axes.plot(*place, mark, color=colour, markersize=size, markeredgecolor="white", zorder=5)


def _draw_end(axes, episode: RecordedDrive) -> None:
    """Draws the last seconds: the paths and final poses of the cars in the style of their roles."""
    centre = episode.frames.pose[-1, :, :2].mean(0)
    spread = np.abs(episode.frames.pose[-1, :, :2] - centre).max() + 0.8
    reach = np.array([1.25, 1.0]) * max(_END_SIDE, spread)
    _draw_map(axes, episode, centre - reach, centre + reach)
    lately = episode.seconds >= episode.seconds[-1] - _LATELY
    for car in range(len(episode.names)):
        colour = car_colour(car, race=False)
        axes.plot(*episode.frames.pose[lately, car, :2].T, color=colour, linewidth=1.5)
        face = colour if is_filled(car, race=False) else "white"
        corners = box_corners(episode.frames.pose[-1, car], episode.size)
        axes.fill(*corners.T, facecolor=face, edgecolor=colour, linewidth=2.0, zorder=4)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=pick_outcome_colour(episode.outcome), linewidth=3)


def _draw_map(axes, episode: RecordedDrive, low, high) -> None:
    count = np.ceil((high - low) / episode.grid.resolution * 2).astype(int).clip(2, 1600)
    walls = sample_walls(episode.grid, low, high, count)
    colours = np.where(walls[..., None], np.uint8(WALL), np.uint8(FREE))
    extent = (low[0], high[0], low[1], high[1])
    axes.imshow(colours, origin="lower", extent=extent, interpolation="nearest")
    axes.set(xlim=extent[:2], ylim=extent[2:], aspect="equal")


def _count(episodes: Sequence[RecordedDrive]) -> str:
    """Returns the number of episodes and of each outcome: "64 episodes: 60 target crash, 4 timeout"."""
    names = [episode.outcome for episode in episodes]
    often = sorted(sorted(set(names)), key=names.count, reverse=True)
    return f"{len(names)} episodes: " + ", ".join(f"{names.count(n)} {n.replace('_', ' ')}" for n in often)


def _car_handles(episode: RecordedDrive) -> list:
    """Returns legend entries of cars."""
    from matplotlib.patches import Patch

    found = []
    for car, name in enumerate(episode.names):
        colour = car_colour(car, race=episode.is_race)
        face = colour if is_filled(car, race=episode.is_race) else "white"
        found.append(Patch(facecolor=face, edgecolor=colour, linewidth=2.0, label=name))
    return found


def _outcome_handles(episodes: Sequence[RecordedDrive]) -> list:
    """Returns legend entries of the outcomes that occurred; in races, of starts and ends."""
    from matplotlib.lines import Line2D

    style = {"linestyle": "none", "markeredgecolor": "white"}
    if episodes[0].is_race:
        marks = {"start": ("o", NEUTRAL), "end": ("X", NEUTRAL)}
    else:
        marks = {
            one.outcome: (OUTCOME_MARKS.get(one.outcome, "o"), pick_outcome_colour(one.outcome))
            for one in episodes
        }
    return [
        Line2D([], [], marker=mark, color=colour, markersize=10, label=name.replace("_", " "), **style)
        for name, (mark, colour) in marks.items()
    ]
