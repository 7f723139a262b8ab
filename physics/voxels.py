"""Worlds of voxels that battles change: a shared bank of maps and one small overlay per environment.

A map is a grid of materials whose cell (x, y, z) spans [i, i + 1) on each axis; z is up. What moves
and what sees asks whole columns: one 32-bit word per (x, y), bit z for cell z.

An overlay holds what has changed: for tiles of 4 x 4 columns, which cells are gone and which hold
debris. It has room for a fixed number of tiles and of damaged voxels, so that it stays small on
large maps. Source: spec sections 1.1, 3.3 and 9.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from physics.compaction import first_true

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
_TILE, _SHIFT = 4, 2
_EMPTY = -1
_TOGETHER = 32  # hits that are compared all with all; more take turns
_FULL = np.uint32(0xFFFFFFFF)


@struct.dataclass
class VoxelBank:
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


@struct.dataclass
class Overlay:
    """What one environment has changed of its map; P pages of 4 x 4 columns, D damaged voxels.

    A cell is as in the bank (neither gone nor debris), air (gone), a debris field (debris) or solid
    debris (both). Changes in tiles that no page is left for are dropped, and the oldest damage to a
    voxel that still stands is forgotten when more than D voxels are damaged.

    Attributes:
      page: `[ceil(Y / 4), ceil(X / 4)]` uint8 or uint16 page of each tile; page 0 is that of all
        tiles without changes. `[0, 0]` for static terrain.
      used: int32, pages in use, page 0 not counted.
      gone: `[P + 1, 16]` uint32 columns.
      debris: `[P + 1, 16]` uint32 columns.
      cell: `[D]` int32 flat index of a damaged voxel that stands, or -1.
      damage: `[D]` hit points it has lost.
      oldest: int32 next place to write in the two above.
    """

    page: jax.Array
    used: jax.Array
    gone: jax.Array
    debris: jax.Array
    cell: jax.Array
    damage: jax.Array
    oldest: jax.Array


class Terrain(NamedTuple):
    """One environment's world: the bank, int32 index of its map, its overlay."""

    bank: VoxelBank
    map_index: jax.Array
    overlay: Overlay

    @property
    def shape(self) -> tuple[int, int, int]:
        """Cells along z, y and x."""
        return self.bank.material.shape[1:]

    @property
    def changes(self) -> bool:
        """Whether the overlay has room for changes; otherwise only the bank is read."""
        return self.overlay.gone.shape[0] > 0


class Sights(NamedTuple):
    """What E environments can see through, so that one lookup serves points of all of them.

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
        material=jnp.asarray(material),
        solid=jnp.asarray(_pack(COLLIDES[material])),
        opaque=jnp.asarray(_pack(OPAQUE[material])),
        vacant=jnp.asarray(_pack(vacant[material])),
    )


def no_overlay(shape: tuple[int, int, int], pages: int, damaged: int) -> Overlay:
    """An overlay without changes.

    Args:
      shape: cells of the maps along z, y and x.
      pages: tiles of 4 x 4 columns that may change; more than there are tiles is the same as all.
        0 makes the terrain static: nothing is ever damaged, wrecks leave nothing behind.
      damaged: voxels whose damage is remembered while they stand. With 0, only a hit that takes all
        of a voxel's hit points has an effect.

    Raises:
      ValueError: a negative number.
    """
    if pages < 0 or damaged < 0:
        raise ValueError(f"pages={pages}, damaged={damaged}: must not be negative")
    tiles = (-(-shape[1] // _TILE), -(-shape[2] // _TILE)) if pages else (0, 0)
    pages = min(pages, tiles[0] * tiles[1])
    columns = jnp.zeros((pages + 1 if pages else 0, _TILE**2), jnp.uint32)
    return Overlay(
        page=jnp.zeros(tiles, jnp.uint8 if pages < 256 else jnp.uint16),
        used=jnp.zeros((), jnp.int32),
        gone=columns,
        debris=columns,
        cell=jnp.full((damaged if pages else 0,), _EMPTY, jnp.int32),
        damage=jnp.zeros((damaged if pages else 0,), jnp.float32),
        oldest=jnp.zeros((), jnp.int32),
    )


def columns(terrain: Terrain, ix: jax.Array, iy: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cells of columns that block movement and that block sight, uint32 `[...]` each; 0 outside the map.

    Args:
      ix: int32 `[...]`.
      iy: int32 `[...]`.
    """
    _, rows, cols = terrain.shape
    inside = (ix >= 0) & (ix < cols) & (iy >= 0) & (iy < rows)
    words = _now(terrain, ix, iy, terrain.bank.solid, terrain.bank.opaque)
    solid, opaque = (jnp.where(inside, word, 0) for word in words)
    return solid, opaque


def sights(terrain: Terrain) -> Sights:
    """What one environment can see through, as a batch of one."""
    overlay = terrain.overlay
    return Sights(terrain.bank.opaque, overlay.page[None], overlay.gone[None], overlay.debris[None])


def opaque_columns(
    views: Sights, map_index: jax.Array, row: jax.Array, ix: jax.Array, iy: jax.Array
) -> jax.Array:
    """Cells that block sight, uint32 `[...]`; outside the map, those of some column.

    Args:
      views: of E environments.
      map_index: int32 `[...]` or scalar, maps in the bank.
      row: int32 `[...]` or scalar, environments.
      ix: int32 `[...]`.
      iy: int32 `[...]`.
    """
    word = _stored(views.stored, map_index, ix, iy)
    if not views.gone.shape[1]:
        return word
    gone, debris = _changes(views, row, ix, iy)
    return (word & ~gone) | debris


def material_at(terrain: Terrain, cell: jax.Array) -> jax.Array:
    """Materials, uint8 `[...]`, SOLID outside the map.

    Args:
      cell: int32 `[..., 3]` x, y, z.
    """
    return jnp.where(_inside(terrain, cell), _material(terrain, cell)[0], np.uint8(SOLID))


def box_collides(terrain: Terrain, low: jax.Array, high: jax.Array, reach: int) -> jax.Array:
    """Whether boxes meet the ground or a cell that blocks movement, bool `[...]`.

    The world's ground is the plane z = 0. Beside and above the map nothing blocks.

    Args:
      low: `[..., 3]` lowest corners.
      high: `[..., 3]` highest corners.
      reach: most columns that a box spans along x or y: ceil(its size) + 1.
    """
    layers, rows, cols = terrain.shape
    near, far = jnp.floor(low).astype(jnp.int32), jnp.ceil(high).astype(jnp.int32)
    ix, iy = _footprint(near, reach)
    covered = (ix < far[..., 0, None]) & (iy < far[..., 1, None])
    covered &= (ix >= 0) & (ix < cols) & (iy >= 0) & (iy < rows)
    (solid,) = _now(terrain, ix, iy, terrain.bank.solid)
    span = _span(near[..., 2], jnp.minimum(far[..., 2], layers))
    blocked = covered & (solid & span[..., None] != 0)
    return (low[..., 2] < 0) | blocked.any(-1)


def damage_cells(terrain: Terrain, cells: jax.Array, amount: jax.Array, where: jax.Array) -> Overlay:
    """Takes hit points from voxels; those without any left become air.

    Damage adds up, over calls and over equal cells of one call. Air and reinforced cells, and cells
    outside the map, take none. Dirt, water, lava and the debris of wrecks vanish at any damage.

    Args:
      cells: int32 `[K, 3]` x, y, z.
      amount: `[K]` hit points; only positive ones count.
      where: `[K]` bool, hits that happen.
    """
    if not terrain.changes:
        return terrain.overlay
    hit = where & (amount > 0) & _damageable(terrain, cells)
    if hit.size <= _TOGETHER:
        return _damage(terrain, cells, amount, hit)

    def some(carry):
        hit, overlay = carry
        chosen, place, total = first_true(hit, _TOGETHER)
        now = terrain._replace(overlay=overlay)
        picked, taken = cells[chosen], np.arange(_TOGETHER) < total
        overlay = _damage(now, picked, amount[chosen], taken & _damageable(now, picked))
        return hit & (place >= _TOGETHER), overlay

    return jax.lax.while_loop(lambda carry: carry[0].any(), some, (hit, terrain.overlay))[1]


def fill_box(
    terrain: Terrain,
    low: jax.Array,
    high: jax.Array,
    boxes: jax.Array,
    spared: jax.Array,
    *,
    loose: jax.Array,
    reach: int,
    where: jax.Array,
) -> Overlay:
    """Fills the air and dirt of a box with the debris of a wreck, which has no hit points.

    Args:
      low: `[3]` lowest corner; the cells from its floor to the ceiling of `high` are filled.
      high: `[3]` highest corner.
      boxes: `[B, 2, 3]` lowest and highest corners of boxes whose cells stay as they are.
      spared: `[B]` bool; other boxes do not count.
      loose: bool; a debris field rather than solid debris.
      reach: most columns that the box spans along x or y: ceil(its size) + 1.
      where: bool; False leaves everything as it is.
    """
    overlay = terrain.overlay
    if not terrain.changes:
        return overlay
    layers, rows, cols = terrain.shape
    near, far = jnp.floor(low).astype(jnp.int32), jnp.ceil(high).astype(jnp.int32)
    ix, iy = _footprint(near, reach)
    covered = where & (ix < far[0]) & (iy < far[1]) & (ix >= 0) & (ix < cols) & (iy >= 0) & (iy < rows)
    kept = _kept(boxes, spared, ix, iy)
    gone, debris = _changes(sights(terrain), 0, ix, iy)
    vacant = (_stored(terrain.bank.vacant, terrain.map_index, ix, iy) | gone) & ~debris
    fill = jnp.where(covered, _span(near[2], jnp.minimum(far[2], layers)) & vacant & ~kept, 0)
    overlay, page, room = _claim(overlay, ix, iy, fill != 0)
    place = (jnp.where(room & (fill != 0), page, overlay.gone.shape[0]), _within_tile(ix, iy))
    return overlay.replace(
        gone=overlay.gone.at[place].set(jnp.where(loose, gone & ~fill, gone | fill), mode="drop"),
        debris=overlay.debris.at[place].set(debris | fill, mode="drop"),
    )


def _pack(cells: np.ndarray) -> np.ndarray:
    bits = np.uint32(1) << np.arange(cells.shape[1], dtype=np.uint32)
    return (cells * bits[:, None, None]).sum(1, dtype=np.uint32)


def _below(height: jax.Array) -> jax.Array:
    """Bits of the cells below a height, which may lie outside [0, 32]."""
    height = jnp.clip(height, 0, MAX_HEIGHT).astype(jnp.uint32)
    return jnp.where(height == 0, 0, _FULL >> (jnp.uint32(MAX_HEIGHT) - jnp.maximum(height, 1)))


def _span(low: jax.Array, high: jax.Array) -> jax.Array:
    """Bits of the cells low <= z < high."""
    return _below(high) & ~_below(low)


def _footprint(near: jax.Array, reach: int) -> tuple[jax.Array, jax.Array]:
    """Columns `[..., reach**2]` from a corner on."""
    steps = np.arange(reach**2, dtype=np.int32)
    return near[..., 0, None] + steps % reach, near[..., 1, None] + steps // reach


def _inside(terrain: Terrain, cell: jax.Array) -> jax.Array:
    size = np.array(terrain.shape[::-1], np.int32)
    return ((cell >= 0) & (cell < size)).all(-1)


def _take(values: jax.Array, at: jax.Array) -> jax.Array:
    return values.reshape(-1).at[at].get(mode="clip", wrap_negative_indices=False)


def _stored(words: jax.Array, map_index: jax.Array, ix: jax.Array, iy: jax.Array) -> jax.Array:
    """Columns of the bank, `words` being `[N, Y, X]`."""
    maps, rows, cols = words.shape
    at = iy * cols + ix
    return _take(words, at if maps == 1 else at + map_index * (rows * cols))


def _within_tile(ix: jax.Array, iy: jax.Array) -> jax.Array:
    return ((iy & (_TILE - 1)) << _SHIFT) | (ix & (_TILE - 1))


def _changes(views: Sights, row: jax.Array, ix: jax.Array, iy: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gone cells and debris of columns."""
    _, rows, cols = views.page.shape
    tile = (iy >> _SHIFT) * cols + (ix >> _SHIFT)
    page = _take(views.page, row * (rows * cols) + tile).astype(jnp.int32)
    at = (row * views.gone.shape[1] + page) * _TILE**2 + _within_tile(ix, iy)
    return _take(views.gone, at), _take(views.debris, at)


def _now(terrain: Terrain, ix: jax.Array, iy: jax.Array, *words: jax.Array) -> list[jax.Array]:
    """Columns of the bank with the overlay's changes; debris blocks movement and sight."""
    stored = [_stored(word, terrain.map_index, ix, iy) for word in words]
    if not terrain.changes:
        return stored
    gone, debris = _changes(sights(terrain), 0, ix, iy)
    return [(word & ~gone) | debris for word in stored]


def _material(terrain: Terrain, cell: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Materials of cells, and whether they are debris of a wreck; outside the map something."""
    maps, layers, rows, cols = terrain.bank.material.shape
    x, y, z = (jnp.clip(cell[..., i], 0, n - 1) for i, n in enumerate((cols, rows, layers)))
    at = (z * rows + y) * cols + x
    at = at if maps == 1 else at + terrain.map_index * (layers * rows * cols)
    stored = _take(terrain.bank.material, at)
    if not terrain.changes:
        return stored, jnp.zeros(stored.shape, bool)
    gone, debris = ((plane >> z.astype(jnp.uint32)) & 1 != 0 for plane in _changes(sights(terrain), 0, x, y))
    wreck = jnp.where(gone, np.uint8(SOLID_DEBRIS), np.uint8(DEBRIS_FIELD))
    return jnp.where(debris, wreck, jnp.where(gone, np.uint8(AIR), stored)), debris


def _damageable(terrain: Terrain, cells: jax.Array) -> jax.Array:
    material = _material(terrain, cells)[0]
    return _inside(terrain, cells) & (material != AIR) & (material != REINFORCED)


def _damage(terrain: Terrain, cells: jax.Array, amount: jax.Array, hit: jax.Array) -> Overlay:
    """Takes hit points from damageable cells `[K, 3]`, comparing all with all."""
    overlay = terrain.overlay
    _, rows, cols = terrain.shape
    x, y, z = jnp.moveaxis(cells, -1, 0)
    flat = (z * rows + y) * cols + x
    material, wreck = _material(terrain, cells)
    first, same = _groups(flat, hit)
    total = jnp.where(same, amount, 0).sum(-1)
    known = first[:, None] & (overlay.cell == flat[:, None])
    lost = total + jnp.where(known, overlay.damage, 0).sum(-1)
    endures = jnp.where(wreck, 0, jnp.asarray(HIT_POINTS)[material])
    falls = first & (lost >= endures)
    overlay, page, room = _claim(overlay, x, y, falls)
    falls &= room
    overlay = _remember(overlay, flat, lost, known, falls, first & (lost < endures))
    bit = jnp.uint32(1) << z.astype(jnp.uint32)
    place = (jnp.where(falls, page, overlay.gone.shape[0]), _within_tile(x, y))
    gone, debris = (planes.at[place].get(mode="clip") & bit for planes in (overlay.gone, overlay.debris))
    # Fallen cells are distinct, so that adding their bits sets them and taking bits that are set clears them.
    return overlay.replace(
        gone=overlay.gone.at[place].add(bit ^ gone, mode="drop"),
        debris=overlay.debris.at[place].add(jnp.uint32(0) - debris, mode="drop"),
    )


def _groups(values: jax.Array, where: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which of `[K]` entries is the first with its value, and `[K, K]` which entries share theirs."""
    same = (values[:, None] == values) & where[:, None] & where
    earlier = np.tril(np.ones(same.shape, bool), -1)
    return where & ~(same & earlier).any(-1), same


def _claim(
    overlay: Overlay, ix: jax.Array, iy: jax.Array, where: jax.Array
) -> tuple[Overlay, jax.Array, jax.Array]:
    """Gives pages to the tiles of columns `[K]`; the page of each, and whether there was one left."""
    pages = overlay.gone.shape[0]
    cols = overlay.page.shape[1]
    tile = (iy >> _SHIFT) * cols + (ix >> _SHIFT)
    page = overlay.page.reshape(-1).at[tile].get(mode="clip").astype(jnp.int32)
    first, same = _groups(tile, where & (page == 0))
    fresh = jnp.where(first, overlay.used + jnp.cumsum(first), 0)
    page = jnp.where(where & (page == 0), jnp.where(same, fresh, 0).sum(-1), page)
    room = where & (page < pages)
    taken = jnp.where(first & room, tile, overlay.page.size)
    flat = overlay.page.reshape(-1).at[taken].set(page.astype(overlay.page.dtype), mode="drop")
    used = jnp.minimum(overlay.used + first.sum(), pages - 1)
    return overlay.replace(page=flat.reshape(overlay.page.shape), used=used), page, room


def _remember(
    overlay: Overlay, flat: jax.Array, lost: jax.Array, known: jax.Array, falls: jax.Array, stands: jax.Array
) -> Overlay:
    """Writes down the damage of voxels that stand, in place of what is `known` `[K, D]`."""
    size = overlay.cell.shape[0]
    if not size:
        return overlay
    ended = (known & falls[:, None]).any(0)
    grown = known & stands[:, None]
    damage = jnp.where(grown.any(0), jnp.where(grown, lost[:, None], 0).sum(0), overlay.damage)
    added = stands & ~known.any(-1)
    rank = jnp.cumsum(added) - 1
    place = jnp.where(added & (rank < size), (overlay.oldest + rank) % size, size)
    return overlay.replace(
        cell=jnp.where(ended, _EMPTY, overlay.cell).at[place].set(flat, mode="drop"),
        damage=damage.at[place].set(lost, mode="drop"),
        oldest=(overlay.oldest + added.sum()) % size,
    )


def _kept(boxes: jax.Array, spared: jax.Array, ix: jax.Array, iy: jax.Array) -> jax.Array:
    """Cells of columns `[C]` that overlap boxes."""
    near, far = jnp.floor(boxes[:, 0]).astype(jnp.int32), jnp.ceil(boxes[:, 1]).astype(jnp.int32)
    under = (ix[:, None] >= near[:, 0]) & (ix[:, None] < far[:, 0])
    under &= (iy[:, None] >= near[:, 1]) & (iy[:, None] < far[:, 1]) & spared
    spans = jnp.where(under, _span(near[:, 2], far[:, 2]), jnp.uint32(0))
    return jax.lax.reduce(spans, np.uint32(0), jax.lax.bitwise_or, (1,))
