"""One scene on the host, from a file or a generator, of any size and in its own coordinates."""

from dataclasses import dataclass, field

import numpy as np

SAMPLES = 91
STEP = 0.1
NO_LIMIT = 10.0  # m/s, least desired speed of drivers where a lane's speed limit is unknown

ROADS = ("lane", "road_line", "road_edge", "stop_sign", "crosswalk", "speed_bump", "driveway")
ELEMENT_OF = dict(zip(ROADS, (2, 6, 15, 17, 18, 19, 20), strict=True))
BIKE_ELEMENT = 3


@dataclass(frozen=True)
class Road:
    """A map element.

    Attributes:
      kind: one of `ROADS`.
      element: its `map_element_id`, -1 if unknown.
      id: as in the file.
      points: `[P, 2]` m; a polyline, the corners of a polygon, or a sign's position.
      limit: speed limit of a lane in m/s; None if unknown.
    """

    kind: str
    element: int
    id: int
    points: np.ndarray
    limit: float | None = None


@dataclass(frozen=True)
class Light:
    """States of a traffic light, `[T]` indices of `codes.LIGHTS`, for the lane with the id `lane`.

    `point` `[2]` is the position at which the lane's traffic waits.
    """

    lane: int
    state: np.ndarray
    point: np.ndarray


@dataclass(frozen=True)
class Gate:
    """A line on a body's route at which the body may have to wait; see `bank.SceneBank.gate_arc`.

    `light` is an index among the scene's lights, -1 without one.
    """

    arc: float
    end: float
    junction: int
    stop: bool
    main: bool
    light: int = -1


@dataclass(frozen=True)
class Route:
    """A body's route along lanes.

    Attributes:
      points: `[P, 2]` m, from where the body is first recorded.
      limit: `[P]` speed limit in m/s.
      gates: in the order in which the body reaches them.
    """

    points: np.ndarray
    limit: np.ndarray
    gates: tuple[Gate, ...] = ()


@dataclass(frozen=True)
class RawScene:
    """A scene with n bodies and T samples 0.1 s apart.

    Attributes:
      name: of the scene.
      kind: "loaded", or that of a generator.
      position: `[n, T, 2]` m; zeros where not valid, as in all recorded arrays.
      heading: `[n, T]` rad.
      velocity: `[n, T, 2]` m/s.
      valid: `[n, T]` bool.
      size: `[n, 3]` length, width and height in m.
      type: `[n]` index of `codes.TYPES`.
      goal: `[n, 2]` m.
      recorded_goal: `[n]` bool, goals at the end of the recording, which move with the last sample of
        episodes; None if there are no such goals.
      expert: `[n]` bool, bodies that must not become learners.
      ids: `[n]` int.
      sdc: index of the recording car, -1 if none.
      predict: indices of bodies to be predicted.
      roads: map elements.
      lights: traffic lights.
      routes: one per body, None where unknown; empty if all are unknown.
      junctions: `[J, 3]` centre x, y and radius in m.
      conflict: `[n, n]` bool, whether two routes meet or cross within a junction.
      notes: elements that a loader skipped or fixed, name -> count.
    """

    name: str
    kind: str
    position: np.ndarray
    heading: np.ndarray
    velocity: np.ndarray
    valid: np.ndarray
    size: np.ndarray
    type: np.ndarray
    goal: np.ndarray
    expert: np.ndarray
    ids: np.ndarray
    roads: tuple[Road, ...]
    recorded_goal: np.ndarray | None = None
    sdc: int = -1
    predict: tuple[int, ...] = ()
    lights: tuple[Light, ...] = ()
    routes: tuple[Route | None, ...] = ()
    junctions: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))
    conflict: np.ndarray | None = None
    notes: tuple[tuple[str, int], ...] = ()

    @property
    def speed(self) -> np.ndarray:
        """Velocity along the heading `[n, T]`, m/s."""
        along = self.velocity * np.stack([np.cos(self.heading), np.sin(self.heading)], axis=-1)
        return along.sum(-1)

    @property
    def middle(self) -> np.ndarray:
        """Mean `[2]` of all valid positions and all points of map elements."""
        points = [self.position[self.valid], *(road.points for road in self.roads)]
        return np.concatenate(points).mean(0)
