"""Centrelines derived from a map's walls, and the test by which they are accepted or refused."""

from dataclasses import replace

import numpy as np
from scipy import ndimage

from physics.centerline import Centerline
from physics.gridmap import OccupancyMap, RefusedLine, wall_distance
from physics.medial_loop import derive_centerline, wall_off_unseen

# Required shares of a line's points: open doors and gaps in scans leave some points without a wall.
_WALLED = 0.75
_SEEN = 0.99
# Largest distance in metres from a view's end to the wall that ends it: walls in scans are dotted lines.
_DOTTED = 0.2


def add_derived_centerline(grid: OccupancyMap) -> OccupancyMap:
    """Returns the map with the centreline derived from its walls, or with the refused line as `refused_line`.

    The line goes through cells that a scan has seen. If these contain no loop, all free cells are searched; a
    line with more than 1 % of its points in unseen cells is refused.
    """
    line = derive_centerline(grid)
    if line is None and grid.seen is not None:
        line = derive_centerline(replace(grid, seen=None))
    if line is None:
        return grid
    found = examine_centerline(grid, line)
    return replace(grid, centerline=line) if found is None else replace(grid, refused_line=found)


def examine_centerline(grid: OccupancyMap, line: Centerline) -> RefusedLine | None:
    """Returns the reason against a line; None if it lies between two walls, in cells that a scan has seen.

    The view from a point to the left and to the right has to end at a wall, neither at the image's edge nor
    in unseen cells. Each side needs this at three quarters of the points only, because of open doors. See
    docs/reference/f110.md 4.4.
    """
    shut = wall_off_unseen(grid)
    seen = shut.distance(line.points) > 0
    near = ndimage.distance_transform_edt(~grid.occupied) * grid.resolution <= max(_DOTTED, grid.resolution)
    ends, walled = [], []
    for turn in (np.pi / 2, -np.pi / 2):
        angle = line.heading + turn
        reach = wall_distance(
            shut, line.points, angle, limit=np.hypot(*grid.occupied.shape) * grid.resolution
        )
        end = line.points + reach[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        row, col, inside = grid.cells(end)
        ends.append(end)
        walled.append(inside & near[row, col])
    reason = _reason(seen, *walled)
    stacked = np.stack(ends, axis=1), np.stack(walled, axis=1)
    return None if reason is None else RefusedLine(line, seen, *stacked, reason)


def _reason(seen: np.ndarray, left: np.ndarray, right: np.ndarray) -> str | None:
    if seen.mean() < _SEEN:
        return f"{100 * (1 - seen.mean()):.0f} % of the derived line lies in cells that no scan has seen"
    for side, walled in (("left", left), ("right", right)):
        if walled.mean() < _WALLED:
            return f"on {100 * (1 - walled.mean()):.0f} % of the derived line no wall was seen to the {side}"
    return None
