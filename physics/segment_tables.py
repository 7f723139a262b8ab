"""Look-up tables of segments over a grid of squares, built on the host: those in reach, the nearest ones."""

from typing import NamedTuple

import numpy as np

from physics.polylines import segment_distance

_FEW = 1 << 20  # distances computed at a time
_CORNERS = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])  # of a square of side 2


class Grid(NamedTuple):
    """Squares over a part of the plane.

    Attributes:
      origin: x, y of the corner of square [0, 0].
      columns, rows: numbers of squares along x and y.
      cell: side of a square, m.
    """

    origin: np.ndarray
    columns: int
    rows: int
    cell: float

    def centres(self) -> np.ndarray:
        """Returns the centres of the squares, `[rows, columns, 2]`."""
        x = self.origin[0] + (np.arange(self.columns) + 0.5) * self.cell
        y = self.origin[1] + (np.arange(self.rows) + 0.5) * self.cell
        return np.stack(np.meshgrid(x, y), axis=-1)


def grid_over(segments: np.ndarray, cell: float) -> Grid:
    """Returns the grid of side `cell` over the bounding box of segments `[M, 4]`; one square without any."""
    if not len(segments):
        return Grid(np.zeros(2), 1, 1, cell)
    ends = segments.reshape(-1, 2)
    low = ends.min(0)
    columns, rows = np.maximum(1, np.ceil((ends.max(0) - low) / cell).astype(int)).tolist()
    return Grid(low, columns, rows, cell)


def list_segments_in_reach(grid: Grid, segments: np.ndarray, reach: float) -> np.ndarray:
    """Lists the segments within `reach` of each square: ascending ids `[rows, columns, E]` int16, then -1.

    E is the longest list, at least 1. For a point outside the grid the square nearest to it lists all
    segments within `reach` of the point, as long as the grid covers all segments.
    """
    row, column, which = _close(grid, segments, reach)
    return _fill_table(grid, row * grid.columns + column, which)


def list_nearest_candidates(grid: Grid, segments: np.ndarray, reach: float) -> np.ndarray:
    """Lists the segments that may be nearest to a point within `reach` of each square.

    Ids are ascending, `[rows, columns, E]` int16, then -1; E is the longest list, at least 1. A segment is
    left out if even from the square's farthest corner another one is nearer than it is to the square, by
    twice the reach.
    """
    centres, cells, ids = grid.centres().reshape(-1, 2), [np.zeros(0, int)], [np.zeros(0, int)]
    at_once = max(1, _FEW // max(1, len(segments)))
    for start in range(0, len(centres) if len(segments) else 0, at_once):
        some = centres[start : start + at_once]
        apart = segment_distance(some[:, None], segments)
        bound = apart.min(1, keepdims=True) + np.sqrt(2) * grid.cell + 2 * reach
        cell, which = np.nonzero(apart <= bound)
        farthest = segment_distance(some[cell, None] + _CORNERS * grid.cell / 2, segments[which, None]).max(1)
        limit = np.full(len(some), np.inf)
        np.minimum.at(limit, cell, farthest)
        near = _square_distance(some[cell], grid.cell / 2, segments[which]) <= limit[cell] + 2 * reach
        cells.append(cell[near] + start)
        ids.append(which[near])
    return _fill_table(grid, np.concatenate(cells), np.concatenate(ids))


def _fill_table(grid: Grid, cell: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Returns ascending ids `[rows, columns, E]` int16, then -1, of pairs `[P]` of a square and a segment."""
    order = np.lexsort((which, cell))
    cell, which = cell[order], which[order]
    counts = np.bincount(cell, minlength=grid.rows * grid.columns)
    longest = max(1, int(counts.max(initial=0)))
    table = np.full((grid.rows * grid.columns, longest), -1, np.int16)
    table[cell, np.arange(len(cell)) - (np.cumsum(counts) - counts)[cell]] = which
    return table.reshape(grid.rows, grid.columns, longest)


def _close(grid: Grid, segments: np.ndarray, reach: float) -> tuple[np.ndarray, ...]:
    """Returns rows, columns and segments `[P]` of all pairs of a square and a segment within its `reach`."""
    if not len(segments):
        return tuple(np.zeros((3, 0), int))
    ends = segments.reshape(-1, 2, 2)
    size = np.array([grid.columns, grid.rows])
    low = np.clip(((ends.min(1) - reach - grid.origin) // grid.cell).astype(int), 0, size - 1)
    high = np.clip(((ends.max(1) + reach - grid.origin) // grid.cell).astype(int), 0, size - 1)
    spans = high - low + 1
    counts = spans.prod(1)
    which = np.repeat(np.arange(len(segments)), counts)
    nth = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    column = low[which, 0] + nth % spans[which, 0]
    row = low[which, 1] + nth // spans[which, 0]
    centre = grid.origin + (np.stack([column, row], axis=1) + 0.5) * grid.cell
    within = _square_distance(centre, grid.cell / 2, segments[which]) <= reach
    return row[within], column[within], which[within]


def _square_distance(centre: np.ndarray, half: float, segments: np.ndarray) -> np.ndarray:
    """Returns the distances `[P]` of squares to segments, pair by pair."""
    corners = segment_distance(centre[:, None] + _CORNERS * half, segments[:, None]).min(1)
    ends = segments.reshape(-1, 2, 2) - centre[:, None]
    outside = np.maximum(np.abs(ends) - half, 0.0)
    apart = np.minimum(corners, np.sqrt((outside**2).sum(-1)).min(1))
    return np.where(_crosses(ends, half), 0.0, apart)


def _crosses(ends: np.ndarray, half: float) -> np.ndarray:
    """Tells whether segments `[P, 2, 2]` meet the square |x|, |y| <= half, by the separating axis theorem."""
    boxes = (ends.min(1) <= half).all(1) & (ends.max(1) >= -half).all(1)
    step = ends[:, 1] - ends[:, 0]
    normal = np.stack([-step[:, 1], step[:, 0]], axis=1)
    return boxes & (np.abs((normal * ends[:, 0]).sum(1)) <= half * np.abs(normal).sum(1))


def list_nearest_segments(grid: Grid, segments: np.ndarray, count: int, reach: float) -> np.ndarray:
    """Lists the segments nearest to each square's centre: ids `[rows, columns, count]` int16, then -1.

    The nearest comes first, of equal ones the lower id; segments beyond `reach` are left out.
    """
    centres = grid.centres().reshape(-1, 2)
    table = np.full((len(centres), count), -1, np.int16)
    at_once = max(1, _FEW // max(1, len(segments)))
    for start in range(0, len(centres) if len(segments) else 0, at_once):
        some = slice(start, start + at_once)
        apart = segment_distance(centres[some, None], segments)
        order = np.argsort(apart, axis=1, kind="stable")[:, :count]
        close = np.take_along_axis(apart, order, axis=1) <= reach
        table[some, : order.shape[1]] = np.where(close, order, -1)
    return table.reshape(grid.rows, grid.columns, count)
