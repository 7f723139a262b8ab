"""Ways of bodies through a network: walks along lanes, speeds in bends, gates at junctions, conflicts."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxmarl_echelon.envs.drive.scenes.generated.network import MAIN, STOP, Lane, Network
from jaxmarl_echelon.envs.drive.scenes.generated.shapes import wrap
from jaxmarl_echelon.envs.drive.scenes.raw_scene import Gate
from physics.polylines import arcs, distinct, headings, interpolate, offset

SPACING = 1.0  # m between points of a way
SIDEWAYS = 2.5  # m/s^2 in bends
EASING = 1.5  # m/s^2 at which drivers slow down before bends
_JOINT = 0.05


@dataclass(frozen=True)
class Way:
    """Where a body drives, from where it starts.

    Attributes:
      points: `[P, 2]` m, `SPACING` apart.
      heading: `[P]` unwrapped.
      limit: `[P]` m/s that its driver wants to go.
      lanes: the lanes along which it leads, and `until`, the arcs at which it leaves each.
      until: see `lanes`.
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
        """In metres."""
        return float(arcs(self.points)[-1])


def following(lanes: list[Lane]) -> list[np.ndarray]:
    """Successors of each lane."""
    starts = np.array([lane.points[0] for lane in lanes])
    turns = np.array([headings(lane.points)[0] for lane in lanes])
    found = []
    for lane in lanes:
        near = np.hypot(*(starts - lane.points[-1]).T) < _JOINT
        found.append(np.flatnonzero(near & (np.abs(wrap(turns - headings(lane.points)[-1])) < 0.1)))
    return found


def walk(
    rng: np.random.Generator,
    network: Network,
    after: list[np.ndarray],
    lane: int,
    start: float,
    length: float,
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """A random walk along lanes from arc `start` of a lane, for `length` metres or to a dead end.

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
    return lanes, interpolate(start + SPACING * np.arange(total + 1), points), np.array(until)


def make_way(
    network: Network,
    lanes: list[int],
    points: np.ndarray,
    until: np.ndarray,
    *,
    right: float = 0.0,
    eager: float = 1.0,
    fastest: float = np.inf,
) -> Way:
    """A way along the points of `walk`.

    Args:
      network, lanes, points, until: as of `walk`.
      right: m by which the body keeps to the right of the centreline.
      eager: its driver's wish as a share of the limits.
      fastest: m/s that the body can go.
    """
    if right:
        before = arcs(points)[-1]
        points = distinct(offset(points, -right), 1e-3)
        length = arcs(points)[-1]
        points = interpolate(SPACING * np.arange(length // SPACING + 1), points)
        until = until * length / before
    heading, along = headings(points), arcs(points)
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
    """Limits that fall early enough before slower parts."""
    squared = limit**2 + 2 * EASING * along
    return np.sqrt(np.minimum.accumulate(squared[::-1])[::-1] - 2 * EASING * along)


def _gates(
    network: Network, lanes: list[int], until: np.ndarray, points: np.ndarray, along: np.ndarray
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


def conflicts(ways: list[Way | None], widths: np.ndarray) -> np.ndarray:
    """`[n, n]` bool: whether two ways come too close within a junction, unless one body follows the other."""
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
    along = arcs(way.points)
    return way.points[(along >= gate.arc) & (along <= gate.end)]


def _lane_at(way: Way, arc: float) -> int:
    return way.lanes[int(np.searchsorted(way.until, arc, side="right").clip(0, len(way.lanes) - 1))]
