"""What a decision leaves behind in the terrain: craters, broken walls and wrecks.

Terrain changes when a decision ends, not within it, so that everything that looks at it during the
substeps sees the same world. Source: spec sections 1.1 and 3.3.
"""

from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarl_echelon.envs.echelon import vectors
from jaxmarl_echelon.envs.echelon.projectiles import Impacts
from jaxmarl_echelon.envs.echelon.scene import Scene
from jaxmarl_echelon.envs.echelon.sparse import anywhere, where_needed
from jaxmarl_echelon.envs.echelon.tables import CHASSIS, GAUSS, MISSILE, SMOKE, WEAPON
from jaxmarl_echelon.envs.echelon.types import NOBODY, Mechs
from physics.voxels import Overlay, Terrain, damage_cells, fill_box

_SHARE, _BLAST_SHARE, _WRECK_SHARE = 1 / 8, 1 / 32, 1 / 32
_BLAST = ceil(2 * float(WEAPON.splash_radius[[MISSILE, GAUSS]].max())) + 1
_FOOTPRINT = ceil(float(CHASSIS.size[:, :2].max())) + 1


def settle(scene: Scene, mechs: Mechs, died: jax.Array, impacts: Impacts, draws: jax.Array) -> Overlay:
    """The overlay after a decision.

    Args:
      scene: surroundings.
      mechs: the mechs after it.
      died: `[M]` bool, during it.
      impacts: what projectiles struck.
      draws: `[M]` uniform in [0, 1): whether a wreck is solid.
    """
    terrain = scene.terrain
    if not terrain.changes:
        return terrain.overlay
    impacts = Impacts(*(v.reshape(-1, *v.shape[2:]) for v in impacts))
    struck = impacts.struck & (impacts.kind != NOBODY) & (impacts.kind != SMOKE)
    overlay = where_needed(_hit, struck.any(), terrain.overlay, terrain, impacts, struck, share=_SHARE)
    explodes = (impacts.kind == MISSILE) | (impacts.kind == GAUSS)
    now = terrain._replace(overlay=overlay)
    overlay = where_needed(_blast, explodes.any(), overlay, now, impacts, explodes, share=_BLAST_SHARE)
    half = scene.chassis.size / 2
    boxes = jnp.stack([mechs.position - half, mechs.position + half], 1)
    loose = draws >= scene.chassis.heavy_debris
    wrecks = terrain._replace(overlay=overlay), boxes, mechs.alive, died, loose
    return where_needed(_wreck, died.any(), overlay, *wrecks, share=_WRECK_SHARE)


def _hit(terrain: Terrain, impacts: Impacts, struck: jax.Array) -> Overlay:
    """Takes hit points from the voxels that projectiles struck."""
    amount = jnp.asarray(WEAPON.damage)[jnp.maximum(impacts.kind, 0)]
    return damage_cells(terrain, impacts.cell, amount, struck)


def _blast(terrain: Terrain, impacts: Impacts, explodes: jax.Array) -> Overlay:
    """Takes hit points from the voxels around explosions, one explosion after the other."""
    kind = jnp.maximum(impacts.kind, 0)
    radius = jnp.asarray(WEAPON.splash_radius)[kind]
    amount = jnp.asarray(WEAPON.damage * WEAPON.splash_scale)[kind]

    def one(carry):
        todo, overlay = carry
        index = todo.argmax()
        cells, near = _crater(impacts.point[index], radius[index])
        hurt = jnp.broadcast_to(amount[index], near.shape)
        overlay = damage_cells(terrain._replace(overlay=overlay), cells, hurt, near & todo[index])
        return todo.at[index].set(False), overlay

    return lax.while_loop(lambda carry: anywhere(carry[0].any()), one, (explodes, terrain.overlay))[1]


def _wreck(
    terrain: Terrain, boxes: jax.Array, alive: jax.Array, died: jax.Array, loose: jax.Array
) -> Overlay:
    """Leaves the wrecks of those who died where they stood."""

    def one(carry):
        todo, overlay = carry
        index = todo.argmax()
        low, high = boxes[index]
        overlay = fill_box(
            terrain._replace(overlay=overlay),
            low,
            high,
            boxes,
            alive,
            loose=loose[index],
            reach=_FOOTPRINT,
            where=todo[index],
        )
        return todo.at[index].set(False), overlay

    return lax.while_loop(lambda carry: anywhere(carry[0].any()), one, (died, terrain.overlay))[1]


def _crater(centre: jax.Array, radius: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cells `[K, 3]` around an explosion and whether their centres are within its radius."""
    steps = np.stack(np.meshgrid(*[np.arange(_BLAST, dtype=np.int32)] * 3, indexing="ij"), -1).reshape(-1, 3)
    cells = jnp.floor(centre - radius).astype(jnp.int32) + steps
    apart = cells + 0.5 - centre
    return cells, vectors.square(apart) <= radius * radius
