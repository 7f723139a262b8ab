"""Derivation of centrelines: the medial loop of a ring-shaped corridor; see docs/reference/f110.md 4.3."""

from dataclasses import replace

import numpy as np
from scipy import ndimage, sparse
from scipy.sparse import csgraph

from physics.centerline import Centerline, centerline_from_points, resample_centerline
from physics.gridmap import OccupancyMap, fill_widths

_EIGHT = np.ones((3, 3), bool)
# Two cells that touch only across the gap between diagonal wall cells have clearance 1.
_MIN_CLEARANCE = 1.5
_SPECK = 0.5


def derive_centerline(
    grid: OccupancyMap, *, min_island: float = 1.0, max_cells: int = 300_000, spacing: float = 0.2
) -> Centerline | None:
    """Finds a counter-clockwise loop through the middle of a corridor that surrounds an obstacle.

    The free region that encloses the largest obstacle is cut open at the narrowest place between
    that obstacle and the outer wall. The cheapest path from one side of the cut to the other,
    where a cell costs the inverse square of its distance from the walls, is closed and smoothed
    as far as it keeps clear of the walls. Unseen cells count as walls. Regions inside an outer wall
    are preferred to the surroundings of the track. Walls do not define a driving direction: the loop
    always runs counter-clockwise in the world's x and y.

    Args:
      grid: the map.
      min_island: smallest diagonal in metres of an obstacle that makes a loop.
      max_cells: larger corridors are searched at a coarser resolution.
      spacing: distance between points in metres.

    Returns:
      A closed centreline with measured widths, or None if no suitable obstacle is enclosed.
    """
    grid = wall_off_unseen(grid)
    ring = _ring(np.pad(grid.occupied, 1, constant_values=True), min_island / grid.resolution)
    if ring is None:
        return None
    free, island = ring
    factor = max(1, int(np.ceil(np.sqrt(free.sum() / max_cells))))
    path = _loop(~_pool(~free, factor), _pool(island, factor))
    if path is None:
        return None
    # The ring of padding shifts the cells by one.
    row, col = ((path + 0.5) * factor - 0.5 - 1).T
    return fill_widths(grid, _smooth(grid, grid.world(row, col), spacing))


def wall_off_unseen(grid: OccupancyMap) -> OccupancyMap:
    """Returns the map with unseen cells as walls, except specks and seams of up to `_SPECK` metres.

    Such seams are the intermediate greys along each wall of an image that was rescaled.
    """
    if grid.seen is None or grid.seen.all():
        return grid
    depth = ndimage.distance_transform_edt(np.pad(~grid.seen, 1, mode="edge"))[1:-1, 1:-1]
    labels, count = ndimage.label(~grid.seen, structure=_EIGHT)
    deepest = ndimage.maximum(depth, labels, np.arange(count + 1))
    large = (deepest * grid.resolution > _SPECK / 2) & (np.arange(count + 1) > 0)
    return replace(grid, occupied=grid.occupied | large[labels])


def _ring(occupied: np.ndarray, min_diagonal: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the free region around the largest enclosed obstacle, and that obstacle."""
    labels, _ = ndimage.label(~occupied)
    best, best_rank = None, (False, 0.0)
    for label, box in enumerate(ndimage.find_objects(labels), 1):
        region = labels[box] == label
        if np.hypot(*region.shape) < min_diagonal:
            continue
        # Only the padding lies outside: a region in its first row or column is not walled in.
        inner = all(edge.start > 1 and edge.stop < n - 1 for edge, n in zip(box, occupied.shape, strict=True))
        holes, _ = ndimage.label(ndimage.binary_fill_holes(region) & ~region, structure=_EIGHT)
        for number, extent in enumerate(ndimage.find_objects(holes), 1):
            hole = holes == number
            rank = (inner, float(hole.sum()))
            if np.hypot(*hole[extent].shape) >= min_diagonal and rank > best_rank:
                best, best_rank = (label, box, hole), rank
    if best is None:
        return None
    label, box, hole = best
    island = np.zeros_like(occupied)
    island[box] = hole
    return labels == label, island


def _pool(mask: np.ndarray, factor: int) -> np.ndarray:
    height, width = mask.shape
    blocks = np.pad(mask, ((0, -height % factor), (0, -width % factor)), mode="edge")
    return blocks.reshape(-(-height // factor), factor, -(-width // factor), factor).any(axis=(1, 3))


def _loop(free: np.ndarray, island: np.ndarray) -> np.ndarray | None:
    """Returns the cells `[N, 2]` of the cheapest path once around the island, or None if it is blocked."""
    outside = ~ndimage.binary_fill_holes(free)
    if (outside & island).any():
        return None
    clearance = ndimage.distance_transform_edt(free)
    across, along = _cut(outside, island)
    passable = (clearance >= _MIN_CLEARANCE) & ~((np.abs(across) <= 1.0) & (along <= 1.0))
    beside = passable & (np.abs(across) <= 2.5) & (along <= 0.0)
    nodes = np.full(free.shape, -1)
    nodes[passable] = np.arange(passable.sum())
    sources, targets = nodes[beside & (across > 0)], nodes[beside & (across < 0)]
    if len(sources) == 0 or len(targets) == 0:
        return None
    cost, previous, _ = csgraph.dijkstra(
        _graph(nodes, clearance), directed=False, indices=sources, return_predecessors=True, min_only=True
    )
    node = int(targets[np.argmin(cost[targets])])
    if not np.isfinite(cost[node]):
        return None
    path = []
    while node >= 0:
        path.append(node)
        node = int(previous[node])
    return np.argwhere(passable)[path]


def _cut(outside: np.ndarray, island: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cells' signed distances from the line of the shortest cut, and those beyond its ends."""
    distance, nearest = ndimage.distance_transform_edt(~island, return_indices=True)
    end = np.array(np.unravel_index(np.argmin(np.where(outside, distance, np.inf)), island.shape))
    start = nearest[:, end[0], end[1]]
    length = np.hypot(*(end - start))
    unit = (end - start) / length
    offset = np.moveaxis(np.indices(island.shape), 0, -1) - start
    reach = offset @ unit
    return offset @ np.array([-unit[1], unit[0]]), np.maximum(-reach, reach - length)


def _graph(nodes: np.ndarray, clearance: np.ndarray) -> sparse.csr_matrix:
    """Builds the eight-connected graph of the numbered cells, weighted by length over squared clearance."""
    price = 1.0 / np.maximum(clearance, 1.0) ** 2
    rows, cols, weights = [], [], []
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        here = (slice(0, nodes.shape[0] - down), slice(max(0, -right), nodes.shape[1] - max(0, right)))
        there = (slice(down, None), slice(max(0, right), nodes.shape[1] - max(0, -right)))
        linked = (nodes[here] >= 0) & (nodes[there] >= 0)
        rows.append(nodes[here][linked])
        cols.append(nodes[there][linked])
        weights.append(np.hypot(down, right) * 0.5 * (price[here] + price[there])[linked])
    entries = (np.concatenate(weights), (np.concatenate(rows), np.concatenate(cols)))
    count = int(nodes.max()) + 1
    return sparse.csr_matrix(entries, shape=(count, count))


def _smooth(grid: OccupancyMap, points: np.ndarray, spacing: float) -> Centerline:
    line = centerline_from_points(points, closed=True)
    line = resample_centerline(line, max(8, int(np.ceil(line.length / spacing))))
    points = line.points if line.area > 0 else line.points[::-1]
    clearance = grid.distance(points)
    smoothed = points
    for sigma in (1.0, 0.5, 0.25):
        smoothed = ndimage.gaussian_filter1d(points, sigma / spacing, axis=0, mode="wrap")
        if (grid.distance(smoothed) >= 0.7 * clearance).all():
            break
    return replace(centerline_from_points(smoothed, closed=True), source="derived from the free space")
