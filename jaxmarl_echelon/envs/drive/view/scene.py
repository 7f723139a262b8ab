"""A scene from above: roads, bodies, and where learners go."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Circle

from jaxmarl_echelon.envs.drive import codes
from jaxmarl_echelon.envs.drive.bank import SceneBank

ROADS = {
    codes.LANE: {"colors": "#c9d3df", "linewidths": 0.8},
    codes.BIKE_LANE: {"colors": "#b7dfc0", "linewidths": 0.8},
    codes.LINE: {"colors": "#d9a441", "linewidths": 0.6, "linestyles": (0, (5, 4))},
    codes.CROSSWALK: {"colors": "#8a8f98", "linewidths": 0.7},
    codes.EDGE: {"colors": "#30343b", "linewidths": 1.3},
}
SCRIPTED, WALKER, SIGN = "#9aa0a8", "#b5651d", "#c92a2a"
LEARNERS = ("#1f77b4", "#e8590c", "#2b8a3e", "#862e9c", "#0b7285", "#c2255c", "#5c940d", "#364fc7")


def boxes(pose: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Corners `[n, 5, 2]` of boxes with a notch that marks the front.

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


def draw_roads(axes: Axes, scene: SceneBank) -> None:
    """Draws edges, lanes, lines, crosswalks and stop signs of one scene, and frames them."""
    segment, kind = np.asarray(scene.segment), np.asarray(scene.segment_kind)
    for code, style in ROADS.items():
        axes.add_collection(LineCollection(segment[kind == code].reshape(-1, 2, 2), **style))
    sign = np.asarray(scene.sign)
    axes.plot(*sign[np.isfinite(sign[:, 0])].T, "8", color=SIGN, markersize=4)
    axes.set_aspect("equal")
    axes.set_axis_off()
    low, high = extent(scene)
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])


def extent(scene: SceneBank, margin: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
    """Lower left and upper right corner `[2]` of the part of the plane that a picture shows."""
    ends = np.asarray(scene.segment)[np.asarray(scene.segment_kind) >= 0].reshape(-1, 2)
    recorded = np.asarray(scene.recorded)
    points = np.concatenate([ends, np.asarray(scene.recording)[recorded][:, :2]])
    return points.min(0) - margin, points.max(0) + margin


def draw_bodies(
    axes: Axes, pose: np.ndarray, size: np.ndarray, colours: Sequence[str], *, filled: bool = True
) -> None:
    """Draws boxes at poses `[n, 3]` with sizes `[n, 2]`, one colour each; outlines if not `filled`."""
    faces = colours if filled else "none"
    edges = "#202020" if filled else colours
    axes.add_collection(
        PolyCollection(boxes(pose, size), facecolors=faces, edgecolors=edges, linewidths=0.4, zorder=3)
    )


def colours_of(scene: SceneBank) -> list[str]:
    """A colour for each slot: learners differ, others are grey, pedestrians brown."""
    learners = np.asarray(scene.learner)
    others = np.where(np.asarray(scene.type) == codes.PEDESTRIAN, WALKER, SCRIPTED).tolist()
    return [
        LEARNERS[slot % len(LEARNERS)] if slot < len(learners) and learners[slot] else other
        for slot, other in enumerate(others)
    ]


def draw_recording(axes: Axes, scene: SceneBank, sample: int = 0, goal_radius: float = 2.0) -> None:
    """Draws a scene as recorded: roads, boxes at a sample, learners' paths and goals.

    Args:
      axes: where to draw.
      scene: one scene of a bank.
      sample: of the recording.
      goal_radius: m.
    """
    draw_roads(axes, scene)
    recording, recorded = np.asarray(scene.recording), np.asarray(scene.recorded)
    size, colours = np.asarray(scene.size), colours_of(scene)
    there = np.flatnonzero(recorded[sample])
    draw_bodies(axes, recording[sample, there, :3], size[there], [colours[slot] for slot in there])
    for slot in np.flatnonzero(np.asarray(scene.learner)):
        path = recording[recorded[:, slot], slot, :2]
        axes.plot(*path.T, color=colours[slot], linewidth=0.8, alpha=0.7)
        goal = np.asarray(scene.goal)[slot]
        axes.add_patch(Circle(goal, goal_radius, fill=False, edgecolor=colours[slot], linewidth=0.9))
