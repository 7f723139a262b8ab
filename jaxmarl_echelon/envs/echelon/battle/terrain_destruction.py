"""Terrain changes by combat: wrecks, voxels struck by projectiles, craters.

They are applied after the weapons of a substep and before movement, so that all weapons of a substep see
the same terrain. Order: wrecks, hits, explosions; an explosion that kills also clears its victim's wreck.
Reference: docs/reference/echelon.md 8.3 and 8.4.
"""

from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.movement import NearbyColumns, look_up_columns_again
from jaxmarl_echelon.envs.echelon.battle.projectiles import Impacts
from jaxmarl_echelon.envs.echelon.battle.state import NO_MECH, Mechs
from jaxmarl_echelon.envs.echelon.battle.surroundings import Scene
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CHASSIS, GAUSS, MISSILE, SMOKE, WEAPON
from physics.sparse_batch import fold_active, take_rows, update_where
from physics.voxel_damage import damage_cells, fill_box
from physics.voxels import Overlay, Terrain

_SHARE, _BLAST_SHARE, _WRECK_SHARE, _LOOK_SHARE = 1 / 16, 1 / 32, 1 / 64, 1 / 32
_BLAST = ceil(2 * float(WEAPON.splash_radius[[MISSILE, GAUSS]].max())) + 1
_FOOTPRINT = ceil(float(CHASSIS.size[:, :2].max())) + 1


class _World(NamedTuple):
    """Overlay, and whether any column has changed in this substep."""

    overlay: Overlay
    changed: jax.Array


def update_terrain(
    scene: Scene, ground: NearbyColumns, mechs: Mechs, died: jax.Array, loose: jax.Array, impacts: Impacts
) -> tuple[Overlay, NearbyColumns]:
    """Returns the terrain after the weapons of a substep, and the columns around the mechs.

    Args:
      scene: surroundings.
      ground: columns around the mechs.
      mechs: the mechs.
      died: `[M]` bool; died in this substep.
      loose: `[M]` bool; a wreck is a debris field rather than solid debris.
      impacts: impacts of projectiles.
    """
    if not scene.terrain.changes:
        return scene.terrain.overlay, ground
    terrain = scene.terrain._replace(overlay=None)
    impacts = Impacts(*(v.reshape(-1, *v.shape[2:]) for v in impacts))
    struck = impacts.struck & (impacts.kind != NO_MECH) & (impacts.kind != SMOKE)
    explodes = (impacts.kind == MISSILE) | (impacts.kind == GAUSS)
    half = scene.chassis.size / 2
    boxes = jnp.stack([mechs.position - half, mechs.position + half], 1)
    wrecks = boxes, mechs.alive, died, loose

    def after(change, where, world, *operands, share):
        # Part of the sparse update, so that overlays are compared only where something happens.
        def noted(world, terrain, *operands):
            overlay = change(world.overlay, terrain, *operands)
            return _World(overlay, world.changed | _differ(overlay, world.overlay))

        return update_where(noted, where.any(), world, terrain, *operands, share=share)

    world = _World(scene.terrain.overlay, jnp.zeros((), bool))
    world = after(_wreck, died, world, *wrecks, share=_WRECK_SHARE)
    world = after(_hit, struck, world, impacts, struck, share=_SHARE)
    overlay, changed = after(_blast, explodes, world, impacts, explodes, share=_BLAST_SHARE)
    now = terrain._replace(overlay=overlay)
    solid = update_where(look_up_columns_again, changed, ground.solid, ground.corner, now, share=_LOOK_SHARE)
    return overlay, ground._replace(solid=solid)


def _differ(one: Overlay, other: Overlay) -> jax.Array:
    """Returns whether any column differs."""
    return ((one.gone != other.gone) | (one.debris != other.debris)).any()


def _hit(overlay: Overlay, terrain: Terrain, impacts: Impacts, struck: jax.Array) -> Overlay:
    """Damages the voxels struck by projectiles."""
    amount = jnp.asarray(WEAPON.damage)[jnp.maximum(impacts.kind, 0)]
    return damage_cells(terrain._replace(overlay=overlay), impacts.cell, amount, struck)


def _blast(overlay: Overlay, terrain: Terrain, impacts: Impacts, explodes: jax.Array) -> Overlay:
    """Damages the voxels around explosions, one explosion after the other."""
    kind = jnp.maximum(impacts.kind, 0)
    radius = jnp.asarray(WEAPON.splash_radius)[kind]
    amount = jnp.asarray(WEAPON.damage * WEAPON.splash_scale)[kind]

    def one(active, overlay):
        (centre,), (within,), (harm,) = take_rows((impacts.point, radius, amount), active.index)
        cells, near = _crater(centre, within)
        hurt = jnp.broadcast_to(harm, near.shape)
        return damage_cells(terrain._replace(overlay=overlay), cells, hurt, near & active.live)

    return fold_active(explodes, one, overlay, room=1, lockstep=True)


def _wreck(
    overlay: Overlay,
    terrain: Terrain,
    boxes: jax.Array,
    alive: jax.Array,
    died: jax.Array,
    loose: jax.Array,
) -> Overlay:
    """Places the wrecks of mechs that died."""

    def one(active, overlay):
        ((low, high),), (scattered,) = take_rows((boxes, loose), active.index)
        return fill_box(
            terrain._replace(overlay=overlay),
            low,
            high,
            boxes,
            alive,
            loose=scattered,
            reach=_FOOTPRINT,
            where=active.live[0],
        )

    return fold_active(died, one, overlay, room=1, lockstep=True)


def _crater(centre: jax.Array, radius: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns cells `[K, 3]` around an explosion, and whether their centres lie within its radius."""
    steps = np.stack(np.meshgrid(*[np.arange(_BLAST, dtype=np.int32)] * 3, indexing="ij"), -1).reshape(-1, 3)
    cells = jnp.floor(centre - radius).astype(jnp.int32) + steps
    apart = cells + 0.5 - centre
    return cells, vectors.squared_length(apart) <= radius * radius
