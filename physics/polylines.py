"""Polylines in the plane, on the host: thinning, cutting, resampling, headings, signed distances.

Points are `[K, 2]` float64, in metres.
"""

import numpy as np

THIN_FROM = 10  # polylines of at most so many points are kept as they are
THIN_AREA = 0.1


def thin_polyline(points: np.ndarray, area: float = THIN_AREA) -> np.ndarray:
    """Returns the indices of the points that thinning keeps, ascending, end points included.

    Sweeps over triples of kept points: if a triangle's area is below `area` (m^2), its middle point is
    dropped and the next triple starts at the third, else at the second. Sweeps repeat until none is dropped.
    Polylines of at most `THIN_FROM` points keep all. See docs/reference/drive.md, 'Road segments and
    polylines'.
    """
    kept = list(range(len(points)))
    if len(points) <= THIN_FROM:
        return np.array(kept, int)
    x, y = points[:, 0].tolist(), points[:, 1].tolist()
    before = None
    while before != len(kept):
        before = len(kept)
        kept = _sweep(kept, x, y, 2.0 * area)
    return np.array(kept, int)


def _sweep(kept: list[int], x: list[float], y: list[float], doubled: float) -> list[int]:
    result = [kept[0]]
    at = 0
    while at + 2 < len(kept):
        a, b, c = kept[at], kept[at + 1], kept[at + 2]
        cross = (x[b] - x[a]) * (y[c] - y[a]) - (y[b] - y[a]) * (x[c] - x[a])
        if abs(cross) < doubled:
            result.append(c)
            at += 2
        else:
            result.append(b)
            at += 1
    if result[-1] != kept[-1]:
        result.append(kept[-1])
    return result


def cut_polyline(points: np.ndarray, longest: float) -> np.ndarray:
    """Cuts a polyline into segments `[M, 4]` (x0, y0, x1, y1), those longer than `longest` in equal pieces.

    Segments of zero length are left out.
    """
    start, step = points[:-1], np.diff(points, axis=0)
    length = np.hypot(*step.T)
    start, step, length = start[length > 0], step[length > 0], length[length > 0]
    # Rounding can put a whole quotient slightly above its value; it must not gain a piece.
    pieces = np.maximum(1, np.ceil(length / longest - 1e-9).astype(int))
    which = np.repeat(np.arange(len(pieces)), pieces)
    nth = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    share = np.stack([nth, nth + 1]) / pieces[which]
    ends = start[which] + share[..., None] * step[which]
    return np.concatenate([ends[0], ends[1]], axis=1)


def arc_lengths(points: np.ndarray) -> np.ndarray:
    """Returns the arc lengths `[K]` from the first point to each."""
    return np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])


def drop_repeated_points(points: np.ndarray, apart: float = 1e-9) -> np.ndarray:
    """Returns the points without those within `apart` metres of the previous one."""
    return points[np.concatenate([[True], np.hypot(*np.diff(points, axis=0).T) > apart])]


def point_headings(points: np.ndarray) -> np.ndarray:
    """Returns the unwrapped heading `[K]` at each point, the mean of the two adjoining segments' headings."""
    step = np.diff(points, axis=0)
    along = np.unwrap(np.arctan2(step[:, 1], step[:, 0]))
    return np.concatenate([along[:1], (along[1:] + along[:-1]) / 2, along[-1:]])


def interpolate_polyline(at: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Returns the points `[..., 2]` at given arc lengths; beyond the ends, the end points."""
    along = arc_lengths(points)
    return np.stack([np.interp(at, along, points[:, 0]), np.interp(at, along, points[:, 1])], axis=-1)


def resample_polyline(points: np.ndarray, spacing: float) -> np.ndarray:
    """Resamples a polyline at equal distances of at most `spacing`, end points included."""
    length = arc_lengths(points)[-1]
    return interpolate_polyline(np.linspace(0.0, length, int(np.ceil(length / spacing - 1e-9)) + 1), points)


def offset_polyline(points: np.ndarray, left: float) -> np.ndarray:
    """Returns the polyline shifted to its left by `left` metres along each point's normal."""
    heading = point_headings(points)
    return points + left * np.stack([-np.sin(heading), np.cos(heading)], axis=1)


def segment_distance(points: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Returns the distances of points `[..., 2]` to segments `[..., 4]`; the two broadcast."""
    # By components, because sums over axes of two are slow.
    step_x, step_y = segments[..., 2] - segments[..., 0], segments[..., 3] - segments[..., 1]
    to_x, to_y = points[..., 0] - segments[..., 0], points[..., 1] - segments[..., 1]
    squared = step_x**2 + step_y**2
    share = (to_x * step_x + to_y * step_y) / np.where(squared > 0, squared, 1.0)
    share = np.clip(share, 0.0, 1.0)
    return np.hypot(to_x - share * step_x, to_y - share * step_y)


def signed_segment_distance(points: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Returns the distances to segments, positive on their left; broadcasts like `segment_distance`."""
    step, to = segments[..., 2:] - segments[..., :2], points - segments[..., :2]
    side = step[..., 0] * to[..., 1] - step[..., 1] * to[..., 0]
    return np.where(side < 0, -1.0, 1.0) * segment_distance(points, segments)
