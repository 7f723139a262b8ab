"""Destructible voxel terrain: a shared bank of maps and one small overlay of changes per environment.

A map is a grid of materials whose cell (x, y, z) spans [i, i + 1) on each axis; z is up. Collision and
sight read whole columns: one 32-bit word per (x, y), bit z for cell z.

An overlay holds the changes: for tiles of 4 x 4 columns, which cells are gone and which hold debris. It
has room for a fixed number of tiles and of damaged voxels, so that it stays small on large maps.
See docs/reference/echelon.md, 'Voxels and damage'.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from physics.host_arrays import put_array

MATERIALS = (
    "air",
    "solid",
    "lava",
    "water",
    "debris_field",
    "solid_debris",
    "dirt",
    "glass",
    "reinforced",
    "foliage",
)
AIR, SOLID, LAVA, WATER, DEBRIS_FIELD, SOLID_DEBRIS, DIRT, GLASS, REINFORCED, FOLIAGE = range(len(MATERIALS))
HIT_POINTS = np.array([0, 100, 0, 0, 50, 200, 0, 10, 1000, 1], np.float32)
COLLIDES = np.array([0, 1, 0, 0, 1, 1, 0, 1, 1, 0], bool)
OPAQUE = np.array([0, 1, 0, 0, 1, 1, 0, 0, 1, 1], bool)

MAX_HEIGHT = 32
MAX_SIDE = 1000
TILE, TILE_SHIFT = 4, 2
EMPTY = -1
_FULL = np.uint32(0xFFFFFFFF)


class VoxelBank(struct.PyTreeNode):
    """N maps of one size.

    Attributes:
      material: `[N, Z, Y, X]` uint8 index into `MATERIALS`.
      solid: `[N, Y, X]` uint32, cells of a column that block movement.
      opaque: `[N, Y, X]` uint32, cells that block sight.
      vacant: `[N, Y, X]` uint32, cells of air or dirt, which a wreck may fill.
    """

    material: jax.Array
    solid: jax.Array
    opaque: jax.Array
    vacant: jax.Array


class Overlay(struct.PyTreeNode):
    """Changes of one environment to its map: P pages of 4 x 4 columns, D damaged voxels.

    A cell is as in the bank (neither gone nor debris), air (gone), a debris field (debris) or solid
    debris (both). Changes in tiles without a free page are dropped, and the damage to a voxel
    that still stands is forgotten when D others have been hit for the first time after it.

    Attributes:
      page: `[ceil(Y / 4), ceil(X / 4)]` uint8 or uint16 page of each tile; page 0 is shared by all
        tiles without changes. `[0, 0]` for static terrain.
      used: int32, pages in use, page 0 not counted.
      gone: `[P + 1, 16]` uint32 columns.
      debris: `[P + 1, 16]` uint32 columns.
      cell: `[D]` int32 flat index of a damaged voxel that still stands, or -1.
      damage: `[D]` hit points it has lost.
      oldest: int32 next index to write in `cell` and `damage`.
    """

    page: jax.Array
    used: jax.Array
    gone: jax.Array
    debris: jax.Array
    cell: jax.Array
    damage: jax.Array
    oldest: jax.Array


class Terrain(NamedTuple):
    """Terrain of one environment: the bank, the int32 index of its map, its overlay."""

    bank: VoxelBank
    map_index: jax.Array
    overlay: Overlay

    @property
    def shape(self) -> tuple[int, int, int]:
        """Cells along z, y and x."""
        return self.bank.material.shape[1:]

    @property
    def changes(self) -> bool:
        """True if the overlay has room for changes; otherwise only the bank is read."""
        return self.overlay.gone.shape[0] > 0


class SightColumns(NamedTuple):
    """Opaque columns of E environments, so that one lookup serves points of all of them.

    Attributes:
      stored: `[N, Y, X]` uint32 columns of opaque cells in the bank.
      page, gone, debris: those of the environments' overlays, with a leading axis E.
    """

    stored: jax.Array
    page: jax.Array
    gone: jax.Array
    debris: jax.Array


def voxel_bank(grids: Sequence[np.ndarray]) -> VoxelBank:
    """Stacks maps `[Z, Y, X]` of materials, all of one size.

    Raises:
      ValueError: no maps, different sizes, more than 32 layers or 1000 cells along a side, unknown
        materials, or more cells in all than 32-bit indices reach.
    """
    if not len(grids):
        raise ValueError("grids=[]: at least one map is needed")
    shapes = sorted({np.shape(grid) for grid in grids})
    if len(shapes) > 1 or len(shapes[0]) != 3:
        raise ValueError(f"grids: sizes {shapes}; all must have one size [Z, Y, X]")
    if shapes[0][0] > MAX_HEIGHT:
        raise ValueError(f"grids: {shapes[0][0]} layers; at most {MAX_HEIGHT}")
    if max(shapes[0]) > MAX_SIDE:
        raise ValueError(f"grids: sizes {shapes}; at most {MAX_SIDE} cells along each side")
    if len(grids) * np.prod(shapes[0]) >= 2**31:
        raise ValueError(f"grids: {len(grids)} maps of {shapes[0]} cells; at most 2**31 - 1 in all")
    material = np.stack(grids).astype(np.uint8)
    if material.max(initial=0) >= len(MATERIALS):
        raise ValueError(f"grids: material {material.max()}; must be below {len(MATERIALS)}")
    vacant = np.isin(np.arange(len(MATERIALS)), (AIR, DIRT))
    return VoxelBank(
        material=put_array(material),
        solid=put_array(_pack(COLLIDES[material])),
        opaque=put_array(_pack(OPAQUE[material])),
        vacant=put_array(_pack(vacant[material])),
    )


def empty_overlay(shape: tuple[int, int, int], pages: int, damaged: int) -> Overlay:
    """Returns an overlay without changes.

    Args:
      shape: cells of the maps along z, y and x.
      pages: tiles of 4 x 4 columns that may change, at most all. 0 makes the terrain static: voxels take
        no damage and wrecks leave no debris.
      damaged: voxels whose damage is stored while they stand. With 0, only a hit that takes all of a
        voxel's hit points has an effect.

    Raises:
      ValueError: a negative number.
    """
    if pages < 0 or damaged < 0:
        raise ValueError(f"pages={pages}, damaged={damaged}: must not be negative")
    tiles = (-(-shape[1] // TILE), -(-shape[2] // TILE)) if pages else (0, 0)
    pages = min(pages, tiles[0] * tiles[1])
    columns = jnp.zeros((pages + 1 if pages else 0, TILE**2), jnp.uint32)
    return Overlay(
        page=jnp.zeros(tiles, jnp.uint8 if pages < 256 else jnp.uint16),
        used=jnp.zeros((), jnp.int32),
        gone=columns,
        debris=columns,
        cell=jnp.full((damaged if pages else 0,), EMPTY, jnp.int32),
        damage=jnp.zeros((damaged if pages else 0,), jnp.float32),
        oldest=jnp.zeros((), jnp.int32),
    )


def blocking_columns(terrain: Terrain, ix: jax.Array, iy: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the cells of columns that block movement and that block sight, uint32 `[...]`; 0 outside.

    Args:
      ix: int32 `[...]`.
      iy: int32 `[...]`.
    """
    _, rows, cols = terrain.shape
    inside = (ix >= 0) & (ix < cols) & (iy >= 0) & (iy < rows)
    words = _now(terrain, ix, iy, terrain.bank.solid, terrain.bank.opaque)
    solid, opaque = (jnp.where(inside, word, 0) for word in words)
    return solid, opaque


def make_sight_columns(terrain: Terrain) -> SightColumns:
    """Returns the opaque columns of one environment, as a batch of one."""
    overlay = terrain.overlay
    return SightColumns(terrain.bank.opaque, overlay.page[None], overlay.gone[None], overlay.debris[None])


def opaque_columns(
    views: SightColumns, map_index: jax.Array, row: jax.Array, ix: jax.Array, iy: jax.Array
) -> jax.Array:
    """Returns the cells that block sight, uint32 `[...]`; outside the map, those of an arbitrary column.

    Args:
      views: of E environments.
      map_index: int32 `[...]` or scalar, maps in the bank.
      row: int32 `[...]` or scalar, environments.
      ix: int32 `[...]`.
      iy: int32 `[...]`.
    """
    word = stored_columns(views.stored, map_index, ix, iy)
    if not views.gone.shape[1]:
        return word
    gone, debris = changed_columns(views, row, ix, iy)
    return (word & ~gone) | debris


def material_at(terrain: Terrain, cell: jax.Array) -> jax.Array:
    """Returns materials, uint8 `[...]`; SOLID outside the map.

    Args:
      cell: int32 `[..., 3]` x, y, z.
    """
    return jnp.where(in_map(terrain, cell), material_and_debris(terrain, cell)[0], np.uint8(SOLID))


def box_collides(terrain: Terrain, low: jax.Array, high: jax.Array, reach: int) -> jax.Array:
    """Tells whether boxes meet the ground or a cell that blocks movement, bool `[...]`.

    The world's ground is the plane z = 0. Boxes are free to move next to and above the map.

    Args:
      low: `[..., 3]` lowest corners.
      high: `[..., 3]` highest corners.
      reach: most columns that a box spans along x or y: ceil(its size) + 1.
    """
    layers, rows, cols = terrain.shape
    near, far = jnp.floor(low).astype(jnp.int32), jnp.ceil(high).astype(jnp.int32)
    ix, iy = square_columns(near, reach)
    covered = (ix < far[..., 0, None]) & (iy < far[..., 1, None])
    covered &= (ix >= 0) & (ix < cols) & (iy >= 0) & (iy < rows)
    (solid,) = _now(terrain, ix, iy, terrain.bank.solid)
    span = layer_bits(near[..., 2], jnp.minimum(far[..., 2], layers))
    blocked = covered & (solid & span[..., None] != 0)
    return (low[..., 2] < 0) | blocked.any(-1)


def _pack(cells: np.ndarray) -> np.ndarray:
    bits = np.uint32(1) << np.arange(cells.shape[1], dtype=np.uint32)
    return (cells * bits[:, None, None]).sum(1, dtype=np.uint32)


def _below(height: jax.Array) -> jax.Array:
    """Returns the bits of the cells below a height, which may lie outside [0, 32]."""
    height = jnp.clip(height, 0, MAX_HEIGHT).astype(jnp.uint32)
    return jnp.where(height == 0, 0, _FULL >> (jnp.uint32(MAX_HEIGHT) - jnp.maximum(height, 1)))


def layer_bits(low: jax.Array, high: jax.Array) -> jax.Array:
    """Returns words whose bits low <= z < high are set, uint32 of the shape of `low` and `high` (int32)."""
    return _below(high) & ~_below(low)


def square_columns(near: jax.Array, reach: int) -> tuple[jax.Array, jax.Array]:
    """Returns x and y `[..., reach**2]` (int32) of the columns of a square with low corner `near`."""
    steps = np.arange(reach**2, dtype=np.int32)
    return near[..., 0, None] + steps % reach, near[..., 1, None] + steps // reach


def in_map(terrain: Terrain, cell: jax.Array) -> jax.Array:
    """Tells whether cells `[..., 3]` (int32 x, y, z) lie in the map."""
    size = np.array(terrain.shape[::-1], np.int32)
    return ((cell >= 0) & (cell < size)).all(-1)


def _take(values: jax.Array, at: jax.Array) -> jax.Array:
    return values.reshape(-1).at[at].get(mode="clip", wrap_negative_indices=False)


def stored_columns(words: jax.Array, map_index: jax.Array, ix: jax.Array, iy: jax.Array) -> jax.Array:
    """Reads columns (ix, iy) of map `map_index` from `words` `[N, Y, X]` of a bank; undefined outside."""
    maps, rows, cols = words.shape
    at = iy * cols + ix
    return _take(words, at if maps == 1 else at + map_index * (rows * cols))


def within_tile(ix: jax.Array, iy: jax.Array) -> jax.Array:
    """Returns the index of a column among the 16 of its tile."""
    return ((iy & (TILE - 1)) << TILE_SHIFT) | (ix & (TILE - 1))


def changed_columns(
    views: SightColumns, row: jax.Array, ix: jax.Array, iy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns gone cells and debris of the columns (ix, iy) in the overlay `row`, uint32 each."""
    _, rows, cols = views.page.shape
    tile = (iy >> TILE_SHIFT) * cols + (ix >> TILE_SHIFT)
    page = _take(views.page, row * (rows * cols) + tile).astype(jnp.int32)
    at = (row * views.gone.shape[1] + page) * TILE**2 + within_tile(ix, iy)
    return _take(views.gone, at), _take(views.debris, at)


def _now(terrain: Terrain, ix: jax.Array, iy: jax.Array, *words: jax.Array) -> list[jax.Array]:
    """Returns columns of the bank with the overlay's changes; debris blocks movement and sight."""
    stored = [stored_columns(word, terrain.map_index, ix, iy) for word in words]
    if not terrain.changes:
        return stored
    gone, debris = changed_columns(make_sight_columns(terrain), 0, ix, iy)
    return [(word & ~gone) | debris for word in stored]


def material_and_debris(terrain: Terrain, cell: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns materials of cells `[..., 3]`, uint8, and whether a wreck left them; undefined outside."""
    maps, layers, rows, cols = terrain.bank.material.shape
    x, y, z = (jnp.clip(cell[..., i], 0, n - 1) for i, n in enumerate((cols, rows, layers)))
    at = (z * rows + y) * cols + x
    at = at if maps == 1 else at + terrain.map_index * (layers * rows * cols)
    stored = _take(terrain.bank.material, at)
    if not terrain.changes:
        return stored, jnp.zeros(stored.shape, bool)
    gone, debris = (
        (plane >> z.astype(jnp.uint32)) & 1 != 0
        for plane in changed_columns(make_sight_columns(terrain), 0, x, y)
    )
    wreck = jnp.where(gone, np.uint8(SOLID_DEBRIS), np.uint8(DEBRIS_FIELD))
    return jnp.where(debris, wreck, jnp.where(gone, np.uint8(AIR), stored)), debris
