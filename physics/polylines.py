"""Polylines in the plane, on the host: thinning, cutting, resampling, headings, signed distances.

Points are `[K, 2]` float64, in metres.
"""

import numpy as np

THIN_FROM = 10  # shorter polylines are kept as they are
THIN_AREA = 0.1


def thin(points: np.ndarray, area: float = THIN_AREA) -> np.ndarray:
    """Indices of the points to keep, ascending; the end points are among them.

    Sweeps over triples of kept points: if a triangle's area is below `area` (m^2), its middle point goes and
    the next triple starts at the third, else at the second. Sweeps repeat until one drops nothing.
    Polylines of at most `THIN_FROM` points keep all (spec/drive.md 2.1).
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


def cut(points: np.ndarray, longest: float) -> np.ndarray:
    """Segments `[M, 4]` (x0, y0, x1, y1) of a polyline, longer ones than `longest` in equal pieces.

    Segments of zero length are left out.
    """
    start, step = points[:-1], np.diff(points, axis=0)
    length = np.hypot(*step.T)
    start, step, length = start[length > 0], step[length > 0], length[length > 0]
    # A quotient that should be whole may come out a little larger and must not gain a piece.
    pieces = np.maximum(1, np.ceil(length / longest - 1e-9).astype(int))
    which = np.repeat(np.arange(len(pieces)), pieces)
    nth = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    share = np.stack([nth, nth + 1]) / pieces[which]
    ends = start[which] + share[..., None] * step[which]
    return np.concatenate([ends[0], ends[1]], axis=1)


def arcs(points: np.ndarray) -> np.ndarray:
    """Arc length `[K]` from the first point to each."""
    return np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])


def distinct(points: np.ndarray, apart: float = 1e-9) -> np.ndarray:
    """The points without those that repeat the one before."""
    return points[np.concatenate([[True], np.hypot(*np.diff(points, axis=0).T) > apart])]


def headings(points: np.ndarray) -> np.ndarray:
    """Unwrapped heading `[K]` at each point: the mean of the two neighbouring segments'."""
    step = np.diff(points, axis=0)
    along = np.unwrap(np.arctan2(step[:, 1], step[:, 0]))
    return np.concatenate([along[:1], (along[1:] + along[:-1]) / 2, along[-1:]])


def interpolate(at: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Points `[..., 2]` at given arcs; beyond the ends the end points."""
    along = arcs(points)
    return np.stack([np.interp(at, along, points[:, 0]), np.interp(at, along, points[:, 1])], axis=-1)


def resample(points: np.ndarray, spacing: float) -> np.ndarray:
    """The polyline at equal distances of at most `spacing`, end points included."""
    length = arcs(points)[-1]
    return interpolate(np.linspace(0.0, length, int(np.ceil(length / spacing - 1e-9)) + 1), points)


def offset(points: np.ndarray, left: float) -> np.ndarray:
    """The polyline moved to its left by `left` metres along each point's normal."""
    heading = headings(points)
    return points + left * np.stack([-np.sin(heading), np.cos(heading)], axis=1)


def distance(points: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Distances of points `[..., 2]` to segments `[..., 4]`, which broadcast against each other."""
    # By components: sums over axes of two are slow.
    step_x, step_y = segments[..., 2] - segments[..., 0], segments[..., 3] - segments[..., 1]
    to_x, to_y = points[..., 0] - segments[..., 0], points[..., 1] - segments[..., 1]
    squared = step_x**2 + step_y**2
    share = (to_x * step_x + to_y * step_y) / np.where(squared > 0, squared, 1.0)
    share = np.clip(share, 0.0, 1.0)
    return np.hypot(to_x - share * step_x, to_y - share * step_y)


def signed_distance(points: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Distances to segments, positive on their left; which broadcast as in `distance`."""
    step, to = segments[..., 2:] - segments[..., :2], points - segments[..., :2]
    side = step[..., 0] * to[..., 1] - step[..., 1] * to[..., 0]
    return np.where(side < 0, -1.0, 1.0) * distance(points, segments)
