"""Draws a recorded scene from above: roads, bodies, paths and goals."""

from typing import TYPE_CHECKING

import numpy as np

from jaxmarl_echelon.envs.drive import codes
from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.view.palette import INK, PAPER, ROAD_COLOURS, ROAD_WIDTHS, SCRIPTED
from jaxmarl_echelon.palette import SERIES

# Matplotlib is imported only where something is drawn, so that training starts without it.
if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIGN = "#c92a2a"
WALKER = "#b5651d"


def make_box_outlines(pose: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Corners `[n, 5, 2]` of boxes with a pointed front.

    Args:
      pose: `[n, 3]` x, y, heading.
      size: `[n, 2]` length and width.
    """
    shape = np.array([[-0.5, 0.5], [-0.5, -0.5], [0.35, -0.5], [0.5, 0.0], [0.35, 0.5]])
    local = shape * size[:, None]
    c, s = np.cos(pose[:, 2, None]), np.sin(pose[:, 2, None])
    x = pose[:, 0, None] + local[..., 0] * c - local[..., 1] * s
    y = pose[:, 1, None] + local[..., 0] * s + local[..., 1] * c
    return np.stack([x, y], axis=-1)


def scene_extent(scene: SceneBank, margin: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
    """Lower left and upper right corner `[2]` of roads and recorded bodies, with a margin in m."""
    ends = scene.segment[scene.segment_kind >= 0].reshape(-1, 2)
    points = np.concatenate([ends, scene.recording[scene.recorded][:, :2]])
    return points.min(0) - margin, points.max(0) + margin


def draw_roads(axes: "Axes", scene: SceneBank) -> None:
    """Draws the segments and stop signs of one scene, NumPy arrays, and limits the axes to them."""
    from matplotlib.collections import LineCollection

    axes.set_facecolor(PAPER)
    for kind, colour in ROAD_COLOURS.items():
        segments = scene.segment[scene.segment_kind == kind].reshape(-1, 2, 2)
        style = "dashed" if kind == codes.LINE else "solid"
        axes.add_collection(
            LineCollection(segments, colors=colour, linewidths=ROAD_WIDTHS[kind], linestyles=style, zorder=1)
        )
    axes.plot(*scene.sign.T, "8", color=SIGN, markersize=4, zorder=2)
    low, high = scene_extent(scene)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal", xticks=[], yticks=[])


def _choose_colours(scene: SceneBank) -> list[str]:
    """Returns a colour for each slot: distinct for learners, brown for pedestrians, grey for other bodies."""
    others = np.where(scene.type == codes.PEDESTRIAN, WALKER, SCRIPTED).tolist()
    for slot in np.flatnonzero(scene.learner):
        others[slot] = SERIES[slot % len(SERIES)]
    return others


def draw_recording(axes: "Axes", scene: SceneBank, sample: int = 0, goal_radius: float = 2.0) -> None:
    """Draws a scene: roads, boxes at a sample, learners' recorded paths and goals.

    Args:
      axes: where to draw.
      scene: one scene of a bank, NumPy arrays.
      sample: of the recording.
      goal_radius: m.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Circle

    draw_roads(axes, scene)
    colours = _choose_colours(scene)
    there = np.flatnonzero(scene.recorded[sample])
    corners = make_box_outlines(scene.recording[sample, there, :3], scene.size[there])
    faces = [colours[slot] for slot in there]
    axes.add_collection(PolyCollection(corners, facecolors=faces, edgecolors=INK, linewidths=0.4, zorder=3))
    for slot in np.flatnonzero(scene.learner):
        path = scene.recording[scene.recorded[:, slot], slot, :2]
        axes.plot(*path.T, color=colours[slot], linewidth=0.8, alpha=0.7, zorder=2)
        axes.add_patch(Circle(scene.goal[slot], goal_radius, fill=False, color=colours[slot], linewidth=0.9))
