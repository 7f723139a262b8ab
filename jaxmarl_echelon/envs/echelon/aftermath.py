"""What a decision leaves behind in the terrain: craters, broken walls and wrecks.

Terrain changes when a decision ends, not within it, so that everything that looks at it during the
substeps sees the same world. Source: spec sections 1.1 and 3.3.
"""

from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarl_echelon.envs.echelon.projectiles import Impacts
from jaxmarl_echelon.envs.echelon.scene import Scene
from jaxmarl_echelon.envs.echelon.sparse import where_needed
from jaxmarl_echelon.envs.echelon.tables import CHASSIS, GAUSS, MISSILE, SMOKE, WEAPON
from jaxmarl_echelon.envs.echelon.types import NOBODY, Mechs
from physics.voxels import Overlay, Terrain, damage_cells, fill_box

_SHARE = 1 / 8
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
    loose = draws >= scene.chassis.heavy_debris
    needed = died.any() | ((impacts.kind != NOBODY) & (impacts.kind != SMOKE)).any()
    half = scene.chassis.size / 2
    boxes = jnp.stack([mechs.position - half, mechs.position + half], 1)
    operands = (terrain, impacts, boxes, mechs.alive, died, loose)
    return where_needed(_change, needed, terrain.overlay, *operands, share=_SHARE)


def _change(terrain: Terrain, impacts: Impacts, boxes, alive, died, loose) -> Overlay:
    impacts = Impacts(*(v.reshape(-1, *v.shape[2:]) for v in impacts))
    kind = jnp.maximum(impacts.kind, 0)
    amount = jnp.asarray(WEAPON.damage)[kind]
    overlay = damage_cells(terrain, impacts.cell, amount, impacts.struck & (impacts.kind != NOBODY))

    def blast(carry):
        todo, overlay = carry
        index = todo.argmax()
        cells, near = _crater(impacts.point[index], jnp.asarray(WEAPON.splash_radius)[kind[index]])
        hurt = jnp.full(near.shape, jnp.asarray(WEAPON.damage * WEAPON.splash_scale)[kind[index]])
        overlay = damage_cells(terrain._replace(overlay=overlay), cells, hurt, near & todo[index])
        return todo.at[index].set(False), overlay

    explosions = (impacts.kind == MISSILE) | (impacts.kind == GAUSS)
    _, overlay = lax.while_loop(lambda carry: carry[0].any(), blast, (explosions, overlay))

    def wreck(carry):
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

    return lax.while_loop(lambda carry: carry[0].any(), wreck, (died, overlay))[1]


def _crater(centre: jax.Array, radius: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cells `[K, 3]` around an explosion and whether their centres are within its radius."""
    steps = np.stack(np.meshgrid(*[np.arange(_BLAST, dtype=np.int32)] * 3, indexing="ij"), -1).reshape(-1, 3)
    cells = jnp.floor(centre - radius).astype(jnp.int32) + steps
    apart = cells + 0.5 - centre
    return cells, (apart * apart).sum(-1) <= radius * radius
