"""Damage to voxels: hits that take hit points, and the debris of wrecks; both write to an overlay.

See docs/reference/echelon.md, 'Voxels and damage'.
"""

import jax
import jax.numpy as jnp
import numpy as np

from physics.sparse_batch import fold_active, take_rows
from physics.voxels import (
    AIR,
    EMPTY,
    HIT_POINTS,
    REINFORCED,
    TILE_SHIFT,
    Overlay,
    Terrain,
    changed_columns,
    in_map,
    layer_bits,
    make_sight_columns,
    material_and_debris,
    square_columns,
    stored_columns,
    within_tile,
)

_TOGETHER = 32  # hits per chunk; within a chunk all pairs are compared


def damage_cells(terrain: Terrain, cells: jax.Array, amount: jax.Array, where: jax.Array) -> Overlay:
    """Subtracts damage from voxels' hit points; voxels without any left become air.

    Damage adds up over calls and over equal cells of one call. Air and reinforced cells, and cells
    outside the map, take none. Dirt, water, lava and the debris of wrecks become air at any damage.

    Args:
      cells: int32 `[K, 3]` x, y, z.
      amount: `[K]` hit points; only positive ones count.
      where: `[K]` bool, hits that count.
    """
    if not terrain.changes:
        return terrain.overlay
    hit = where & (amount > 0) & _damageable(terrain, cells)
    if hit.size <= _TOGETHER:
        return _damage(terrain, cells, amount, hit)

    def some(active, overlay):
        now = terrain._replace(overlay=overlay)
        picked, taken = take_rows((cells, amount), active.index)
        return _damage(now, picked, taken, active.live & _damageable(now, picked))

    return fold_active(hit, some, terrain.overlay, _TOGETHER)


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
      spared: `[B]` bool; other boxes are ignored.
      loose: bool; a debris field rather than solid debris.
      reach: most columns that the box spans along x or y: ceil(its size) + 1.
      where: bool; False changes nothing.
    """
    overlay = terrain.overlay
    if not terrain.changes:
        return overlay
    layers, rows, cols = terrain.shape
    near, far = jnp.floor(low).astype(jnp.int32), jnp.ceil(high).astype(jnp.int32)
    ix, iy = square_columns(near, reach)
    covered = where & (ix < far[0]) & (iy < far[1]) & (ix >= 0) & (ix < cols) & (iy >= 0) & (iy < rows)
    kept = _kept(boxes, spared, ix, iy)
    gone, debris = changed_columns(make_sight_columns(terrain), 0, ix, iy)
    vacant = (stored_columns(terrain.bank.vacant, terrain.map_index, ix, iy) | gone) & ~debris
    fill = jnp.where(covered, layer_bits(near[2], jnp.minimum(far[2], layers)) & vacant & ~kept, 0)
    overlay, page, room = _claim(overlay, ix, iy, fill != 0)
    place = (jnp.where(room & (fill != 0), page, overlay.gone.shape[0]), within_tile(ix, iy))
    return overlay.replace(
        gone=overlay.gone.at[place].set(jnp.where(loose, gone & ~fill, gone | fill), mode="drop"),
        debris=overlay.debris.at[place].set(debris | fill, mode="drop"),
    )


def _damageable(terrain: Terrain, cells: jax.Array) -> jax.Array:
    material = material_and_debris(terrain, cells)[0]
    return in_map(terrain, cells) & (material != AIR) & (material != REINFORCED)


def _damage(terrain: Terrain, cells: jax.Array, amount: jax.Array, hit: jax.Array) -> Overlay:
    """Damages cells `[K, 3]` that are damageable, comparing all pairs."""
    overlay = terrain.overlay
    _, rows, cols = terrain.shape
    x, y, z = jnp.moveaxis(cells, -1, 0)
    flat = (z * rows + y) * cols + x
    material, wreck = material_and_debris(terrain, cells)
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
    place = (jnp.where(falls, page, overlay.gone.shape[0]), within_tile(x, y))
    gone, debris = (planes.at[place].get(mode="clip") & bit for planes in (overlay.gone, overlay.debris))
    # Destroyed cells are distinct: adding their bits sets them, and subtracting set bits clears them.
    return overlay.replace(
        gone=overlay.gone.at[place].add(bit ^ gone, mode="drop"),
        debris=overlay.debris.at[place].add(jnp.uint32(0) - debris, mode="drop"),
    )


def _groups(values: jax.Array, where: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Marks the first of `[K]` entries with each value, and the pairs `[K, K]` of equal entries."""
    same = (values[:, None] == values) & where[:, None] & where
    earlier = np.tril(np.ones(same.shape, bool), -1)
    return where & ~(same & earlier).any(-1), same


def _claim(
    overlay: Overlay, ix: jax.Array, iy: jax.Array, where: jax.Array
) -> tuple[Overlay, jax.Array, jax.Array]:
    """Allots pages to the tiles of columns `[K]`; returns the page of each and whether one was left."""
    pages = overlay.gone.shape[0]
    cols = overlay.page.shape[1]
    tile = (iy >> TILE_SHIFT) * cols + (ix >> TILE_SHIFT)
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
    """Stores the damage of voxels that still stand, replacing the entries `known` `[K, D]`."""
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
        cell=jnp.where(ended, EMPTY, overlay.cell).at[place].set(flat, mode="drop"),
        damage=damage.at[place].set(lost, mode="drop"),
        oldest=(overlay.oldest + added.sum()) % size,
    )


def _kept(boxes: jax.Array, spared: jax.Array, ix: jax.Array, iy: jax.Array) -> jax.Array:
    """Returns the cells of columns `[C]` that overlap boxes."""
    near, far = jnp.floor(boxes[:, 0]).astype(jnp.int32), jnp.ceil(boxes[:, 1]).astype(jnp.int32)
    under = (ix[:, None] >= near[:, 0]) & (ix[:, None] < far[:, 0])
    under &= (iy[:, None] >= near[:, 1]) & (iy[:, None] < far[:, 1]) & spared
    spans = jnp.where(under, layer_bits(near[:, 2], far[:, 2]), jnp.uint32(0))
    return jax.lax.reduce(spans, np.uint32(0), jax.lax.bitwise_or, (1,))
