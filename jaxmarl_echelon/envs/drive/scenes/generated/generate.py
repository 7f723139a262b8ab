"""Generates scenes from seeds: network, bodies, recording, and the checks of a scene.

Reference: docs/reference/drive.md 12.
"""

from dataclasses import replace

import numpy as np

from jaxmarl_echelon.envs.drive.codes import VEHICLE
from jaxmarl_echelon.envs.drive.scenes.generated import junctions, roads
from jaxmarl_echelon.envs.drive.scenes.generated.bodies import HEIGHTS, Body, boxes_meet_segments, draw_bodies
from jaxmarl_echelon.envs.drive.scenes.generated.network import RoadNetwork
from jaxmarl_echelon.envs.drive.scenes.generated.outline import trace_road_edges
from jaxmarl_echelon.envs.drive.scenes.generated.traffic import PlannedTraffic, simulate_traffic
from jaxmarl_echelon.envs.drive.scenes.generated.ways import find_conflicts
from jaxmarl_echelon.envs.drive.scenes.lanes import LONGEST
from jaxmarl_echelon.envs.drive.scenes.learners import boxes_meet
from jaxmarl_echelon.envs.drive.scenes.raw_scene import ELEMENT_OF, SAMPLES, RawScene, Road, Route
from physics.angles import wrap_angle_by_remainder
from physics.polylines import cut_polyline

VERSION = 1  # of the generator; part of the cache key of banks

KINDS = {
    "straight": roads.make_straight_road,
    "curve": roads.make_curved_road,
    "crossing": junctions.make_crossing,
    "tee": junctions.make_tee,
    "merge": roads.make_merge,
    "roundabout": junctions.make_roundabout,
    "parking": junctions.make_parking,
}
GOAL_SAMPLE = 60, 90
MARGIN = 0.2  # m, least gap between boxes at all samples
LEARNERS = 4
FARTHEST = 10.0  # m, the least distance to a goal
_SUB_SEEDS = 20


def generate_scene(
    seed: int, index: int, kind: str, bodies: int = 32, goal_sample: tuple[int, int] = GOAL_SAMPLE
) -> RawScene:
    """Returns the scene of a seed, an index and a kind; equal inputs give equal scenes.

    Args:
      seed, index: not negative.
      kind: one of `KINDS`.
      bodies: largest number of bodies.
      goal_sample: first and last sample at which the recording may be at the goal.

    Raises:
      ValueError: none of 20 attempts passes the checks.
    """
    reasons = []
    for attempt in range(_SUB_SEEDS):
        entropy = [seed, index, list(KINDS).index(kind), attempt]
        rng = np.random.default_rng(np.random.SeedSequence(entropy))
        scene = _attempt(rng, f"{kind}-{seed}-{index}", kind, bodies, goal_sample)
        reason = _find_fault(scene)
        if reason is None:
            return scene
        reasons.append(reason)
    raise ValueError(f"env.map_seed={seed}: no {kind} scene {index} in {_SUB_SEEDS} attempts: {reasons[-1]}")


def _attempt(
    rng: np.random.Generator, name: str, kind: str, room: int, goal_sample: tuple[int, int]
) -> RawScene:
    network = junctions.rotate_network(KINDS[kind](rng), rng.uniform(-np.pi, np.pi))
    outline = trace_road_edges(network)
    segments = np.concatenate([cut_polyline(points, LONGEST) for points in outline])
    bodies, log, there = _recorded(draw_bodies(rng, network, room, segments))
    scene = _scene(rng, name, kind, bodies, log, there, goal_sample)
    return _with_roads(scene, network, outline)


def record_scene(
    rng: np.random.Generator,
    name: str,
    kind: str,
    network: RoadNetwork,
    bodies: list[Body],
    goal_sample: tuple[int, int],
) -> RawScene:
    """Records a network and bodies as a scene; all bodies are kept, and driving ones must come first."""
    scene = _scene(rng, name, kind, bodies, *simulate_traffic(_traffic(bodies)), goal_sample)
    return _with_roads(scene, network, trace_road_edges(network))


def _recorded(bodies: list[Body]) -> tuple[list[Body], np.ndarray, np.ndarray]:
    """Drives all bodies, and once more without those that come too close to others."""
    for again in (True, False):
        log, there = simulate_traffic(_traffic(bodies))
        kept = _without_contacts(bodies, log, there)
        bodies = [body for body, keep in zip(bodies, kept, strict=True) if keep]
        if kept.all() or not again:
            return bodies, log[kept], there[kept]
    raise AssertionError


def _traffic(bodies: list[Body]) -> PlannedTraffic:
    driven = [body for body in bodies if body.way is not None]
    others = [body for body in bodies if body.way is None]
    size = np.array([body.size for body in bodies])
    ways = [body.way for body in driven]
    given = np.array([body.walked() for body in others]).reshape(len(others), SAMPLES, 3)
    return PlannedTraffic(
        ways, np.array([body.speed for body in driven]), size, find_conflicts(ways, size[:, 1]), given
    )


def _without_contacts(bodies: list[Body], log: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Bodies `[n]` that stay when one of each touching pair is removed, bool.

    Bodies in more contacts are removed first.
    """
    met = find_contacts(log[..., :2], log[..., 2], np.array([body.size for body in bodies]), there, MARGIN)
    kept = np.ones(len(bodies), bool)
    walks = np.array([body.way is None for body in bodies])
    while met.any():
        worst = int((met.sum(1) + 0.5 * (walks & met.any(1))).argmax())
        kept[worst] = False
        met[worst] = met[:, worst] = False
    return kept


def find_contacts(
    position: np.ndarray, heading: np.ndarray, size: np.ndarray, valid: np.ndarray, margin: float
) -> np.ndarray:
    """Pairs `[n, n]` whose boxes, enlarged by `margin`, meet at any sample, bool.

    Arrays are `[n, T, ...]`.
    """
    far = np.hypot(*(size + margin).T) / 2
    first, second = np.triu_indices(len(size), 1)
    gap = position[first] - position[second]
    close = ((gap**2).sum(-1) <= (far[first] + far[second])[:, None] ** 2) & valid[first] & valid[second]
    pair, sample = np.nonzero(close)
    a, b = first[pair], second[pair]
    met = boxes_meet(
        position[a, sample], heading[a, sample], size[a] + margin,
        position[b, sample], heading[b, sample], size[b] + margin,
    )  # fmt: skip
    found = np.zeros((len(size),) * 2, bool)
    found[a[met], b[met]] = found[b[met], a[met]] = True
    return found


def _scene(
    rng: np.random.Generator,
    name: str,
    kind: str,
    bodies: list[Body],
    log: np.ndarray,
    there: np.ndarray,
    goal_sample: tuple[int, int],
) -> RawScene:
    speed = log[..., 3].copy()
    walking = np.array([body.way is None for body in bodies])
    velocity = speed[..., None] * np.stack([np.cos(log[..., 2]), np.sin(log[..., 2])], axis=-1)
    if walking.any():
        velocity[walking] = np.gradient(log[walking, :, :2], 0.1, axis=1)
    last = there.shape[1] - 1 - there[:, ::-1].argmax(1)
    low, high = goal_sample
    at = np.where(walking, last, np.minimum(rng.integers(low, high + 1, len(bodies)), last))
    goal = np.take_along_axis(log[..., :2], at[:, None, None], axis=1)[:, 0]
    away = np.hypot(*(goal - log[:, 0, :2]).T)
    types = np.array([body.type for body in bodies])
    ways = [body.way for body in bodies]
    driven = [way for way in ways if way is not None]
    size = np.array([[*body.size, HEIGHTS[body.type]] for body in bodies])
    conflict = np.zeros((len(bodies),) * 2, bool)
    conflict[np.ix_(~walking, ~walking)] = find_conflicts(driven, size[~walking, 1])
    return RawScene(
        name=name,
        kind=kind,
        position=log[..., :2],
        heading=np.where(there, wrap_angle_by_remainder(log[..., 2]), 0.0),
        velocity=np.where(there[..., None], velocity, 0.0),
        valid=there,
        size=size,
        type=types,
        goal=goal,
        expert=~walking & ((away < FARTHEST) | (last < low)),
        ids=np.arange(len(bodies)),
        roads=(),
        routes=tuple(None if way is None else Route(way.points, way.limit, way.gates) for way in ways),
        conflict=conflict,
    )


def _with_roads(scene: RawScene, network: RoadNetwork, outline: list[np.ndarray]) -> RawScene:
    found = [("lane", network.element, lane.points, lane.limit) for lane in network.lanes]
    found += [("road_line", element, points, None) for element, points in network.lines]
    found += [("road_edge", ELEMENT_OF["road_edge"], points, None) for points in outline]
    found += [("crosswalk", ELEMENT_OF["crosswalk"], points, None) for points in network.crosswalks]
    found += [("stop_sign", ELEMENT_OF["stop_sign"], point[None], None) for point in network.signs]
    made = (
        Road(kind, element, nth, points, limit) for nth, (kind, element, points, limit) in enumerate(found)
    )
    return replace(scene, roads=tuple(made), junctions=np.array(network.junctions).reshape(-1, 3))


def _find_fault(scene: RawScene) -> str | None:
    """Returns the reason why a scene fails the checks; None if it passes."""
    learns = (scene.type == VEHICLE) & ~scene.expert & scene.valid[:, 0]
    learns &= np.hypot(*(scene.goal - scene.position[:, 0]).T) >= FARTHEST
    if learns.sum() < LEARNERS:
        return f"{learns.sum()} learners, at least {LEARNERS} are needed"
    if find_contacts(scene.position, scene.heading, scene.size[:, :2], scene.valid, MARGIN).any():
        return "bodies touch"
    segments = np.concatenate(
        [cut_polyline(road.points, LONGEST) for road in scene.roads if road.kind == "road_edge"]
    )
    for body in np.flatnonzero(learns):
        pose = np.concatenate([scene.position[body], scene.heading[body, :, None]], axis=1)[scene.valid[body]]
        if boxes_meet_segments(pose, scene.size[body, :2], segments).any():
            return f"body {body} meets a road edge"
    return None
