"""Segments of a scene's lanes, edges and lines, and its lane graph.

Reference: docs/reference/drive.md 3.1 to 3.3.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxmarl_echelon.envs.drive.codes import BIKE_LANE, CROSSWALK, EDGE, LANE, LINE
from jaxmarl_echelon.envs.drive.scenes.raw_scene import BIKE_ELEMENT, Road
from physics.polylines import cut_polyline, drop_repeated_points, thin_polyline

LONGEST = 10.0  # m, of a segment
JOINT = 0.1  # m and rad, largest gaps between the end of a lane and the start of its successor


class SceneSegments(NamedTuple):
    """Segments of a scene and its lane graph; M segments, L lanes. See `bank.SceneBank` for the fields.

    `roads` are the map elements of the lanes.
    """

    segment: np.ndarray
    kind: np.ndarray
    lane: np.ndarray
    arc: np.ndarray
    first: np.ndarray
    last: np.ndarray
    length: np.ndarray
    limit: np.ndarray
    next: tuple[tuple[int, ...], ...]
    roads: tuple[Road, ...]


def make_segments(roads: tuple[Road, ...], middle: np.ndarray) -> SceneSegments:
    """Thins and cuts map elements into segments: lanes first, then edges, lines and crosswalks.

    Polylines of length 0 are dropped.

    Args:
      roads: of the scene.
      middle: `[2]`, becomes the origin.
    """
    found = sorted(
        (
            (kind, pieces, road)
            for road in roads
            if (kind := _find_kind(road)) is not None and len(pieces := _pieces(road, kind, middle))
        ),
        key=lambda one: _ORDER.index(one[0]),
    )
    lanes = [(pieces, road) for kind, pieces, road in found if kind in (LANE, BIKE_LANE)]
    counts = np.array([len(pieces) for _, pieces, _ in found], int)
    segment = np.concatenate([np.zeros((0, 4)), *(pieces for _, pieces, _ in found)])
    kind = np.repeat(np.array([kind for kind, _, _ in found], int), counts)
    last = np.cumsum(counts[: len(lanes)])
    first = last - counts[: len(lanes)]
    lane = np.full(len(segment), -1)
    lane[: last[-1] if len(lanes) else 0] = np.repeat(np.arange(len(lanes)), counts[: len(lanes)])
    length = np.hypot(*(segment[:, 2:] - segment[:, :2]).T)
    along = np.cumsum(length) - length
    arc = np.where(lane >= 0, along - along[first[lane]] if len(lanes) else 0.0, 0.0)
    return SceneSegments(
        segment,
        kind,
        lane,
        arc,
        first,
        last - 1,
        np.array([length[a:b].sum() for a, b in zip(first, last, strict=True)]),
        np.array([0.0 if road.limit is None else road.limit for _, road in lanes]),
        _find_successors([road.points for _, road in lanes]),
        tuple(road for _, road in lanes),
    )


_ORDER = (LANE, BIKE_LANE, EDGE, LINE, CROSSWALK)
_KINDS = {"lane": LANE, "road_line": LINE, "road_edge": EDGE, "crosswalk": CROSSWALK}


def _find_kind(road: Road) -> int | None:
    """Returns the kind of an element's segments; None for elements without segments."""
    return BIKE_LANE if road.kind == "lane" and road.element == BIKE_ELEMENT else _KINDS.get(road.kind)


def _pieces(road: Road, kind: int, middle: np.ndarray) -> np.ndarray:
    points = road.points - middle
    if kind == CROSSWALK:
        return cut_polyline(np.concatenate([points, points[:1]]), LONGEST)
    return cut_polyline(points[thin_polyline(points)], LONGEST)


def make_uncut_segments(roads: tuple[Road, ...], middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Uncut segments `[W, 4]` of thinned lanes, lines and edges in the scene's order, and their kinds `[W]`.

    Includes segments of length 0.

    Args:
      roads: of the scene.
      middle: `[2]`, becomes the origin.
    """
    segments, kinds = [np.zeros((0, 4))], []
    for road in roads:
        kind = _find_kind(road)
        if kind in (LANE, BIKE_LANE, EDGE, LINE):
            points = (road.points - middle)[thin_polyline(road.points)]
            segments.append(np.concatenate([points[:-1], points[1:]], axis=1))
            kinds += [kind] * (len(points) - 1)
    return np.concatenate(segments), np.array(kinds, int)


def _find_successors(lanes: Sequence[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    """Returns each lane's successors, ascending; `lanes` are the points of lanes before thinning."""
    if not lanes:
        return ()
    ends = [drop_repeated_points(points) for points in lanes]
    starts, stops = (np.array([points[nth] for points in ends]) for nth in (0, -1))
    first = np.array([_heading(points[0], points[1]) for points in ends])
    last = np.array([_heading(points[-2], points[-1]) for points in ends])
    apart = np.hypot(*(starts[None] - stops[:, None]).transpose(2, 0, 1))
    turn = first[None] - last[:, None]
    leads = (apart <= JOINT) & (np.abs(np.arctan2(np.sin(turn), np.cos(turn))) <= JOINT)
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in leads)


def _heading(start: np.ndarray, end: np.ndarray) -> float:
    return np.arctan2(end[1] - start[1], end[0] - start[0])
