"""Lanes, edges and lines of a scene as segments, and which lane leads to which."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxmarl_echelon.envs.drive.codes import BIKE_LANE, CROSSWALK, EDGE, LANE, LINE
from jaxmarl_echelon.envs.drive.scenes.raw_scene import BIKE_ELEMENT, Road
from physics.polylines import cut, distinct, thin

LONGEST = 10.0  # m, of a segment
JOINT = 0.1  # m and rad within which the end of a lane meets the start of its successor


class Segments(NamedTuple):
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


def segments_of(roads: tuple[Road, ...], middle: np.ndarray) -> Segments:
    """Thins and cuts map elements, lanes first, then edges, lines and crosswalks.

    Polylines that have no length are left out.

    Args:
      roads: of the scene.
      middle: `[2]`, becomes the origin.
    """
    found = sorted(
        (
            (kind, pieces, road)
            for road in roads
            if (kind := kind_of(road)) is not None and len(pieces := _pieces(road, kind, middle))
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
    return Segments(
        segment,
        kind,
        lane,
        arc,
        first,
        last - 1,
        np.array([length[a:b].sum() for a, b in zip(first, last, strict=True)]),
        np.array([0.0 if road.limit is None else road.limit for _, road in lanes]),
        successors([road.points for _, road in lanes]),
        tuple(road for _, road in lanes),
    )


_ORDER = (LANE, BIKE_LANE, EDGE, LINE, CROSSWALK)
_KINDS = {"lane": LANE, "road_line": LINE, "road_edge": EDGE, "crosswalk": CROSSWALK}


def kind_of(road: Road) -> int | None:
    """The kind of its segments, None for elements that make none."""
    return BIKE_LANE if road.kind == "lane" and road.element == BIKE_ELEMENT else _KINDS.get(road.kind)


def _pieces(road: Road, kind: int, middle: np.ndarray) -> np.ndarray:
    points = road.points - middle
    if kind == CROSSWALK:
        return cut(np.concatenate([points, points[:1]]), LONGEST)
    return cut(points[thin(points)], LONGEST)


def whole_segments(roads: tuple[Road, ...], middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Segments `[W, 4]` of thinned lanes, lines and edges in the scene's order, not cut, and kinds `[W]`.

    Those without a length are among them.

    Args:
      roads: of the scene.
      middle: `[2]`, becomes the origin.
    """
    segments, kinds = [np.zeros((0, 4))], []
    for road in roads:
        kind = kind_of(road)
        if kind in (LANE, BIKE_LANE, EDGE, LINE):
            points = (road.points - middle)[thin(road.points)]
            segments.append(np.concatenate([points[:-1], points[1:]], axis=1))
            kinds += [kind] * (len(points) - 1)
    return np.concatenate(segments), np.array(kinds, int)


def successors(lanes: Sequence[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    """Lanes to which each lane leads, ascending; `lanes` are their points before they are thinned."""
    if not lanes:
        return ()
    ends = [distinct(points) for points in lanes]
    starts, stops = (np.array([points[nth] for points in ends]) for nth in (0, -1))
    first = np.array([_heading(points[0], points[1]) for points in ends])
    last = np.array([_heading(points[-2], points[-1]) for points in ends])
    apart = np.hypot(*(starts[None] - stops[:, None]).transpose(2, 0, 1))
    turn = first[None] - last[:, None]
    leads = (apart <= JOINT) & (np.abs(np.arctan2(np.sin(turn), np.cos(turn))) <= JOINT)
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in leads)


def _heading(start: np.ndarray, end: np.ndarray) -> float:
    return np.arctan2(end[1] - start[1], end[0] - start[0])
