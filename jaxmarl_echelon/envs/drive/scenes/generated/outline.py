"""Road edges: outlines of lanes and patches with the drivable side on their left.

Reference: docs/reference/drive.md 12.3.
"""

import numpy as np
from contourpy import LineType, contour_generator

from jaxmarl_echelon.envs.drive.scenes.generated.network import NetworkLane, RoadNetwork
from physics.polylines import cut_polyline, point_headings, segment_distance

WIDER = 0.3  # m, distance of edges from the lanes' borders
_PIECE = 5.0  # m, length of the strips into which lanes are cut
_BAND = 2.0  # m, band around lanes in which the distance field is exact
_CELL = 0.5
_TOLERANCE = 0.02  # m
_SPECK = 4.0  # m; smaller outlines are artefacts of sharp gores


def trace_road_edges(network: RoadNetwork) -> list[np.ndarray]:
    """Outlines of the union of lanes, widened by `WIDER`, and patches, without the caps of open ends."""
    field, x, y = _field(network)
    lines = contour_generator(x, y, field, line_type=LineType.Separate).lines(0.0)
    ends = _open_ends(network.lanes)
    found = []
    for outline in lines:
        if np.ptp(outline, axis=0).max() < _SPECK:
            continue
        outline = _oriented(outline, field, x, y)
        found += [_simplify_polyline(part, _TOLERANCE) for part in _without_caps(outline, ends)]
    return found


def _field(network: RoadNetwork) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distance outside the union, `[Y, X]`, exact near lanes, and the grid's coordinates."""
    rows = [_strips(lane) for lane in network.lanes]
    strips = np.concatenate([strips for strips, _ in rows])
    half = np.concatenate([half for _, half in rows])
    ends = strips.reshape(-1, 2)
    margin = half.max() + 3 * _BAND + sum(np.hypot(*patch[3:]) for patch in network.patches[:1])
    low, high = ends.min(0) - margin, ends.max(0) + margin
    x, y = (np.arange(a, b + _CELL, _CELL) for a, b in zip(low, high, strict=True))
    field = np.full((len(y), len(x)), _BAND)
    _lower_by_strips(field, low, strips, half)
    for patch in network.patches:
        _lower_by_patch(field, x, y, patch)
    return field, x, y


def _strips(lane: NetworkLane) -> tuple[np.ndarray, np.ndarray]:
    segments = cut_polyline(lane.points, _PIECE)
    return segments, np.full(len(segments), lane.width / 2 + WIDER)


def _lower_by_strips(field: np.ndarray, low: np.ndarray, strips: np.ndarray, half: np.ndarray) -> None:
    reach = half.max() + _BAND
    longest = np.hypot(*(strips[:, 2:] - strips[:, :2]).T).max()
    span = int(np.ceil((longest + 2 * reach) / _CELL)) + 1
    corner = np.minimum(strips[:, :2], strips[:, 2:]) - reach
    first = np.maximum(((corner - low) / _CELL).astype(int), 0)
    step = np.arange(span)
    column = np.minimum(first[:, 0, None] + step, field.shape[1] - 1)
    row = np.minimum(first[:, 1, None] + step, field.shape[0] - 1)
    where = np.stack(np.broadcast_arrays(column[:, None, :], row[:, :, None]), axis=-1)
    apart = segment_distance(low + where * _CELL, strips[:, None, None]) - half[:, None, None]
    np.minimum.at(field, (where[..., 1], where[..., 0]), apart)


def _lower_by_patch(field: np.ndarray, x: np.ndarray, y: np.ndarray, patch: np.ndarray) -> None:
    c, s = np.cos(patch[2]), np.sin(patch[2])
    dx, dy = x[None] - patch[0], y[:, None] - patch[1]
    outside = np.stack([np.abs(dx * c + dy * s), np.abs(dy * c - dx * s)]) - patch[3:, None, None] / 2
    apart = np.hypot(*np.maximum(outside, 0.0)) + np.minimum(outside.max(0), 0.0)
    np.minimum(field, apart, out=field)


def _oriented(outline: np.ndarray, field: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the outline in the direction that has lower values on its left."""
    middle = len(outline) // 2
    a, b = outline[middle - 1], outline[middle]
    aside = np.array([a[1] - b[1], b[0] - a[0]])
    probe = (a + b) / 2 + 0.8 * _CELL * aside / max(np.hypot(*aside), 1e-9)
    column, row = np.searchsorted(x, probe[0]), np.searchsorted(y, probe[1])
    around = field[row - 1 : row + 1, column - 1 : column + 1].mean()
    return outline if around < 0 else outline[::-1]


def _open_ends(lanes: list[NetworkLane]) -> np.ndarray:
    """Ends of lanes that leave the scene, `[K, 5]`: x, y, outward direction and half width."""
    starts = np.array([lane.points[0] for lane in lanes])
    stops = np.array([lane.points[-1] for lane in lanes])
    joined = np.hypot(*(starts[:, None] - stops[None]).transpose(2, 0, 1)) < 0.1
    found = []
    for nth, lane in enumerate(lanes):
        heading, half = point_headings(lane.points), lane.width / 2 + WIDER
        if not joined[nth].any():
            found.append([*lane.points[0], -np.cos(heading[0]), -np.sin(heading[0]), half])
        if not joined[:, nth].any():
            found.append([*lane.points[-1], np.cos(heading[-1]), np.sin(heading[-1]), half])
    return np.array(found).reshape(-1, 5)


def _without_caps(outline: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """Splits an outline into the parts not beyond open ends of lanes.

    A closed outline without caps stays closed.
    """
    to = outline[:, None] - ends[:, :2]
    ahead = to[..., 0] * ends[:, 2] + to[..., 1] * ends[:, 3]
    aside = np.abs(to[..., 1] * ends[:, 2] - to[..., 0] * ends[:, 3])
    beyond = ((ahead > 0.01) & (ahead < 6.0) & (aside <= ends[:, 4] + 0.3)).any(1)
    if not beyond.any():
        return [outline]
    if (outline[0] == outline[-1]).all():
        # Starts a closed outline within a cap, so that no part crosses its seam.
        seam = int(beyond.argmax())
        outline = np.concatenate([outline[seam:-1], outline[: seam + 1]])
        beyond = np.concatenate([beyond[seam:-1], beyond[: seam + 1]])
    kept = np.flatnonzero(~beyond)
    runs = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)
    return [outline[run] for run in runs if len(run) >= 4]


def _simplify_polyline(points: np.ndarray, tolerance: float) -> np.ndarray:
    """Reduces a polyline to fewer points, with a deviation of at most `tolerance` m.

    Recursive subdivision of Ramer (1972).
    """
    keep = np.zeros(len(points), bool)
    keep[[0, -1]] = True
    spans = [(0, len(points) - 1)]
    if (points[0] == points[-1]).all():
        far = int(np.hypot(*(points - points[0]).T).argmax())
        keep[far] = True
        spans = [(0, far), (far, len(points) - 1)]
    while spans:
        a, b = spans.pop()
        if b - a < 2:
            continue
        apart = segment_distance(points[a + 1 : b], np.concatenate([points[a], points[b]]))
        worst = int(apart.argmax())
        if apart[worst] > tolerance:
            middle = a + 1 + worst
            keep[middle] = True
            spans += [(a, middle), (middle, b)]
    return points[keep]
