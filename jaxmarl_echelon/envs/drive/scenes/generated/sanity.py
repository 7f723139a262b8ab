"""Ten scenes made by hand, each of which asks for one skill (spec/drive.md 2.4)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from jaxmarl_echelon.envs.drive.codes import VEHICLE
from jaxmarl_echelon.envs.drive.scenes.generated import ways
from jaxmarl_echelon.envs.drive.scenes.generated.bodies import Body
from jaxmarl_echelon.envs.drive.scenes.generated.generate import record
from jaxmarl_echelon.envs.drive.scenes.generated.network import YIELD, Arm, Network, connect, section
from jaxmarl_echelon.envs.drive.scenes.generated.shapes import arc, join, line, unit, wrap
from jaxmarl_echelon.envs.drive.scenes.raw_scene import HostScene

CAR = np.array([4.5, 2.0])
_WIDTH = 3.6
_ORIGIN = np.zeros(2)

Plan = tuple[Network, list[Body], dict[int, np.ndarray]]


def scene(name: str) -> HostScene:
    """A scene by its name.

    Raises:
      ValueError: an unknown name.
    """
    if name not in SCENES:
        raise ValueError(f"env.scenes=sanity:{name}: unknown; allowed: {', '.join(SCENES)}")
    network, bodies, goals = SCENES[name]()
    made = record(np.random.default_rng(0), name, name, network, bodies, (90, 90))
    goal = made.goal.copy()
    for body, at in goals.items():
        goal[body] = at
    # A slow leader is no learner; nobody else here is too near to its goal to be one.
    expert = np.array([body.speed < 2.5 and body.way is not None for body in bodies])
    return replace(made, goal=goal, expert=expert)


def _driver(network: Network, lane: int, start: float, speed: float, fastest: float = np.inf) -> Body:
    """A car on a lane that takes the first way at every fork."""
    first = _First()
    after = ways.following(network.lanes)
    lanes, points, until = ways.walk(first, network, after, lane, start, 250.0)
    way = ways.make_way(network, lanes, points, until, fastest=fastest)
    return Body(VEHICLE, CAR, np.array([*way.points[0], wrap(way.heading[0])]), speed, way)


class _First:
    """Chooses the first of several."""

    def choice(self, options: np.ndarray) -> int:
        return options[0]


def _standing(network: Network, lane: int, start: float) -> Body:
    moving = _driver(network, lane, start, 0.0)
    return Body(VEHICLE, CAR, moving.pose)


def _road(reference: np.ndarray, limit: float = 12.0, width: float = _WIDTH) -> Network:
    """One lane for each direction; the first goes along the reference."""
    network = Network()
    section(network, reference, width=width, limit=limit, forward=1, backward=1)
    return network


def _straight() -> Plan:
    network = _road(line(_ORIGIN, 0.0, 140.0))
    return network, [_driver(network, 0, 15.0, 5.0)], {}


def _reverse() -> Plan:
    network = _road(line(_ORIGIN, 0.0, 80.0))
    body = _standing(network, 0, 45.0)
    return network, [body], {0: body.pose[:2] - 10.0 * unit(body.pose[2])}


def _two_agents() -> Plan:
    network = _road(line(_ORIGIN, 0.0, 140.0))
    return network, [_driver(network, 0, 15.0, 5.0), _driver(network, 1, 15.0, 5.0)], {}


def _follow() -> Plan:
    network = _road(line(_ORIGIN, 0.0, 140.0))
    return network, [_driver(network, 0, 15.0, 6.0), _driver(network, 0, 35.0, 2.0, fastest=3.0)], {}


def _turn() -> Plan:
    first = line(_ORIGIN, 0.0, 40.0)
    bend = arc(first[-1], 0.0, 14.0, np.pi / 2)
    network = _road(join(first, bend, line(bend[-1], np.pi / 2, 50.0)))
    return network, [_driver(network, 0, 15.0, 5.0)], {}


def _s_curve() -> Plan:
    first = line(_ORIGIN, 0.0, 25.0)
    left = arc(first[-1], 0.0, 25.0, np.pi / 3)
    right = arc(left[-1], np.pi / 3, 25.0, -np.pi / 3)
    network = _road(join(first, left, right, line(right[-1], 0.0, 40.0)))
    return network, [_driver(network, 0, 8.0, 5.0)], {}


def _u_turn() -> Plan:
    first = line(_ORIGIN, 0.0, 35.0)
    bend = arc(first[-1], 0.0, 8.0, np.pi)
    network = _road(join(first, bend, line(bend[-1], np.pi, 40.0)))
    return network, [_driver(network, 0, 27.0, 5.0)], {}


def _three_point() -> Plan:
    network = _road(line(_ORIGIN, 0.0, 80.0), width=3.4)
    body = _standing(network, 0, 45.0)
    back = network.lanes[1].points
    return network, [body], {0: back[0] + 60.0 * (back[1] - back[0]) / network.lanes[1].length}


def _crossing() -> Plan:
    network = Network()
    arms = []
    for angle in np.arange(4) * np.pi / 2:
        reference = line(9.0 * unit(angle), angle, 60.0)
        made = section(
            network, reference, width=_WIDTH, limit=10.0, forward=1, backward=1, backward_control=YIELD
        )
        arms.append(Arm(made.backward, made.forward))
    connect(network, arms, 8.0)
    network.junctions.append((0.0, 0.0, 9.5))
    into = [nth for nth, lane in enumerate(network.lanes) if lane.control == YIELD]
    bodies = [_driver(network, lane, 26.0 + 7.0 * nth, 5.0) for nth, lane in enumerate(into)]
    # The recording waits for others; goals are beyond the crossing for everybody.
    return network, bodies, {nth: body.way.points[60] for nth, body in enumerate(bodies)}


def _hidden_goal() -> Plan:
    network = _road(line(_ORIGIN, 0.0, 200.0), limit=15.0)
    body = _driver(network, 0, 15.0, 5.0)
    return network, [body], {0: body.pose[:2] + 150.0 * unit(body.pose[2])}


SCENES: dict[str, Callable[[], Plan]] = {
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
