"""Which traffic lights and stop signs stand on a body's way."""

import numpy as np

from jaxmarl_echelon.envs.drive.scenes.raw_scene import Gate, HostScene, Route
from physics.polylines import arcs, distance, interpolate, signed_distance

_BESIDE = 2.0  # m from the way at which a light's lane still is the way's own
_FOLLOWED = 15.0  # m of the lane behind the light that the way must follow
_ROADSIDE = 5.0  # m to the right of the way at which a sign still is the way's own


def light_gates(scene: HostScene, way: Route) -> list[Gate]:
    """A gate for every light on a lane that a way follows, with an index among the scene's lights."""
    lanes = {road.id: road.points for road in scene.roads if road.kind == "lane"}
    found = []
    for nth, light in enumerate(scene.lights):
        lane = lanes.get(light.lane)
        if lane is None:
            continue
        start = _arc_of(lane, light.point)
        behind = interpolate(start + np.array([0.0, 0.5, 1.0]) * _FOLLOWED, lane)
        segments = np.concatenate([way.points[:-1], way.points[1:]], axis=1)
        if distance(behind[:, None], segments).min(1).max() > _BESIDE:
            continue
        first, last = (_arc_of(way.points, point) for point in (behind[0], behind[-1]))
        # Oncoming traffic meets the lane's points in the opposite order.
        if last > first:
            found.append(Gate(first, first, -1, stop=False, main=True, light=nth))
    return found


def sign_gates(scene: HostScene, way: Route) -> list[Gate]:
    """A gate for every stop sign at the right side of a way, within the way.

    Files give the sign's position alone: signs for crossing and oncoming traffic stand to the left, or
    farther away.
    """
    segments = np.concatenate([way.points[:-1], way.points[1:]], axis=1)
    found = []
    for road in scene.roads:
        if road.kind != "stop_sign":
            continue
        nearest = int(distance(road.points[0], segments).argmin())
        aside = float(signed_distance(road.points[0], segments[nearest]))
        arc = _arc_of(way.points, road.points[0])
        if -_ROADSIDE <= aside < 0 and 0 < arc < arcs(way.points)[-1]:
            found.append(Gate(arc, arc, -1, stop=True, main=True))
    return found


def _arc_of(points: np.ndarray, at: np.ndarray) -> float:
    """Arc of the point of a polyline nearest to `at`."""
    segments = np.concatenate([points[:-1], points[1:]], axis=1)
    nearest = int(distance(at, segments).argmin())
    start, step = points[nearest], points[nearest + 1] - points[nearest]
    length = np.hypot(*step)
    along = (at - start) @ step / length if length > 0 else 0.0
    return float(arcs(points)[nearest] + np.clip(along, 0.0, length))
