"""Traffic lights and stop signs on a body's route. Reference: docs/reference/drive.md 7.5."""

import numpy as np

from jaxmarl_echelon.envs.drive.scenes.raw_scene import Gate, RawScene, Route
from physics.polylines import arc_lengths, interpolate_polyline, segment_distance, signed_segment_distance

_BESIDE = 2.0  # m, largest distance of a light's lane from a route that follows it
_FOLLOWED = 15.0  # m of the lane after the light that the route must follow
_ROADSIDE = 5.0  # m to the right of the route within which a sign applies to it


def make_light_gates(scene: RawScene, way: Route) -> list[Gate]:
    """Returns a gate for every light whose lane a route follows, with the light's index in the scene."""
    lanes = {road.id: road.points for road in scene.roads if road.kind == "lane"}
    found = []
    for nth, light in enumerate(scene.lights):
        lane = lanes.get(light.lane)
        if lane is None:
            continue
        start = _arc_of(lane, light.point)
        behind = interpolate_polyline(start + np.array([0.0, 0.5, 1.0]) * _FOLLOWED, lane)
        segments = np.concatenate([way.points[:-1], way.points[1:]], axis=1)
        if segment_distance(behind[:, None], segments).min(1).max() > _BESIDE:
            continue
        first, last = (_arc_of(way.points, point) for point in (behind[0], behind[-1]))
        # Oncoming routes pass the lane's points in the opposite order.
        if last > first:
            found.append(Gate(first, first, -1, stop=False, main=True, light=nth))
    return found


def make_sign_gates(scene: RawScene, way: Route) -> list[Gate]:
    """Returns a gate for every stop sign at the right side of a route, within the route's length.

    Files give the sign's position alone: signs for crossing and oncoming traffic stand on the left or farther
    away.
    """
    segments = np.concatenate([way.points[:-1], way.points[1:]], axis=1)
    found = []
    for road in scene.roads:
        if road.kind != "stop_sign":
            continue
        nearest = int(segment_distance(road.points[0], segments).argmin())
        aside = float(signed_segment_distance(road.points[0], segments[nearest]))
        arc = _arc_of(way.points, road.points[0])
        if -_ROADSIDE <= aside < 0 and 0 < arc < arc_lengths(way.points)[-1]:
            found.append(Gate(arc, arc, -1, stop=True, main=True))
    return found


def _arc_of(points: np.ndarray, at: np.ndarray) -> float:
    """Arc of the point of a polyline nearest to `at`."""
    segments = np.concatenate([points[:-1], points[1:]], axis=1)
    nearest = int(segment_distance(at, segments).argmin())
    start, step = points[nearest], points[nearest + 1] - points[nearest]
    length = np.hypot(*step)
    along = (at - start) @ step / length if length > 0 else 0.0
    return float(arc_lengths(points)[nearest] + np.clip(along, 0.0, length))
