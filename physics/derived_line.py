"""Lines of maps that come without one: derived from the walls, and refused where these belie them."""

from dataclasses import replace

import numpy as np
from scipy import ndimage

from physics.centerline import Centerline
from physics.gridmap import Doubt, OccupancyMap, wall_distance
from physics.medial_loop import closed, derive_centerline

# Shares of a line's points: doors stand open, and scans miss a wall here and there.
_WALLED = 0.75
_SEEN = 0.99
# A wall this near to where the view ends is what ends it, in metres: walls of scans are dotted lines.
_DOTTED = 0.2


def derived(grid: OccupancyMap) -> OccupancyMap:
    """The map with the line that its walls give, or with the reason why none is believed.

    The line goes through cells that a scan has seen. Where these make no loop, one is sought through all free
    cells, which then is refused.
    """
    line = derive_centerline(grid)
    if line is None and grid.seen is not None:
        line = derive_centerline(replace(grid, seen=None))
    if line is None:
        return grid
    found = examine(grid, line)
    return replace(grid, centerline=line) if found is None else replace(grid, doubt=found)


def examine(grid: OccupancyMap, line: Centerline) -> Doubt | None:
    """The reason against a line; None where it lies between two walls, in cells that a scan has seen.

    From every point the view to the left and to the right has to end at a wall, not at the picture's edge and
    not where no scan has seen anything: on three quarters of the line on either side, as doors stand open.
    """
    shut = closed(grid)
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
    return None if reason is None else Doubt(line, seen, *stacked, reason)


def _reason(seen: np.ndarray, left: np.ndarray, right: np.ndarray) -> str | None:
    if seen.mean() < _SEEN:
        return f"{100 * (1 - seen.mean()):.0f} % of the derived line is where no scan has seen anything"
    for side, walled in (("left", left), ("right", right)):
        if walled.mean() < _WALLED:
            return f"on {100 * (1 - walled.mean()):.0f} % of the derived line no wall was seen to the {side}"
    return None
