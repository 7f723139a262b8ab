"""The road segments that PufferDrive shows, as a table per cell. On the host. Source: spec drive 1.1, 1.3."""

import numpy as np

from jaxmarl_echelon.envs.drive.codes import CELL, CROSSWALK
from jaxmarl_echelon.envs.drive.observing.layout import PUFFER_ROADS

REACH = 10  # cells to each side


def spiral_order() -> np.ndarray:
    """Ranks of the cells of a square of `2 * REACH + 1` cells a side: its middle first, then ring by ring.

    Each ring goes counter-clockwise from its lower left corner.
    """
    order = [(0, 0)]
    for ring in range(1, REACH + 1):
        side = np.arange(-ring, ring)
        order += [(-ring, x) for x in side]
        order += [(y, ring) for y in side]
        order += [(ring, -x) for x in side]
        order += [(-y, -ring) for y in side]
    rank = np.zeros((2 * REACH + 1,) * 2, np.int32)
    for place, (row, column) in enumerate(order):
        rank[row + REACH, column + REACH] = place
    return rank


def spiral_tables(
    segment: np.ndarray, kind: np.ndarray, origin: np.ndarray, cells: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """The first segments of the spiral around every cell, int16 `[S, *shape, 200]`; -1 for empty places.

    Every segment is filed in the cell of its midpoint.

    Args:
      segment: `[S, M, 4]`.
      kind: `[S, M]`, -1 for padding.
      origin: `[S, 2]`.
      cells: `[S, 2]` columns and rows.
      shape: rows and columns of the table.
    """
    result = np.full((len(segment), *shape, PUFFER_ROADS), -1, np.int16)
    for scene in range(len(segment)):
        columns, rows = cells[scene]
        found = _of_scene(segment[scene], kind[scene], origin[scene], int(rows), int(columns))
        result[scene, :rows, :columns, : found.shape[-1]] = found
    return result


def _of_scene(segment, kind, origin, rows: int, columns: int) -> np.ndarray:
    shown = np.flatnonzero((kind >= 0) & (kind != CROSSWALK))
    middle = (segment[shown, :2] + segment[shown, 2:]) / 2
    place = np.floor((middle - origin) / CELL).astype(int)
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
