"""Lanes and road elements of a generated scene. Reference: docs/reference/drive.md 12.2."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from jaxmarl_echelon.envs.drive.scenes.generated.shapes import connect_poses, unit_vector
from physics.angles import wrap_angle_by_remainder
from physics.polylines import arc_lengths, offset_polyline, point_headings

MAIN, YIELD, STOP = "main", "yield", "stop"
BROKEN_WHITE, DOUBLE_YELLOW = 6, 12
FREEWAY, STREET = 1, 2


@dataclass(frozen=True)
class NetworkLane:
    """One lane of a generated network.

    Attributes:
      points: `[P, 2]` centreline.
      width: m.
      limit: m/s.
      control: of its traffic at the next junction: priority (`MAIN`), no priority (`YIELD`) or `STOP`.
      inside: the lane lies within a junction; no body starts on it.
    """

    points: np.ndarray
    width: float
    limit: float
    control: str = MAIN
    inside: bool = False

    @cached_property
    def length(self) -> float:
        """Length in m."""
        return float(arc_lengths(self.points)[-1])


@dataclass
class RoadNetwork:
    """Roads of a scene.

    Attributes:
      lanes: in any order; successors follow from their end points.
      lines: polylines between lanes, and their `map_element_id`.
      patches: drivable rectangles adjacent to lanes: centre x, y, heading, length, width.
      bays: poses `[x, y, heading]` of parking places.
      parked: number of parked cars.
      crosswalks: `[4, 2]` corners; pedestrians cross between the middles of sides 0-1 and 2-3.
      signs: positions of stop signs.
      junctions: centre x, y and radius.
      element: `map_element_id` of the lanes.
    """

    lanes: list[NetworkLane] = field(default_factory=list)
    lines: list[tuple[int, np.ndarray]] = field(default_factory=list)
    patches: list[np.ndarray] = field(default_factory=list)
    bays: list[np.ndarray] = field(default_factory=list)
    parked: int = 0
    crosswalks: list[np.ndarray] = field(default_factory=list)
    signs: list[np.ndarray] = field(default_factory=list)
    junctions: list[tuple[float, float, float]] = field(default_factory=list)
    element: int = STREET


@dataclass(frozen=True)
class RoadSection:
    """Parallel lanes along a reference curve; the first lane of each direction is next to the middle.

    Attributes:
      forward, backward: lanes along and against the reference.
    """

    forward: list[NetworkLane]
    backward: list[NetworkLane]


def add_road_section(
    network: RoadNetwork,
    reference: np.ndarray,
    *,
    width: float,
    limit: float,
    forward: int,
    backward: int = 0,
    gap: float = 0.0,
    control: str = MAIN,
    backward_control: str = MAIN,
    lines: bool = True,
) -> RoadSection:
    """Adds lanes of both directions along a reference curve, and the lines between them.

    Args:
      network: to which they are added.
      reference: middle of a two-way road; left side of a one-way road.
      width, limit, control: of the lanes.
      forward, backward: number of lanes along the reference, on its right, and against it, on its left.
      gap: between the directions, m.
      backward_control: control of the backward lanes.
      lines: whether to add lines.
    """
    right = [-(gap / 2 + width * (nth + 0.5)) for nth in range(forward)]
    left = [gap / 2 + width * (nth + 0.5) for nth in range(backward)]
    made = RoadSection(
        [NetworkLane(offset_polyline(reference, at), width, limit, control) for at in right],
        [NetworkLane(offset_polyline(reference, at)[::-1], width, limit, backward_control) for at in left],
    )
    network.lanes += made.forward + made.backward
    if lines:
        between = [at - width / 2 for at in right[:-1]] + [at + width / 2 for at in left[:-1]]
        network.lines += [(BROKEN_WHITE, offset_polyline(reference, at)) for at in between]
        if backward and not gap:
            network.lines.append((DOUBLE_YELLOW, reference))
    return made


@dataclass(frozen=True)
class JunctionArm:
    """A road at a junction: its incoming and outgoing lanes, each from the middle to the right."""

    incoming: list[NetworkLane]
    outgoing: list[NetworkLane]


STRAIGHT = np.deg2rad(40)


def connect_arms(network: RoadNetwork, arms: list[JunctionArm], limit: float) -> None:
    """Adds a lane inside a junction for every legal turn between its arms.

    Left turns connect the inner lanes, right turns the outer lanes; straight on, every lane connects to the
    lane of the same number, or to the outermost.
    """
    for here in arms:
        for there in arms:
            if here is there or not here.incoming or not there.outgoing:
                continue
            for start, end in _legal(here.incoming, there.outgoing):
                heading, heading_end = point_headings(start.points)[-1], point_headings(end.points)[0]
                points = connect_poses(start.points[-1], heading, end.points[0], heading_end)
                width = min(start.width, end.width)
                network.lanes.append(NetworkLane(points, width, limit, inside=True))


def _legal(incoming: list[NetworkLane], outgoing: list[NetworkLane]) -> list[tuple[NetworkLane, NetworkLane]]:
    turn = wrap_angle_by_remainder(
        point_headings(outgoing[0].points)[0] - point_headings(incoming[0].points)[-1]
    )
    if turn > STRAIGHT:
        return [(incoming[0], outgoing[0])]
    if turn < -STRAIGHT:
        return [(incoming[-1], outgoing[-1])]
    return [(lane, outgoing[min(nth, len(outgoing) - 1)]) for nth, lane in enumerate(incoming)]


def make_crosswalk(
    start: np.ndarray, heading: float, right: float, left: float, depth: float = 3.0
) -> np.ndarray:
    """Corners `[4, 2]` of a crosswalk over a road that leaves `start` along `heading`.

    Sides 0-1 and 2-3 are on the road's right and left, `right` and `left` metres from its middle.
    """
    along, aside = unit_vector(heading), unit_vector(heading + np.pi / 2)
    near, far = start, start + depth * along
    return np.stack([near - right * aside, far - right * aside, far + left * aside, near + left * aside])
