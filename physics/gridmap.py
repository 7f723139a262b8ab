"""Occupancy grids on the host and their distance fields; see docs/reference/f110.md 3.3."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy import ndimage

from physics.centerline import Centerline

Pose = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class OccupancyMap:
    """A grid of free and occupied cells, placed in the world. Everything outside it is occupied.

    Attributes:
      name: the map's name.
      occupied: `[H, W]` bool; row 0 is the bottom row, column 0 the left one.
      resolution: edge of a cell in metres.
      origin: world pose (x, y, yaw) of the outer corner of cell [0, 0]; metres and radians.
      centerline: the track's centreline, or None.
      spawns: named poses (x, y, heading).
      seen: `[H, W]` bool, the cells that a scan has seen; None if all have been seen.
      notes: remarks about the map, as text.
      files: its source files: the yaml file, the image, the centreline; empty for built-in maps.
      refused_line: the derived centreline that was refused, or None.
    """

    name: str
    occupied: np.ndarray
    resolution: float
    origin: Pose
    centerline: Centerline | None = None
    spawns: Mapping[str, Pose] = field(default_factory=dict)
    seen: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    refused_line: "RefusedLine | None" = None

    @cached_property
    def field(self) -> np.ndarray:
        """Distance field `[H, W]`, float64 metres; see `distance_field`."""
        return distance_field(self.occupied, self.resolution)

    def describe(self) -> str:
        """Returns one line of text: the map's name, and its centreline's direction, length and source."""
        line, notes = self.centerline, "".join(f"; {note}" for note in self.notes)
        if line is None:
            why = "" if self.refused_line is None else f"; {self.refused_line.reason}"
            return f"map {self.name}: no centreline{why}{notes}"
        walled = float(np.mean(self.distance(line.points) <= 0))
        warning = f", {100 * walled:.1f} % of its points in walls" if walled else ""
        return f"map {self.name}: {line.course}, {line.length:.1f} m, {line.source}{warning}{notes}"

    def cells(self, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns row, column and whether they lie inside the grid, for world points `[..., 2]`."""
        x, y, yaw = self.origin
        dx, dy = xy[..., 0] - x, xy[..., 1] - y
        col = np.floor((np.cos(yaw) * dx + np.sin(yaw) * dy) / self.resolution)
        row = np.floor((np.cos(yaw) * dy - np.sin(yaw) * dx) / self.resolution)
        inside = (row >= 0) & (row < self.occupied.shape[0]) & (col >= 0) & (col < self.occupied.shape[1])
        return np.where(inside, row, 0).astype(int), np.where(inside, col, 0).astype(int), inside

    def world(self, row: np.ndarray, col: np.ndarray) -> np.ndarray:
        """Returns the world points `[..., 2]` of (fractional) cell centres."""
        x, y, yaw = self.origin
        u, v = (np.asarray(col) + 0.5) * self.resolution, (np.asarray(row) + 0.5) * self.resolution
        cos, sin = np.cos(yaw), np.sin(yaw)
        return np.stack([x + cos * u - sin * v, y + sin * u + cos * v], axis=-1)

    def distance(self, xy: np.ndarray) -> np.ndarray:
        """Returns the distance field at world points `[..., 2]` in metres; 0 outside."""
        row, col, inside = self.cells(xy)
        return np.where(inside, self.field[row, col], 0.0)


@dataclass(frozen=True, eq=False)
class RefusedLine:
    """A derived centreline of N points that was refused.

    Attributes:
      line: the line.
      seen: `[N]` bool, the points in cells that a scan has seen.
      ends: `[N, 2, 2]` metres, end points of the views to the left and to the right.
      walled: `[N, 2]` bool, whether such a view ends at a wall.
      reason: the reason for the refusal, as text.
    """

    line: Centerline
    seen: np.ndarray
    ends: np.ndarray
    walled: np.ndarray
    reason: str


def distance_field(occupied: np.ndarray, resolution: float) -> np.ndarray:
    """Returns the exact Euclidean distance transform of a grid whose outside is occupied.

    Args:
      occupied: `[H, W]` bool.
      resolution: edge of a cell in metres.

    Returns:
      `[H, W]` float64 metres from each cell's centre to the nearest occupied cell's centre.
    """
    ringed = np.pad(occupied, 1, constant_values=True)
    return ndimage.distance_transform_edt(~ringed)[1:-1, 1:-1] * resolution


def wall_distance(grid: OccupancyMap, xy: np.ndarray, angle: np.ndarray, limit: float = 30.0) -> np.ndarray:
    """Returns distances, at most `limit`, from points `[N, 2]` along angles `[N]` to an occupied cell."""
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    total = np.zeros(len(xy))
    while True:
        step = grid.distance(xy + total[:, None] * direction)
        moving = (step > 0) & (total < limit)
        if not moving.any():
            return np.minimum(total, limit)
        total = total + np.where(moving, step, 0.0)


def fill_widths(grid: OccupancyMap, line: Centerline) -> Centerline:
    """Returns a centreline with its missing widths measured as distances to the walls."""
    if line.left is not None and line.right is not None:
        return line
    return replace(
        line,
        left=wall_distance(grid, line.points, line.heading + np.pi / 2),
        right=wall_distance(grid, line.points, line.heading - np.pi / 2),
    )
