"""Which traffic lights stand on a body's way."""

import numpy as np

from jaxmarl_echelon.envs.drive.scenes.host import Gate, HostScene, Route
from physics.polylines import arcs, distance, interpolate

_BESIDE = 2.0  # m from the way at which a light's lane still is the way's own
_FOLLOWED = 15.0  # m of the lane behind the light that the way must follow


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


def _arc_of(points: np.ndarray, at: np.ndarray) -> float:
    """Arc of the point of a polyline nearest to `at`."""
    segments = np.concatenate([points[:-1], points[1:]], axis=1)
    nearest = int(distance(at, segments).argmin())
    start, step = points[nearest], points[nearest + 1] - points[nearest]
    length = np.hypot(*step)
    along = (at - start) @ step / length if length > 0 else 0.0
    return float(arcs(points)[nearest] + np.clip(along, 0.0, length))
