"""Per-cell tables of the road segments that PufferDrive shows, built on the host.

The order is that of `init_neighbor_offsets` in the original's `drive.h` (github.com/PufferAI/PufferLib):
segments are filed in cells by their midpoints, and the cells around a body are visited in a spiral.
Reference: docs/reference/drive.md 4.4.
"""

import numpy as np

from jaxmarl_echelon.envs.drive.codes import CELL
from jaxmarl_echelon.envs.drive.observing import features
from jaxmarl_echelon.envs.drive.observing.layout import PUFFER_ROADS
from physics.segments import RoadSegments

REACH = 10  # cells to each side


def spiral_order() -> np.ndarray:
    """Ranks `[rows, columns]` of the cells of a square of `2 * REACH + 1` a side, its middle first.

    Each ring begins next to the end of the previous ring, one cell along +x, and continues counter-clockwise:
    up its right side first, and it ends in its lower right corner.
    """
    order = [(0, 0)]
    for ring in range(1, REACH + 1):
        side = range(-ring + 1, ring + 1)
        order += [(y, ring) for y in side]
        order += [(ring, -x) for x in side]
        order += [(-y, -ring) for y in side]
        order += [(-ring, x) for x in side]
    rank = np.zeros((2 * REACH + 1,) * 2, np.int16)
    for place, (row, column) in enumerate(order):
        rank[row + REACH, column + REACH] = place
    return rank


def spiral_rows(segment: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Features of segments before they are turned into a learner's frame, float32 `[S, W + 1, 7]`.

    See `features.puffer_table`. The last row stands for empty places. Segments of length 0 have
    no direction: cosine and sine are 0, as in the original.

    Args:
      segment: `[S, W, 4]`.
      kind: `[S, W]`.
    """
    along = segment[..., 2:] - segment[..., :2]
    length = np.hypot(along[..., 0], along[..., 1])[..., None]
    unit = along / np.where(length > 0, length, 1.0)
    middle = (segment[..., :2] + segment[..., 2:]) / 2
    parts = RoadSegments(middle[..., 0], middle[..., 1], length[..., 0] / 2, unit[..., 0], unit[..., 1])
    rows = features.puffer_segment_table(np, parts, kind).astype(np.float32)
    return features.append_empty_row(np, rows)


def spiral_tables(
    segment: np.ndarray, kind: np.ndarray, origin: np.ndarray, cells: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """The first segments of the spiral around every cell, int16 `[S, *shape, 202]`; -1 for empty places.

    The first and the last place are always empty, as `features.turn_puffer_rows` requires.

    Every segment is filed in the cell of its midpoint. Segments on the grid's upper border belong to no cell
    and are never shown.

    Args:
      segment: `[S, W, 4]` uncut segments.
      kind: `[S, W]`, -1 for padding.
      origin: `[S, 2]`.
      cells: `[S, 2]` columns and rows.
      shape: rows and columns of the table.
    """
    result = np.full((len(segment), *shape, PUFFER_ROADS + 2), -1, np.int16)
    for scene in range(len(segment)):
        columns, rows = cells[scene].tolist()
        result[scene, :rows, :columns, 1:-1] = _of_scene(
            segment[scene], kind[scene], origin[scene], rows, columns
        )
    return result


def _of_scene(segment, kind, origin, rows: int, columns: int) -> np.ndarray:
    middle = (segment[:, :2] + segment[:, 2:]) / 2
    place = np.floor((middle - origin) / CELL).astype(int)
    shown = np.flatnonzero((kind >= 0) & (place < (columns, rows)).all(1))
    place = place[shown]
    rank = spiral_order()
    down = place[:, 1] - np.arange(rows)[:, None]
    across = place[:, 0] - np.arange(columns)[:, None]
    near_row, near_column = np.abs(down) <= REACH, np.abs(across) <= REACH
    result = np.full((rows, columns, PUFFER_ROADS), -1, np.int16)
    for row in range(rows):
        for column in range(columns):
            there = np.flatnonzero(near_row[row] & near_column[column])
            order = rank[down[row, there] + REACH, across[column, there] + REACH]
            first = there[np.argsort(order, kind="stable")][:PUFFER_ROADS]
            result[row, column, : len(first)] = shown[first]
    return result
