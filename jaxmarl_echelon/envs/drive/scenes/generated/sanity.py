"""Ten hand-made scenes, each of which tests one skill. Reference: docs/reference/drive.md 12.7."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from jaxmarl_echelon.envs.drive.codes import VEHICLE
from jaxmarl_echelon.envs.drive.scenes.generated import ways
from jaxmarl_echelon.envs.drive.scenes.generated.bodies import Body
from jaxmarl_echelon.envs.drive.scenes.generated.generate import record_scene
from jaxmarl_echelon.envs.drive.scenes.generated.network import (
    YIELD,
    JunctionArm,
    RoadNetwork,
    add_road_section,
    connect_arms,
)
from jaxmarl_echelon.envs.drive.scenes.generated.shapes import (
    join_curves,
    make_arc,
    make_line,
    unit_vector,
)
from jaxmarl_echelon.envs.drive.scenes.raw_scene import RawScene
from physics.angles import wrap_angle_by_remainder

CAR = np.array([4.5, 2.0])
_WIDTH = 3.6
_ORIGIN = np.zeros(2)

ScenePlan = tuple[RoadNetwork, list[Body], dict[int, np.ndarray]]


def make_sanity_scene(name: str) -> RawScene:
    """Returns a scene by its name.

    Raises:
      ValueError: an unknown name.
    """
    if name not in SCENES:
        raise ValueError(f"env.scenes=sanity:{name}: unknown; allowed: {', '.join(SCENES)}")
    network, bodies, goals = SCENES[name]()
    made = record_scene(np.random.default_rng(0), name, name, network, bodies, (90, 90))
    goal = made.goal.copy()
    for body, at in goals.items():
        goal[body] = at
    # The slow leader must not learn; all others are far enough from their goals.
    expert = np.array([body.speed < 2.5 and body.way is not None for body in bodies])
    return replace(made, goal=goal, expert=expert)


def _driver(network: RoadNetwork, lane: int, start: float, speed: float, fastest: float = np.inf) -> Body:
    """A car on a lane that takes the first successor at every fork."""
    first = _First()
    after = ways.find_successors(network.lanes)
    lanes, points, until = ways.walk_lanes(first, network, after, lane, start, 250.0)
    way = ways.make_way(network, lanes, points, until, fastest=fastest)
    return Body(VEHICLE, CAR, np.array([*way.points[0], wrap_angle_by_remainder(way.heading[0])]), speed, way)


class _First:
    """Random generator replacement that always chooses the first option."""

    def choice(self, options: np.ndarray) -> int:
        return options[0]


def _standing(network: RoadNetwork, lane: int, start: float) -> Body:
    moving = _driver(network, lane, start, 0.0)
    return Body(VEHICLE, CAR, moving.pose)


def _road(reference: np.ndarray, limit: float = 12.0, width: float = _WIDTH) -> RoadNetwork:
    """A road with one lane for each direction; the first lane follows the reference."""
    network = RoadNetwork()
    add_road_section(network, reference, width=width, limit=limit, forward=1, backward=1)
    return network


def _straight() -> ScenePlan:
    network = _road(make_line(_ORIGIN, 0.0, 140.0))
    return network, [_driver(network, 0, 15.0, 5.0)], {}


def _reverse() -> ScenePlan:
    network = _road(make_line(_ORIGIN, 0.0, 80.0))
    body = _standing(network, 0, 45.0)
    return network, [body], {0: body.pose[:2] - 10.0 * unit_vector(body.pose[2])}


def _two_agents() -> ScenePlan:
    network = _road(make_line(_ORIGIN, 0.0, 140.0))
    return network, [_driver(network, 0, 15.0, 5.0), _driver(network, 1, 15.0, 5.0)], {}


def _follow() -> ScenePlan:
    network = _road(make_line(_ORIGIN, 0.0, 140.0))
    return network, [_driver(network, 0, 15.0, 6.0), _driver(network, 0, 35.0, 2.0, fastest=3.0)], {}


def _turn() -> ScenePlan:
    first = make_line(_ORIGIN, 0.0, 40.0)
    bend = make_arc(first[-1], 0.0, 14.0, np.pi / 2)
    network = _road(join_curves(first, bend, make_line(bend[-1], np.pi / 2, 50.0)))
    return network, [_driver(network, 0, 15.0, 5.0)], {}


def _s_curve() -> ScenePlan:
    first = make_line(_ORIGIN, 0.0, 25.0)
    left = make_arc(first[-1], 0.0, 25.0, np.pi / 3)
    right = make_arc(left[-1], np.pi / 3, 25.0, -np.pi / 3)
    network = _road(join_curves(first, left, right, make_line(right[-1], 0.0, 40.0)))
    return network, [_driver(network, 0, 8.0, 5.0)], {}


def _u_turn() -> ScenePlan:
    first = make_line(_ORIGIN, 0.0, 35.0)
    bend = make_arc(first[-1], 0.0, 8.0, np.pi)
    network = _road(join_curves(first, bend, make_line(bend[-1], np.pi, 40.0)))
    return network, [_driver(network, 0, 27.0, 5.0)], {}


def _three_point() -> ScenePlan:
    network = _road(make_line(_ORIGIN, 0.0, 80.0), width=3.4)
    body = _standing(network, 0, 45.0)
    back = network.lanes[1].points
    return network, [body], {0: back[0] + 60.0 * (back[1] - back[0]) / network.lanes[1].length}


def _crossing() -> ScenePlan:
    network = RoadNetwork()
    arms = []
    for angle in np.arange(4) * np.pi / 2:
        reference = make_line(9.0 * unit_vector(angle), angle, 60.0)
        made = add_road_section(
            network, reference, width=_WIDTH, limit=10.0, forward=1, backward=1, backward_control=YIELD
        )
        arms.append(JunctionArm(made.backward, made.forward))
    connect_arms(network, arms, 8.0)
    network.junctions.append((0.0, 0.0, 9.5))
    into = [nth for nth, lane in enumerate(network.lanes) if lane.control == YIELD]
    bodies = [_driver(network, lane, 26.0 + 7.0 * nth, 5.0) for nth, lane in enumerate(into)]
    # Recorded bodies wait for each other; all goals lie beyond the crossing.
    return network, bodies, {nth: body.way.points[60] for nth, body in enumerate(bodies)}


def _hidden_goal() -> ScenePlan:
    network = _road(make_line(_ORIGIN, 0.0, 200.0), limit=15.0)
    body = _driver(network, 0, 15.0, 5.0)
    return network, [body], {0: body.pose[:2] + 150.0 * unit_vector(body.pose[2])}


SCENES: dict[str, Callable[[], ScenePlan]] = {
    "straight": _straight,
    "reverse": _reverse,
    "two_agents": _two_agents,
    "follow": _follow,
    "turn": _turn,
    "s_curve": _s_curve,
    "u_turn": _u_turn,
    "three_point": _three_point,
    "crossing": _crossing,
    "hidden_goal": _hidden_goal,
}
