"""Ways of bodies through a network: random walks, speeds in bends, gates, conflicts.

Reference: docs/reference/drive.md 12.5.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxmarl_echelon.envs.drive.scenes.generated.network import MAIN, STOP, NetworkLane, RoadNetwork
from jaxmarl_echelon.envs.drive.scenes.raw_scene import Gate
from physics.angles import wrap_angle_by_remainder
from physics.polylines import (
    arc_lengths,
    drop_repeated_points,
    interpolate_polyline,
    offset_polyline,
    point_headings,
)

SPACING = 1.0  # m between points of a way
SIDEWAYS = 2.5  # m/s^2 in bends
EASING = 1.5  # m/s^2 at which drivers slow down before bends
_JOINT = 0.05


@dataclass(frozen=True)
class Way:
    """The path of a driving body from its start.

    Attributes:
      points: `[P, 2]` m, `SPACING` apart.
      heading: `[P]` unwrapped.
      limit: `[P]` desired speed, m/s.
      lanes: the lanes of the way, in order.
      until: arcs at which the way leaves each lane.
      gates: one per junction on the way.
    """

    points: np.ndarray
    heading: np.ndarray
    limit: np.ndarray
    lanes: tuple[int, ...]
    until: np.ndarray
    gates: tuple[Gate, ...]

    @cached_property
    def length(self) -> float:
        """Length in m."""
        return float(arc_lengths(self.points)[-1])


def find_successors(lanes: list[NetworkLane]) -> list[np.ndarray]:
    """Returns the successors of each lane."""
    starts = np.array([lane.points[0] for lane in lanes])
    turns = np.array([point_headings(lane.points)[0] for lane in lanes])
    found = []
    for lane in lanes:
        near = np.hypot(*(starts - lane.points[-1]).T) < _JOINT
        found.append(
            np.flatnonzero(
                near & (np.abs(wrap_angle_by_remainder(turns - point_headings(lane.points)[-1])) < 0.1)
            )
        )
    return found


def walk_lanes(
    rng: np.random.Generator,
    network: RoadNetwork,
    after: list[np.ndarray],
    lane: int,
    start: float,
    length: float,
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Walks randomly along lanes from arc `start` of a lane, for `length` metres or to a dead end.

    Returns:
      the lanes, the points of the way, and the arcs at which it leaves the lanes.
    """
    lanes = [lane]
    points = network.lanes[lane].points
    until = [network.lanes[lane].length - start]
    while until[-1] < length and len(after[lanes[-1]]):
        lanes.append(int(rng.choice(after[lanes[-1]])))
        points = np.concatenate([points, network.lanes[lanes[-1]].points[1:]])
        until.append(until[-1] + network.lanes[lanes[-1]].length)
    total = min(until[-1], length) // SPACING
    return lanes, interpolate_polyline(start + SPACING * np.arange(total + 1), points), np.array(until)


def make_way(
    network: RoadNetwork,
    lanes: list[int],
    points: np.ndarray,
    until: np.ndarray,
    *,
    right: float = 0.0,
    eager: float = 1.0,
    fastest: float = np.inf,
) -> Way:
    """Builds a way along the points of `walk_lanes`.

    Args:
      network, lanes, points, until: as of `walk_lanes`.
      right: m by which the body keeps to the right of the centreline.
      eager: desired speed as a fraction of the limits.
      fastest: highest speed of the body, m/s.
    """
    if right:
        before = arc_lengths(points)[-1]
        points = drop_repeated_points(offset_polyline(points, -right), 1e-3)
        length = arc_lengths(points)[-1]
        points = interpolate_polyline(SPACING * np.arange(length // SPACING + 1), points)
        until = until * length / before
    heading, along = point_headings(points), arc_lengths(points)
    which = np.minimum(np.searchsorted(until, along, side="right"), len(lanes) - 1)
    wished = np.minimum(eager * np.array([network.lanes[lane].limit for lane in lanes])[which], fastest)
    return Way(
        points,
        heading,
        _eased(np.minimum(wished, _in_bends(heading, along)), along),
        tuple(lanes),
        until,
        tuple(_gates(network, lanes, until, points, along)),
    )


def _in_bends(heading: np.ndarray, along: np.ndarray) -> np.ndarray:
    bend = np.abs(np.gradient(heading, along)) if len(along) > 2 else np.zeros(len(along))
    bend = np.convolve(np.pad(bend, 1, mode="edge"), np.ones(3) / 3, mode="valid")
    return np.sqrt(SIDEWAYS / np.maximum(bend, 1e-4))


def _eased(limit: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Lowers limits ahead of slower parts, so that drivers brake at `EASING` at most."""
    squared = limit**2 + 2 * EASING * along
    return np.sqrt(np.minimum.accumulate(squared[::-1])[::-1] - 2 * EASING * along)


def _gates(
    network: RoadNetwork, lanes: list[int], until: np.ndarray, points: np.ndarray, along: np.ndarray
) -> list[Gate]:
    found = []
    for nth, (x, y, radius) in enumerate(network.junctions):
        within = np.hypot(points[:, 0] - x, points[:, 1] - y) < radius
        if within[0] or not within.any():
            continue
        first = int(within.argmax())
        stays = within[first:]
        last = first + (len(stays) if stays.all() else int(stays.argmin())) - 1
        arc = float(along[first - 1])
        control = network.lanes[lanes[int(np.searchsorted(until, arc, side="right").clip(0, len(lanes) - 1))]]
        found.append(Gate(arc, float(along[last]), nth, control.control == STOP, control.control == MAIN))
    return sorted(found, key=lambda gate: gate.arc)


def find_conflicts(ways: list[Way | None], widths: np.ndarray) -> np.ndarray:
    """Pairs `[n, n]` of ways that come too close within a junction, bool.

    Ways that enter the junction from the same lane do not conflict.
    """
    met = np.zeros((len(ways),) * 2, bool)
    parts = [
        (body, gate.junction, _part(way, gate), _lane_at(way, gate.arc))
        for body, way in enumerate(ways)
        if way is not None
        for gate in way.gates
    ]
    for nth, (a, junction, points, lane) in enumerate(parts):
        for b, other, points_there, lane_there in parts[:nth]:
            if a == b or junction != other or lane == lane_there or met[a, b]:
                continue
            apart = np.hypot(*(points[:, None] - points_there[None]).transpose(2, 0, 1)).min()
            met[a, b] = met[b, a] = apart < (widths[a] + widths[b]) / 2 + 0.8
    return met


def _part(way: Way, gate: Gate) -> np.ndarray:
    along = arc_lengths(way.points)
    return way.points[(along >= gate.arc) & (along <= gate.end)]


def _lane_at(way: Way, arc: float) -> int:
    return way.lanes[int(np.searchsorted(way.until, arc, side="right").clip(0, len(way.lanes) - 1))]
