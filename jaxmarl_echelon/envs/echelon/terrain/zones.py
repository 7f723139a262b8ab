"""Capture zone and start squares of a map. Reference: docs/reference/echelon.md 11.3."""

from math import ceil, sqrt

import numpy as np

from physics.voxels import AIR, COLLIDES

SPACING, FIRST, COLUMNS = 3.5, 2.0, 5
JITTER = 0.25
MEAN_RADIUS, EDGE = 7.5, 2.0
TRIES, TRIES_OUTSIDE = 256, 200
LEAST_SIDE = ceil(2 * (0.5 * MEAN_RADIUS + EDGE))


def formation_shape(team_size: int) -> tuple[int, int]:
    """Returns columns and rows of a team in rows of five."""
    return min(COLUMNS, team_size), -(-team_size // COLUMNS)


def formation_extent(team_size: int) -> tuple[float, float]:
    """Returns the largest extent of a team's formation from its corner along x and y, voxels."""
    along_x, along_y = (FIRST + SPACING * n + JITTER for n in formation_shape(team_size))
    return along_x, along_y


def spawn_side(size: tuple[int, int, int], team_size: int) -> int:
    """Returns the edge of the square that is cleared in a team's corner, voxels."""
    extent = max(ceil(FIRST + SPACING * (n - 1) + SPACING + 1) for n in formation_shape(team_size))
    shorter = min(size[:2])
    return min(shorter, max(25, shorter // 4, extent))


def spawn_square(corner: int, size: tuple[int, int, int], side: int) -> tuple[int, int]:
    """Returns the low corner (x, y) of a team's square."""
    return (size[0] - side) * (corner % 2), (size[1] - side) * (corner // 2)


def spawn_anchor(corner: int, size: tuple[int, int, int], side: int) -> tuple[float, float]:
    """Returns the middle (x, y) of a team's square."""
    x, y = spawn_square(corner, size, side)
    half = max(1, side // 2)
    return (x + side - half if corner % 2 else x + half), (y + side - half if corner // 2 else y + half)


def _distance_to_square(centre: np.ndarray, square: tuple[int, int], side: int) -> float:
    low = np.array(square)
    return float(np.hypot(*(centre - np.clip(centre, low, low + side))))


def draw_zone(
    rng: np.random.Generator, voxels: np.ndarray, squares: list[tuple[int, int]], side: int
) -> tuple[float, float, float]:
    """Draws the zone: centre x, y and radius.

    First a quadrant is drawn, then up to 256 centres in it, away from the edges, until one has no walls
    next to it. The first 200 tries also require the zone to lie outside both teams' squares; small maps
    may have no room for that, and a team may start close to the zone or inside it.
    """
    _, depth, width = voxels.shape
    spans = np.array([width, depth])
    radius = min(MEAN_RADIUS * rng.uniform(0.5, 1.5), min(spans) / 2 - EDGE)
    low, high = np.full(2, radius + EDGE), spans - radius - EDGE
    upper = rng.integers(2, size=2).astype(bool)
    first = np.where(upper, np.maximum(low, spans / 2), low)
    last = np.where(upper, high, np.minimum(high, spans / 2))
    first, last = np.where(first > last, (low, high), (first, last))
    blocked = COLLIDES[voxels[0]]
    for attempt in range(TRIES):
        centre = rng.uniform(first, last)
        x, y = np.rint(centre).astype(int)
        if blocked[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2].any():
            continue
        gap = min(_distance_to_square(centre, square, side) for square in squares)
        if gap > radius or attempt >= TRIES_OUTSIDE:
            break
    return float(centre[0]), float(centre[1]), float(radius)


def clear_zone(voxels: np.ndarray, zone: tuple[float, float, float]) -> int:
    """Removes voxels that block movement in a zone, in place; returns the number of removed voxels.

    The zone includes all columns whose centre lies within its radius plus half a cell's diagonal.
    """
    x, y, radius = zone
    ys, xs = np.ogrid[: voxels.shape[1], : voxels.shape[2]]
    inside = np.hypot(xs + 0.5 - x, ys + 0.5 - y) <= radius + sqrt(2) / 2
    removed = COLLIDES[voxels] & inside
    voxels[removed] = AIR
    return int(removed.sum())
