"""Banks of maps as arrays: distance fields, centrelines and transforms, for compiled programs.

See docs/reference/f110.md 3.3.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from physics.centerline import resample_centerline
from physics.gridmap import OccupancyMap, fill_widths
from physics.host_arrays import put_array

_TILE, _SHIFT = 8, 3


class MapBank(struct.PyTreeNode):
    """M maps, padded to one size; K centreline points each.

    Every map is surrounded by at least one ring of occupied cells, which belongs to the field and
    to `origin`: a lookup only has to clip its indices to find the occupied outside.

    Attributes:
      field: `[M, H / 8, W / 8, 8, 8]` float32 metres from a cell's centre to the nearest occupied cell's
        centre, in tiles of 8 x 8 cells, so that neighbouring rays read the same lines of memory.
      resolution: `[M]` edge of a cell in metres.
      origin: `[M, 3]` world pose of the outer corner of cell [0, 0].
      to_cell: `[M, 2, 3]` affine transform from world (x, y, 1) to fractional (row, column).
      size: `[M, 2]` int32 rows and columns of the image proper, which starts at cell [1, 1].
      centerline: `[M, K, 4]` x, y, tangent heading and arc length, at equal spacing; zeros without one.
      centerline_length: `[M]` metres, 0 without a centreline.
      half_width: `[M, K, 2]` metres to the left and to the right wall.
      closed: `[M]` bool; the last centreline point connects to the first.
      has_centerline: `[M]` bool.
      names: the maps' names (static).
    """

    field: jax.Array
    resolution: jax.Array
    origin: jax.Array
    to_cell: jax.Array
    size: jax.Array
    centerline: jax.Array
    centerline_length: jax.Array
    half_width: jax.Array
    closed: jax.Array
    has_centerline: jax.Array
    names: tuple[str, ...] = struct.field(pytree_node=False)


def map_bank(maps: Sequence[OccupancyMap], spacing: float = 0.25, max_points: int = 2048) -> MapBank:
    """Stacks maps into one bank.

    Args:
      maps: at least one map, of any sizes and resolutions.
      spacing: largest distance between centreline points in metres, unless `max_points` forbids it.
      max_points: cap on the number K of centreline points.

    Raises:
      ValueError: no maps, or more cells in all than 32-bit indices reach.
    """
    if not maps:
        raise ValueError("maps=[]: at least one map is needed")
    rows, cols = -(-(np.max([grid.occupied.shape for grid in maps], axis=0) + 2) // _TILE) * _TILE
    if len(maps) * int(rows) * int(cols) >= 2**31:
        raise ValueError(f"maps: {len(maps)} maps of {rows}x{cols} cells; at most 2**31 - 1 in all")
    lines = [None if grid.centerline is None else fill_widths(grid, grid.centerline) for grid in maps]
    longest = max((line.length for line in lines if line is not None), default=0.0)
    points = int(np.clip(np.ceil(longest / spacing) + 1, 2, max_points))
    field = np.zeros((len(maps), rows, cols), np.float32)
    centerline = np.zeros((len(maps), points, 4))
    half_width = np.zeros((len(maps), points, 2))
    length = np.zeros(len(maps))
    for m, (grid, line) in enumerate(zip(maps, lines, strict=True)):
        height, width = grid.occupied.shape
        field[m, 1 : height + 1, 1 : width + 1] = grid.field
        if line is not None:
            line = resample_centerline(line, points)
            centerline[m] = np.stack([line.x, line.y, line.heading, line.s], axis=-1)
            half_width[m] = np.stack([line.left, line.right], axis=-1)
            length[m] = line.length
    origin = np.array([_ringed_origin(grid) for grid in maps])
    resolution = np.array([grid.resolution for grid in maps])
    return MapBank(
        field=put_array(_tiled(field)),
        resolution=put_array(resolution),
        origin=put_array(origin),
        to_cell=put_array(_world_to_cell(origin, resolution)),
        size=put_array([grid.occupied.shape for grid in maps], np.int32),
        centerline=put_array(centerline),
        centerline_length=put_array(length),
        half_width=put_array(half_width),
        closed=put_array([line is not None and line.closed for line in lines]),
        has_centerline=put_array([line is not None for line in lines]),
        names=tuple(grid.name for grid in maps),
    )


def _tiled(field: np.ndarray) -> np.ndarray:
    maps, rows, cols = field.shape
    tiles = field.reshape(maps, rows // _TILE, _TILE, cols // _TILE, _TILE)
    return np.ascontiguousarray(tiles.swapaxes(2, 3))


def _ringed_origin(grid: OccupancyMap) -> tuple[float, float, float]:
    x, y, yaw = grid.origin
    cos, sin = np.cos(yaw) * grid.resolution, np.sin(yaw) * grid.resolution
    return x - cos + sin, y - sin - cos, yaw


def _world_to_cell(origin: np.ndarray, resolution: np.ndarray) -> np.ndarray:
    x, y, yaw = origin.T
    cos, sin = np.cos(yaw) / resolution, np.sin(yaw) / resolution
    row = np.stack([-sin, cos, sin * x - cos * y], axis=-1)
    col = np.stack([cos, sin, -cos * x - sin * y], axis=-1)
    return np.stack([row, col], axis=-2)


def _fractional_cell(bank: MapBank, map_index: jax.Array, xy: jax.Array) -> tuple[jax.Array, jax.Array]:
    # A single map needs no gather of its six coefficients.
    affine = bank.to_cell[0] if bank.field.shape[0] == 1 else bank.to_cell[map_index]
    x, y = xy[..., 0], xy[..., 1]
    row = affine[..., 0, 0] * x + affine[..., 0, 1] * y + affine[..., 0, 2]
    col = affine[..., 1, 0] * x + affine[..., 1, 1] * y + affine[..., 1, 2]
    return row, col


def _clip_to_field(bank: MapBank, row: jax.Array, col: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows, cols = (_TILE * tiles for tiles in bank.field.shape[1:3])
    return jnp.clip(row, 0, rows - 1).astype(jnp.int32), jnp.clip(col, 0, cols - 1).astype(jnp.int32)


def world_to_cell(
    bank: MapBank, map_index: jax.Array, xy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the cells of world points.

    Args:
      map_index: int32 scalar, or the batch shape of `xy`.
      xy: `[..., 2]` metres.

    Returns:
      Row and column (int32, clipped into the occupied surroundings for points outside), and whether the
      point lies inside the map's image.
    """
    row, col = _fractional_cell(bank, map_index, xy)
    height, width = jnp.moveaxis(bank.size[map_index], -1, 0)
    inside = (row >= 1) & (row < height + 1) & (col >= 1) & (col < width + 1)
    return *_clip_to_field(bank, row, col), inside


def distance_at(bank: MapBank, map_index: jax.Array, xy: jax.Array) -> jax.Array:
    """Returns the distance field at world points: metres, float32 `[...]`; 0 on occupied cells and outside.

    Args:
      map_index: int32 scalar, or the batch shape of `xy`; not read if the bank holds one map.
      xy: `[..., 2]` metres.
    """
    index = place_in_field(bank.field.shape[2], *_clip_to_field(bank, *_fractional_cell(bank, map_index, xy)))
    index = index if bank.field.shape[0] == 1 else index + map_index * bank.field[0].size
    return bank.field.reshape(-1).at[index].get(mode="clip", wrap_negative_indices=False)


def place_in_field(tiles: int, row: jax.Array, col: jax.Array) -> jax.Array:
    """Returns the indices of cells in a map's flat field that is `tiles` tiles wide, int32 `[...]`."""
    tile = (row >> _SHIFT) * tiles + (col >> _SHIFT)
    return (tile << 2 * _SHIFT) | ((row & _TILE - 1) << _SHIFT) | (col & _TILE - 1)
