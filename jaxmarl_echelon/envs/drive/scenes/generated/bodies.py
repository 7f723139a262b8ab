"""Draws the bodies of a generated scene: sizes, starts and ways. Reference: docs/reference/drive.md 12.4."""

from dataclasses import dataclass, field

import numpy as np

from jaxmarl_echelon.envs.drive.codes import CYCLIST, PEDESTRIAN, VEHICLE
from jaxmarl_echelon.envs.drive.scenes.generated import ways
from jaxmarl_echelon.envs.drive.scenes.generated.network import FREEWAY, NetworkLane, RoadNetwork
from jaxmarl_echelon.envs.drive.scenes.generated.shapes import unit_vector
from jaxmarl_echelon.envs.drive.scenes.generated.ways import Way
from jaxmarl_echelon.envs.drive.scenes.learners import boxes_meet
from jaxmarl_echelon.envs.drive.scenes.raw_scene import SAMPLES, STEP
from physics.angles import wrap_angle_by_remainder
from physics.polylines import interpolate_polyline, point_headings, segment_distance

DURATION = (SAMPLES - 1) * STEP
HEIGHTS = {VEHICLE: 1.6, PEDESTRIAN: 1.75, CYCLIST: 1.7}
_CAR, _TRUCK, _CYCLIST = range(3)
_SHARES = np.array([0.80, 0.11, 0.09])  # among driving bodies; pedestrians are extra
_TRIES = 12
_BRAKES = 2.5  # m/s^2, braking that a start must permit


@dataclass(frozen=True)
class Body:
    """A body at the start of a recording.

    Attributes:
      type: index of `codes.TYPES`.
      size: `[2]` m.
      pose: `[3]` at the start.
      speed: at the start, m/s.
      way: driven way; None for pedestrians and standing bodies.
      velocity: `[2]` m/s of pedestrians.
      delay: time before a pedestrian starts to walk, s.
    """

    type: int
    size: np.ndarray
    pose: np.ndarray
    speed: float = 0.0
    way: Way | None = None
    velocity: np.ndarray = field(default_factory=lambda: np.zeros(2))
    delay: float = 0.0

    def walked(self) -> np.ndarray:
        """Poses `[T, 3]` of a body without a way."""
        time = np.maximum(STEP * np.arange(SAMPLES) - self.delay, 0.0)
        return self.pose + np.append(self.velocity, 0.0) * time[:, None]


def draw_bodies(
    rng: np.random.Generator, network: RoadNetwork, room: int, segments: np.ndarray
) -> list[Body]:
    """Draws at most `room` bodies: driving ones first, then parked cars and pedestrians.

    Args:
      rng: of the scene.
      network: roads.
      room: largest number of bodies.
      segments: `[M, 4]` road edges.
    """
    parked = _parked(rng, network)
    walkers = _walkers(rng, network)
    length = sum(lane.length for lane in network.lanes if not lane.inside)
    wanted = int(np.clip(length / rng.uniform(22, 40), 8, min(24, room - len(parked) - len(walkers))))
    after = ways.find_successors(network.lanes)
    driven = []
    for _ in range(wanted):
        for _ in range(_TRIES):
            body = _driver(rng, network, after)
            if body is None or not all(_apart(body, other) for other in driven):
                continue
            if _fits_way(body.way, body.size, segments):
                driven.append(body)
                break
    standing = [body for body in parked + walkers if not _in_the_way(body, driven)]
    return driven + standing


def _driver(rng: np.random.Generator, network: RoadNetwork, after: list[np.ndarray]) -> Body | None:
    """Draws a vehicle or cyclist at a random place on a lane; None if the place is unsuitable."""
    kind = int(rng.choice(3, p=_SHARES))
    if kind == _CYCLIST and network.element == FREEWAY:
        kind = _CAR
    size = _size(rng, kind)
    open_to = [nth for nth, lane in enumerate(network.lanes) if not lane.inside and lane.length > 12]
    lengths = np.array([network.lanes[nth].length for nth in open_to])
    lane = int(rng.choice(open_to, p=lengths / lengths.sum()))
    here = network.lanes[lane]
    start = rng.uniform(size[0] / 2 + 0.5, here.length - size[0] / 2 - 1.0)
    at = interpolate_polyline(np.array(start), here.points)
    if any(np.hypot(at[0] - x, at[1] - y) < radius + size[0] for x, y, radius in network.junctions):
        return None
    fastest, eager = np.inf, rng.uniform(0.8, 1.05)
    if kind == _CYCLIST:
        fastest = rng.uniform(4.0, 6.0)
        if not _outermost(network, lane):
            return None
    lanes, points, until = ways.walk_lanes(rng, network, after, lane, start, here.limit * DURATION + 50.0)
    far = 0.75 * min(eager * here.limit, fastest) * DURATION
    if until[-1] < 20.0 or (until[-1] < far and rng.random() < 0.8):
        return None
    right = here.width / 2 - 0.6 if kind == _CYCLIST else 0.0
    way = ways.make_way(network, lanes, points, until, right=right, eager=eager, fastest=fastest)
    speed = rng.uniform(0.3, 1.0) * way.limit[0]
    if way.gates:
        speed = min(speed, np.sqrt(2 * _BRAKES * max(0.0, way.gates[0].arc - size[0] / 2 - 1.5)))
    pose = np.array([*way.points[0], way.heading[0]])
    return Body(CYCLIST if kind == _CYCLIST else VEHICLE, size, pose, float(speed), way)


def _size(rng: np.random.Generator, kind: int) -> np.ndarray:
    low, high = {
        _CAR: ([4.2, 1.8], [5.2, 2.1]),
        _TRUCK: ([5.5, 2.1], [9.0, 2.6]),
        _CYCLIST: ([1.6, 0.6], [1.9, 0.8]),
    }[kind]
    # Longer bodies are wider.
    return np.array(low) + (np.array(high) - low) * np.clip(rng.random() + rng.uniform(-0.1, 0.1, 2), 0, 1)


def _fits_way(way: Way, size: np.ndarray, segments: np.ndarray) -> bool:
    """Returns whether a box meets no road edge along its way."""
    pose = np.concatenate([way.points, way.heading[:, None]], axis=1)[:: 2 if len(way.points) > 60 else 1]
    return not boxes_meet_segments(pose, size + 0.1, segments).any()


def boxes_meet_segments(pose: np.ndarray, size: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Returns whether solid boxes at poses `[P, 3]` meet any of the segments `[M, 4]`, bool `[P]`."""
    reach = np.hypot(*size) / 2
    close = segment_distance(pose[:, None, :2], segments) <= reach
    nth, which = np.nonzero(close)
    c, s = np.cos(pose[nth, 2]), np.sin(pose[nth, 2])
    ends = segments[which].reshape(-1, 2, 2) - pose[nth, None, :2]
    x, y = ends[..., 0], ends[..., 1]
    local = np.stack([x * c[:, None] + y * s[:, None], y * c[:, None] - x * s[:, None]], axis=-1)
    met = np.zeros(len(pose), bool)
    met[nth[_slab(local, size / 2)]] = True
    return met


def _slab(local: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Returns whether segments `[Q, 2, 2]` meet the box |x| <= half[0], |y| <= half[1]."""
    start, step = local[:, 0], local[:, 1] - local[:, 0]
    flat = np.abs(step) < 1e-12
    safe = np.where(flat, 1.0, step)
    a, b = (-half - start) / safe, (half - start) / safe
    low = np.where(flat, -np.inf, np.minimum(a, b)).max(1)
    high = np.where(flat, np.inf, np.maximum(a, b)).min(1)
    outside = (flat & (np.abs(start) > half)).any(1)
    return ~outside & (np.maximum(low, 0.0) <= np.minimum(high, 1.0))


def _apart(body: Body, other: Body) -> bool:
    """Returns whether two starts are separated by 2 m, 0.5 s of headway and a braking distance."""
    gap = 2.0 + 0.5 * max(body.speed, other.speed)
    if np.cos(body.pose[2] - other.pose[2]) > 0:
        gap += abs(body.speed**2 - other.speed**2) / (2 * _BRAKES)
    longer, wider = np.array([2 * gap, 0.3]), np.array([0.0, 0.3])
    return not boxes_meet(
        body.pose[:2], body.pose[2], body.size + longer, other.pose[:2], other.pose[2], other.size + wider
    )


def _outermost(network: RoadNetwork, lane: int) -> bool:
    """Returns whether a lane has no other lane on its right."""
    here = network.lanes[lane]
    middle = interpolate_polyline(np.array([here.length / 2]), here.points)[0]
    heading = point_headings(here.points)[len(here.points) // 2]
    return _room_at(network, middle + (here.width / 2 + 1.0) * unit_vector(heading - np.pi / 2)) > 0


def _room_at(network: RoadNetwork, point: np.ndarray) -> float:
    """Distance from a point to the border of the nearest lane, m; negative on a lane."""

    def to(lane: NetworkLane) -> float:
        segments = np.concatenate([lane.points[:-1], lane.points[1:]], axis=1)
        return segment_distance(point, segments).min() - lane.width / 2

    return min(to(lane) for lane in network.lanes)


def _parked(rng: np.random.Generator, network: RoadNetwork) -> list[Body]:
    taken = rng.permutation(len(network.bays))[: network.parked]
    bodies = []
    for nth in taken:
        x, y, heading = network.bays[nth]
        turned = np.pi if rng.random() < 0.3 else 0.0
        pose = np.array([x, y, wrap_angle_by_remainder(heading + turned + rng.normal(0, 0.02))])
        bodies.append(Body(VEHICLE, np.array([rng.uniform(4.2, 4.7), rng.uniform(1.75, 1.9)]), pose))
    return bodies


def _walkers(rng: np.random.Generator, network: RoadNetwork) -> list[Body]:
    """Draws pedestrians on crosswalks and along roads."""
    bodies = []
    for corners in network.crosswalks:
        right, left = corners[:2].mean(0), corners[2:].mean(0)
        if rng.random() < 0.6:
            a, b = (right, left) if rng.random() < 0.5 else (left, right)
            heading = float(np.arctan2(*(b - a)[::-1]))
            start = a - rng.uniform(1.0, 5.0) * unit_vector(heading)
            bodies.append(_walker(rng, start, heading, rng.uniform(0.0, 3.0)))
    if network.element == FREEWAY:
        return bodies
    for _ in range(int(rng.integers(0, 4))):
        body = _beside(rng, network)
        if body is not None:
            bodies.append(body)
    return bodies


def _beside(rng: np.random.Generator, network: RoadNetwork) -> Body | None:
    lane = network.lanes[int(rng.integers(len(network.lanes)))]
    if lane.inside or lane.length < 30:
        return None
    at = rng.uniform(0, lane.length - 20)
    a, b = interpolate_polyline(np.array([at, at + 15.0]), lane.points)
    heading = float(np.arctan2(*(b - a)[::-1]))
    aside = (lane.width / 2 + rng.uniform(1.2, 2.5)) * unit_vector(heading - np.pi / 2)
    if rng.random() < 0.5:
        a, heading = b, wrap_angle_by_remainder(heading + np.pi)
    body = _walker(rng, a + aside, heading, 0.0)
    path = body.walked()[::10, :2]
    return body if min(_room_at(network, point) for point in path) > 0.8 else None


def _walker(rng: np.random.Generator, start: np.ndarray, heading: float, delay: float) -> Body:
    size = rng.uniform(0.5, 0.8, 2)
    pose = np.array([*start, wrap_angle_by_remainder(heading)])
    return Body(PEDESTRIAN, size, pose, velocity=rng.uniform(1.2, 1.6) * unit_vector(heading), delay=delay)


def _in_the_way(body: Body, driven: list[Body]) -> bool:
    """Returns whether a body stands too close to the start of another."""
    return any(
        boxes_meet(
            body.pose[:2], body.pose[2], body.size + 0.5, other.pose[:2], other.pose[2], other.size + 0.5
        )
        for other in driven
    )
