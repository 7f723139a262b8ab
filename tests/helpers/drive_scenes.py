"""Small scenes made by hand for tests of driving: a straight road with a side road, and who drives there."""

from functools import cache

import jax
import numpy as np

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import CYCLIST, PEDESTRIAN, VEHICLE
from jaxmarl_echelon.envs.drive.scenes.arrays import build_scene_arrays, stack_scenes
from jaxmarl_echelon.envs.drive.scenes.learners import SlotSettings
from jaxmarl_echelon.envs.drive.scenes.raw_scene import SAMPLES, STEP, RawScene, Road

AGENTS, BODIES = 4, 8
LENGTH = 200.0
CAR, _TRUCK, _BIKE, _WALKER = (4.5, 2.0, 1.5), (7.0, 2.4, 3.0), (1.8, 0.7, 1.7), (0.6, 0.6, 1.7)


def _line(kind: str, element: int, number: int, *points) -> Road:
    return Road(kind, element, number, np.asarray(points, float), 15.0 if kind == "lane" else None)


def roads() -> tuple[Road, ...]:
    """Two lanes along x, one each way, with a lane that turns off to the left; edges 4 m from the middle."""
    bend = [(60 + 12 * np.sin(a), -1.75 + 12 * (1 - np.cos(a))) for a in np.linspace(0, np.pi / 2, 12)]
    return (
        _line("lane", 2, 0, (0.0, -1.75), (60.0, -1.75)),
        _line("lane", 2, 1, (60.0, -1.75), (LENGTH, -1.75)),
        _line("lane", 2, 2, *bend, (72.0, 60.0)),
        _line("lane", 2, 3, (LENGTH, 1.75), (0.0, 1.75)),
        _line("road_edge", 15, 4, (0.0, -4.0), (LENGTH, -4.0)),
        _line("road_edge", 15, 5, (66.0, 4.0), (0.0, 4.0)),
        _line("road_edge", 15, 6, (66.0, 60.0), (66.0, 4.0)),
        _line("road_edge", 15, 7, (LENGTH, 4.0), (78.0, 4.0), (78.0, 60.0)),
        _line("road_line", 9, 8, (0.0, 0.0), (LENGTH, 0.0)),
    )


# x, y, heading, speed, size, type; everybody goes straight on at a constant speed.
MIXED = (
    (10.0, -1.75, 0.0, 8.0, CAR, VEHICLE),
    (150.0, 1.75, np.pi, 10.0, CAR, VEHICLE),
    (40.0, -1.75, 0.0, 12.0, _TRUCK, VEHICLE),
    (100.0, 1.75, np.pi, 9.0, CAR, VEHICLE),
    (70.0, -1.75, 0.0, 12.0, CAR, VEHICLE),
    (20.0, -3.2, 0.0, 4.0, _BIKE, CYCLIST),
    (110.0, -3.0, np.pi / 2, 0.9, _WALKER, PEDESTRIAN),
    (74.0, 30.0, -np.pi / 2, 0.0, CAR, VEHICLE),
)
FOLLOWING = (
    (30.0, -1.75, 0.0, 3.0, CAR, VEHICLE),
    (10.0, -1.75, 0.0, 3.0, CAR, VEHICLE),
)


def scene(bodies=MIXED, samples: int = SAMPLES, goal: float | None = None) -> RawScene:
    """A scene in which bodies drive straight on; goals are their last poses, or `goal` m ahead."""
    x, y, heading, speed = (np.array([body[column] for body in bodies]) for column in range(4))
    time = np.arange(samples) * STEP
    along = speed[:, None] * time
    direction = np.stack([np.cos(heading), np.sin(heading)], axis=-1)
    position = np.stack([x, y], axis=-1)[:, None] + along[..., None] * direction[:, None]
    end = position[:, -1] if goal is None else position[:, 0] + goal * direction
    count = len(bodies)
    return RawScene(
        name="made",
        kind="straight",
        position=position,
        heading=np.broadcast_to(heading[:, None], (count, samples)),
        velocity=np.broadcast_to((speed[:, None] * direction)[:, None], position.shape),
        valid=np.ones((count, samples), bool),
        size=np.array([body[4] for body in bodies]),
        type=np.array([body[5] for body in bodies]),
        goal=end,
        expert=np.zeros(count, bool),
        ids=np.arange(count),
        roads=roads(),
    )


def bank_of(
    *scenes: RawScene, agents: int = AGENTS, bodies: int = BODIES, control="vehicles", init_step: int = 0
) -> SceneBank:
    """A bank of scenes."""
    casting = SlotSettings(agents=agents, bodies=bodies, control=control, init_step=init_step)
    arrays = stack_scenes([build_scene_arrays(one, casting)[0] for one in scenes])
    bank = SceneBank(**arrays, kind=np.zeros(len(scenes), np.int32))
    return jax.device_put(bank)


@cache
def small_bank() -> SceneBank:
    """Mixed traffic, and two cars that follow each other."""
    return bank_of(scene(), scene(FOLLOWING), scene(MIXED, goal=25.0))
