"""Networks with junctions: crossing, tee, roundabout, parking. Reference: docs/reference/drive.md 12.2."""

from dataclasses import replace

import numpy as np

from jaxmarl_echelon.envs.drive.scenes.generated.network import (
    MAIN,
    STOP,
    YIELD,
    JunctionArm,
    NetworkLane,
    RoadNetwork,
    add_road_section,
    connect_arms,
    make_crosswalk,
)
from jaxmarl_echelon.envs.drive.scenes.generated.roads import WIDTHS
from jaxmarl_echelon.envs.drive.scenes.generated.shapes import (
    make_arc,
    make_bezier,
    make_line,
    unit_vector,
)
from physics.angles import wrap_angle_by_remainder

CONTROLS = ("all_way", "two_way", "none")


def make_crossing(rng: np.random.Generator) -> RoadNetwork:
    """Four arms of 60 to 90 m with 1 or 2 lanes per direction, with all-way, two-way or no stop."""
    angles = np.arange(4) * np.pi / 2 + np.deg2rad(rng.uniform(-15, 15, 4))
    lanes = rng.integers(1, 3, 2)[[0, 1, 0, 1]]
    return _join_arms(rng, angles, lanes, minor=(1, 3))


def make_tee(rng: np.random.Generator) -> RoadNetwork:
    """Three arms like those of a crossing."""
    angles = np.array([0.0, np.pi / 2, np.pi]) + np.deg2rad(rng.uniform(-15, 15, 3))
    lanes = rng.integers(1, 3, 2)[[0, 1, 0]]
    return _join_arms(rng, angles, lanes, minor=(1,))


def _join_arms(
    rng: np.random.Generator, angles: np.ndarray, lanes: np.ndarray, minor: tuple[int, ...]
) -> RoadNetwork:
    """Joins arms at given angles with given lanes per direction; `minor` arms stop at a two-way stop."""
    network = RoadNetwork()
    width, limit = rng.uniform(*WIDTHS), rng.uniform(10, 17)
    control = str(rng.choice(CONTROLS))
    walks = rng.random(len(angles)) < 0.4
    half = width * lanes
    inner = _room(angles, half) + rng.uniform(3, 6)
    arms = []
    for nth, angle in enumerate(angles):
        stops = control == "all_way" or (control == "two_way" and nth in minor)
        rule = STOP if stops else MAIN if control == "two_way" else YIELD
        start = inner * unit_vector(angle)
        reference = make_line(start, angle, rng.uniform(60, 90))
        count = int(lanes[nth])
        made = add_road_section(
            network, reference, width=width, limit=limit, forward=count, backward=count, backward_control=rule
        )
        arms.append(JunctionArm(made.backward, made.forward))
        if walks[nth]:
            network.crosswalks.append(
                make_crosswalk(start + 1.0 * unit_vector(angle), angle, half[nth], half[nth])
            )
        if stops:
            at = start + 5.0 * unit_vector(angle) + (half[nth] + 1.2) * unit_vector(angle + np.pi / 2)
            network.signs.append(at)
    connect_arms(network, arms, 0.8 * limit)
    network.junctions.append((0.0, 0.0, inner + (4.5 if walks.any() else 0.5)))
    return network


def _room(angles: np.ndarray, half: np.ndarray) -> float:
    """Distance from the centre at which arms must start so that neighbours do not overlap, m."""
    apart = wrap_angle_by_remainder(np.roll(angles, -1) - angles) % (2 * np.pi)
    both = np.maximum(half, np.roll(half, -1))
    return float(np.max(both / np.tan(np.minimum(apart, np.pi / 2) / 2)))


def make_roundabout(rng: np.random.Generator) -> RoadNetwork:
    """An island of 8 to 14 m radius with 3 or 4 arms; vehicles on the ring have priority."""
    network = RoadNetwork()
    width, limit = rng.uniform(3.6, 4.0), rng.uniform(10, 14)
    radius = rng.uniform(8, 14) + width / 2 + 0.3
    count = int(rng.integers(3, 5))
    angles = 2 * np.pi * np.arange(count) / count + np.deg2rad(rng.uniform(-5, 5, count))
    spread = 0.6
    slow = max(4.5, float(np.sqrt(2.0 * radius)))
    for nth, angle in enumerate(angles):
        start = (radius + width / 2 + 11.0) * unit_vector(angle)
        gap = 2.0
        made = add_road_section(
            network, make_line(start, angle, rng.uniform(50, 75)), width=width, limit=limit,
            forward=1, backward=1, gap=gap, backward_control=YIELD,
        )  # fmt: skip
        (into,), (out,) = made.backward, made.forward
        enter, leave = angle + spread, angle - spread
        joint, exit_at = radius * unit_vector(enter), radius * unit_vector(leave)
        entry = make_bezier(into.points[-1], angle + np.pi, joint, enter + np.pi / 2)
        away = make_bezier(exit_at, leave + np.pi / 2, out.points[0], angle)
        network.lanes += [
            NetworkLane(entry, width, slow, YIELD, inside=True),
            NetworkLane(away, width, slow, inside=True),
            NetworkLane(_ring(radius, leave, enter), width, slow, inside=True),
            NetworkLane(_ring(radius, enter, angles[(nth + 1) % count] - spread), width, slow),
        ]
        network.junctions.append((*joint, 6.0))
    return network


def _ring(radius: float, start: float, end: float) -> np.ndarray:
    turn = (end - start) % (2 * np.pi)
    return make_arc(radius * unit_vector(start), start + np.pi / 2, radius, turn)


BAY = np.array([5.0, 2.5])
AISLE = 3.0  # m, width of each of an aisle's two lanes


def make_parking(rng: np.random.Generator) -> RoadNetwork:
    """A parking area with an entrance and an exit.

    Two aisles of 6 m with bays of 2.5 x 5 m on both sides are joined at their ends.
    """
    network = RoadNetwork(parked=int(rng.integers(6, 13)))
    bays = int(rng.integers(13, 18))
    corner, limit = 8.0, rng.uniform(4.5, 7.0)
    length, apart = bays * BAY[1], 2 * AISLE + 2 * BAY[0] + rng.uniform(2.2, 4)
    nodes = np.array([[0, 0], [length + 2 * corner, 0], [length + 2 * corner, apart], [0, apart]])
    arms = [[] for _ in nodes]

    def road(start: np.ndarray, heading: float, long: float, at: int | None, to: int | None) -> None:
        made = add_road_section(
            network, make_line(start, heading, long), width=AISLE, limit=limit, forward=1, backward=1,
            control=YIELD, backward_control=YIELD, lines=False,
        )  # fmt: skip
        if at is not None:
            arms[at].append(JunctionArm(made.backward, made.forward))
        if to is not None:
            arms[to].append(JunctionArm(made.forward, made.backward))

    right = np.array([1.0, 0.0])
    road(nodes[0] + corner * right, 0.0, length, 0, 1)
    road(nodes[3] + corner * right, 0.0, length, 3, 2)
    side = 6.0
    for low, high in ((0, 3), (1, 2)):
        road(nodes[low] + [0.0, side], np.pi / 2, apart - 2 * side, low, high)
    road(nodes[0] - corner * right, np.pi, rng.uniform(35, 50), 0, None)
    road(nodes[2] + corner * right, 0.0, rng.uniform(35, 50), 2, None)
    for node, meets in zip(nodes, arms, strict=True):
        connect_arms(network, meets, min(limit, 4.5))
        network.junctions.append((*node, corner + 0.5))
    for node in (nodes[0], nodes[3]):
        for way in (-1, 1):
            first = node + [corner, way * (AISLE + BAY[0] / 2)]
            _row(network, first, way, bays)
    return network


def _row(network: RoadNetwork, corner: np.ndarray, way: int, count: int) -> None:
    """Adds a row of bays from `corner` along x; `way` is the side of their aisle."""
    middle = corner + [count * BAY[1] / 2, 0.0]
    network.patches.append(np.array([*middle, 0.0, count * BAY[1], BAY[0] + 0.6]))
    for nth in range(count):
        at = corner + [(nth + 0.5) * BAY[1], 0.0]
        network.bays.append(np.array([*at, way * np.pi / 2]))
    for nth in range(count + 1):
        at = corner + [nth * BAY[1], -way * BAY[0] / 2]
        network.lines.append((7, make_line(at, way * np.pi / 2, BAY[0])))


def rotate_network(network: RoadNetwork, heading: float) -> RoadNetwork:
    """Returns the network rotated about the origin."""
    c, s = np.cos(heading), np.sin(heading)
    spin = np.array([[c, s], [-s, c]])

    def posed(row: np.ndarray) -> np.ndarray:
        return np.concatenate([row[:2] @ spin, [row[2] + heading], row[3:]])

    return replace(
        network,
        lanes=[replace(lane, points=lane.points @ spin) for lane in network.lanes],
        lines=[(element, points @ spin) for element, points in network.lines],
        patches=[posed(patch) for patch in network.patches],
        bays=[posed(bay) for bay in network.bays],
        crosswalks=[points @ spin for points in network.crosswalks],
        signs=[point @ spin for point in network.signs],
        junctions=[(*(np.array(one[:2]) @ spin), one[2]) for one in network.junctions],
    )
