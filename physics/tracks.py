"""Generated race tracks; also re-exports the functions on centrelines.

See docs/reference/f110.md 3.5.
"""

from dataclasses import replace

import numpy as np
from scipy import ndimage
from scipy.interpolate import CubicSpline
from scipy.spatial import cKDTree

from physics.centerline import Centerline, centerline_from_points, read_centerline, resample_centerline
from physics.frenet import arc_difference, cartesian, frenet, frenet_near
from physics.gridmap import OccupancyMap
from physics.medial_loop import derive_centerline

__all__ = [
    "Centerline",
    "arc_difference",
    "cartesian",
    "derive_centerline",
    "frenet",
    "frenet_near",
    "generate_track",
    "read_centerline",
]

_SPACING = 0.1
_ATTEMPTS = 60
# At full lock an F1TENTH car's rear axle has a radius of 0.74 m (0.3302 / tan 0.4189); add half its width.
_TURNING_RADIUS = 0.9
_ISLAND = 0.3


def generate_track(
    seed: int,
    *,
    length: float = 60.0,
    width: float = 2.0,
    width_variation: float = 0.3,
    roughness: float = 0.6,
    corners: int = 10,
    min_radius: float = 1.2,
    resolution: float = 0.05,
) -> OccupancyMap:
    """Generates a closed race track; equal arguments give the same track.

    A periodic cubic spline through randomly displaced points on a circle is scaled to its length
    and smoothed wherever it bends more tightly than allowed. Shapes whose corridor would come near
    itself are rejected; every new attempt is a little rounder. Cells closer to the centreline than
    its half width are free, all others are walls.

    Args:
      seed: non-negative integer.
      length: length of the centreline in metres.
      width: smallest width of the corridor in metres.
      width_variation: the largest width is `width * (1 + width_variation)`.
      roughness: deviation of the shape from a circle, in [0, 1).
      corners: number of displaced points, at least 3.
      min_radius: smallest radius of the centreline in metres; raised where the corridor's half width
        and a thin island inside hairpins need more.
      resolution: edge of a cell in metres.

    Returns:
      A map with a counter-clockwise centreline, its origin parallel to the axes.

    Raises:
      ValueError: an argument outside its range, or a track too short for its width.
    """
    _check_arguments(seed, length, width, width_variation, roughness, corners, min_radius, resolution)
    widest = width / 2 * (1 + width_variation)
    radius = max(min_radius, widest + _ISLAND / 2)
    shortest = 1.2 * 2 * np.pi * radius
    if length < shortest:
        raise ValueError(f"length={length}: must be >= {shortest:.1f} m, for bends of {radius:.2f} m")
    for attempt in range(_ATTEMPTS):
        rng = np.random.default_rng([seed, attempt])
        points = _random_loop(rng, length, corners, roughness * 0.93**attempt, radius)
        if points is None:
            continue
        half_width = width / 2 * (1 + width_variation * _wave(rng, len(points)))
        if _comes_near_itself(points, half_width, length, radius):
            continue
        line = centerline_from_points(points, closed=True, left=half_width, right=half_width)
        line = replace(line, source="generated")
        grid = _carve(f"track:{seed}", line, resolution)
        if _is_ring(grid.occupied):
            return grid
    raise ValueError(f"seed={seed}: no drivable track of {length} m; a longer or narrower one is needed")


def _check_arguments(
    seed: int,
    length: float,
    width: float,
    width_variation: float,
    roughness: float,
    corners: int,
    min_radius: float,
    resolution: float,
) -> None:
    rules = [
        ("seed", seed, isinstance(seed, int | np.integer) and seed >= 0, "must be a non-negative integer"),
        ("resolution", resolution, 0 < resolution <= 0.25, "must lie in (0, 0.25] m"),
        ("length", length, 0 < length <= 1000, "must lie in (0, 1000] m"),
        ("width", width, max(0.6, 6 * resolution) <= width < np.inf, "must be >= 0.6 m and >= 6 cells"),
        ("width_variation", width_variation, 0 <= width_variation <= 2, "must lie in [0, 2]"),
        ("roughness", roughness, 0 <= roughness < 1, "must lie in [0, 1)"),
        ("corners", corners, 3 <= corners <= 200, "must lie in [3, 200]"),
        ("min_radius", min_radius, _TURNING_RADIUS <= min_radius < np.inf, f"must be >= {_TURNING_RADIUS} m"),
    ]
    for name, value, fine, allowed in rules:
        if not fine:
            raise ValueError(f"{name}={value}: {allowed}")


def _random_loop(
    rng: np.random.Generator, length: float, corners: int, roughness: float, radius: float
) -> np.ndarray | None:
    """Returns equally spaced points `[N, 2]` on a loop without bends tighter than `radius`, or None."""
    jitter = 0.4 * min(1.0, 2 * roughness) * rng.uniform(-1, 1, corners)
    angle = 2 * np.pi * (np.arange(corners) + jitter) / corners
    reach = 1 + roughness * rng.uniform(-1, 1, corners)
    knots = np.stack([reach * np.cos(angle), reach * np.sin(angle)], axis=-1)
    knots = np.concatenate([knots, knots[:1]])
    chords = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(knots, axis=0), axis=1))])
    spline = CubicSpline(chords, knots, bc_type="periodic")
    count = max(256, int(np.ceil(length / _SPACING)))
    raw = spline(np.linspace(0, chords[-1], 4 * count, endpoint=False))
    points = resample_centerline(centerline_from_points(raw, closed=True), count).points
    # Half the radius: enough to widen a bend within a few rounds, too little to flatten its neighbours.
    blur = 0.5 * radius * count / length
    for _ in range(200):
        points = points * (length / np.sum(np.linalg.norm(np.roll(points, -1, axis=0) - points, axis=1)))
        tight = _curvature(points) * radius * 1.05 > 1.0
        if not tight.any():
            return resample_centerline(centerline_from_points(points, closed=True), count).points
        weight = np.minimum(1.0, 4.0 * ndimage.gaussian_filter1d(tight.astype(float), 2 * blur, mode="wrap"))
        smooth = ndimage.gaussian_filter1d(points, blur, axis=0, mode="wrap")
        points = points + weight[:, None] * (smooth - points)
    return None


def _curvature(points: np.ndarray) -> np.ndarray:
    """Returns the absolute curvature `[N]` of a closed, finely sampled curve in 1/m."""
    after, before = np.roll(points, -1, axis=0), np.roll(points, 1, axis=0)
    velocity, bend = (after - before) / 2, after - 2 * points + before
    cross = velocity[:, 0] * bend[:, 1] - velocity[:, 1] * bend[:, 0]
    return np.abs(cross) / np.maximum(np.linalg.norm(velocity, axis=1), 1e-9) ** 3


def _wave(rng: np.random.Generator, count: int) -> np.ndarray:
    """Returns a smooth periodic signal `[count]` in [0, 1]."""
    turn = np.linspace(0, 2 * np.pi, count, endpoint=False)
    harmonics = np.arange(1, 5)
    amplitude, phase = rng.uniform(0.2, 1, 4), rng.uniform(0, 2 * np.pi, 4)
    signal = np.sum(amplitude * np.sin(harmonics * turn[:, None] + phase), axis=-1)
    return (signal - signal.min()) / (signal.max() - signal.min())


def _comes_near_itself(points: np.ndarray, half_width: np.ndarray, length: float, radius: float) -> bool:
    """Tells whether two stretches of the corridor leave no wall between them.

    Points less than half a turn apart are not compared: a curve bent no tighter than `radius` keeps
    at least the chord of that circle.
    """
    stride = 1 + len(points) // 1500
    arc = (np.arange(len(points)) * length / len(points))[::stride]
    points, half_width = points[::stride], half_width[::stride]
    along = np.abs(arc[:, None] - arc)
    far = np.minimum(along, length - along) >= np.pi * radius
    gap = np.linalg.norm(points[:, None] - points, axis=-1) - half_width[:, None] - half_width
    return bool((far & (gap < _ISLAND)).any())


def _carve(name: str, line: Centerline, resolution: float) -> OccupancyMap:
    margin = line.left.max() + 4 * resolution
    low = np.floor((line.points.min(axis=0) - margin) / resolution)
    cols, rows = (np.ceil((line.points.max(axis=0) + margin) / resolution) - low).astype(int)
    solid = np.ones((rows, cols), bool)
    grid = OccupancyMap(name, solid, resolution, (low[0] * resolution, low[1] * resolution, 0.0), line)
    dense = resample_centerline(line, max(len(line.x), int(np.ceil(2 * line.length / resolution))))
    # Only cells within reach of the line can be free; a filter finds them faster than a tree.
    row, column, _ = grid.cells(dense.points)
    near = np.zeros(solid.shape, bool)
    near[row, column] = True
    reach = int(np.ceil(line.left.max() / resolution)) + 1
    near = ndimage.maximum_filter(near, 2 * reach + 1)
    distance, nearest = cKDTree(dense.points).query(grid.world(*np.nonzero(near)))
    solid[near] = distance >= dense.left[nearest]
    return OccupancyMap(name, solid, resolution, grid.origin, line)


def _is_ring(occupied: np.ndarray) -> bool:
    """Tells whether the free cells form one region with one wall inside and one outside of it."""
    return ndimage.label(~occupied)[1] == 1 and ndimage.label(occupied, structure=np.ones((3, 3)))[1] == 2
