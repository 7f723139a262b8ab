"""Curves of roads: points `[P, 2]` in m, at most `SPACING` apart in bends."""

import numpy as np

from physics.angles import wrap_angle_by_remainder

SPACING = 2.0
_TURN = 0.08  # rad, largest turn between neighbouring points, so that joints are smooth


def unit_vector(heading: float) -> np.ndarray:
    """Unit vector `[2]` of a heading."""
    return np.array([np.cos(heading), np.sin(heading)])


def make_line(start: np.ndarray, heading: float, length: float) -> np.ndarray:
    """A straight line of two points."""
    return np.stack([start, start + length * unit_vector(heading)])


def make_arc(start: np.ndarray, heading: float, radius: float, turn: float) -> np.ndarray:
    """An arc that starts along `heading` and turns by `turn`, to the left if positive."""
    count = max(3, int(np.ceil(abs(turn) / min(_TURN, SPACING / radius))) + 1)
    angles = np.linspace(0.0, abs(turn), count)
    side = np.sign(turn)
    local = radius * np.stack([np.sin(angles), side * (1 - np.cos(angles))], axis=1)
    return start + local @ np.stack([unit_vector(heading), unit_vector(heading + np.pi / 2)])


def join_curves(*parts: np.ndarray) -> np.ndarray:
    """Concatenates curves; points at which they meet occur once."""
    points = np.concatenate(parts)
    kept = np.concatenate([[True], np.hypot(*np.diff(points, axis=0).T) > 1e-6])
    return points[kept]


def connect_poses(start: np.ndarray, heading: float, end: np.ndarray, heading_end: float) -> np.ndarray:
    """Connects two poses by line, arc and line if these fit, else by a cubic curve."""
    turn = wrap_angle_by_remainder(heading_end - heading)
    across = _cross(unit_vector(heading), unit_vector(heading_end))
    if abs(turn) > 0.2:
        before = _cross(end - start, unit_vector(heading_end)) / across
        after = _cross(unit_vector(heading), end - start) / across
        tangent = min(before, after)
        radius = tangent / np.tan(abs(turn) / 2)
        if tangent > 1.0 and radius > 2.0:
            first = start + (before - tangent) * unit_vector(heading)
            bend = make_arc(first, heading, radius, turn)
            return join_curves(start[None], bend, end[None])
    return make_bezier(start, heading, end, heading_end)


def make_bezier(
    start: np.ndarray, heading: float, end: np.ndarray, heading_end: float, pull: float = 0.4
) -> np.ndarray:
    """A Bezier curve between poses; the length of its handles is `pull` times their distance."""
    far = np.hypot(*(end - start))
    handles = np.stack(
        [start, start + pull * far * unit_vector(heading), end - pull * far * unit_vector(heading_end), end]
    )
    share = np.linspace(0.0, 1.0, max(12, int(np.ceil(2.0 * far)) + 1))[:, None]
    rest = 1.0 - share
    basis = np.concatenate([rest**3, 3 * rest**2 * share, 3 * rest * share**2, share**3], axis=1)
    return basis @ handles


def _cross(a: np.ndarray, b: np.ndarray) -> float:
    return a[0] * b[1] - a[1] * b[0]
