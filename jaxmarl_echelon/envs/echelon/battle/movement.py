"""Movement: rotation, throttle and jets, then collisions with terrain and mechs, one mech after another.

Reference: docs/reference/echelon.md 4.
"""

from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import MechCommands, is_legged, is_shut_down
from jaxmarl_echelon.envs.echelon.battle.state import Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    CHASSIS,
    FORWARD,
    STRAFE,
    SUBSTEP,
    VERTICAL,
    YAW_RATE,
    ChassisTable,
)
from physics.voxels import Terrain, blocking_columns, layer_bits

DAMPING = 0.98
LEGGED_SPEED, LEGGED_JET, WATER_SPEED = 0.4, 0.5, 0.6
STEP_UP, STEP_UP_SPEED = 1.1, 1.0


class NearbyColumns(NamedTuple):
    """Terrain columns around each mech, within its reach during one decision.

    Attributes:
      corner: `[M, 2]` int32 x and y of the first column.
      solid: `[M, S, S]` uint32 columns along y and x: cells that block movement; 0 outside the map.
    """

    corner: jax.Array
    solid: jax.Array


class _Walker(NamedTuple):
    """Inputs to the movement of one mech; `[M, ...]` in the order of moving.

    Attributes:
      velocity: `[3]`.
      half: `[3]` half of its size.
      words: `[2, 2]` uint32 blocking cells at its present and at its desired x and y.
      present: bool; alive.
    """

    velocity: jax.Array
    half: jax.Array
    words: jax.Array
    present: jax.Array


def ground_around(terrain: Terrain, position: jax.Array, substeps: int) -> NearbyColumns:
    """Looks up the columns that mechs at `position` `[M, 3]` can reach within `substeps`."""
    farthest = np.max(CHASSIS.size[:, :2].max(1) / 2 + CHASSIS.max_speed * SUBSTEP * substeps)
    reach = ceil(float(farthest))
    corner = jnp.floor(position[:, :2]).astype(jnp.int32) - reach
    return NearbyColumns(corner, _solid_from(terrain, corner, 2 * reach + 1))


def look_up_columns_again(solid: jax.Array, corner: jax.Array, terrain: Terrain) -> jax.Array:
    """Returns `NearbyColumns.solid` of a changed terrain, for the same corners."""
    return _solid_from(terrain, corner, solid.shape[-1])


def accelerate_mechs(
    mechs: Mechs, chassis: ChassisTable, orders: MechCommands, wading: jax.Array, gravity: jax.Array
) -> Mechs:
    """Rotates the mechs and sets their velocities; `wading` `[M]` bool marks mechs in water."""
    down, fallen = is_shut_down(mechs, chassis), mechs.fallen > 0
    base = jnp.where((mechs.alive & ~down & ~fallen)[:, None], orders.base, 0.0)
    yaw = mechs.yaw + base[:, YAW_RATE] * chassis.yaw_rate * SUBSTEP
    yaw = yaw - 2 * np.pi * jnp.floor((yaw + np.pi) / (2 * np.pi))
    forward, left = base[:, FORWARD], base[:, STRAFE]
    throttle = jnp.maximum(jnp.sqrt(forward * forward + left * left), 1.0)
    legged = is_legged(mechs)
    speed = chassis.max_speed * jnp.where(legged, LEGGED_SPEED, 1.0) * jnp.where(wading, WATER_SPEED, 1.0)
    speed = speed / throttle
    cos, sin = jnp.cos(yaw), jnp.sin(yaw)
    planar = jnp.stack([cos * forward - sin * left, sin * forward + cos * left], -1) * speed[:, None]
    planar = jnp.where(down[:, None], mechs.velocity[:, :2], planar)
    jet = base[:, VERTICAL] * chassis.jet * jnp.where(legged, LEGGED_JET, 1.0)
    vertical = mechs.velocity[:, 2] + (jet - gravity) * SUBSTEP
    velocity = jnp.concatenate([planar, vertical[:, None]], -1) * DAMPING
    alive = mechs.alive
    return mechs.replace(
        yaw=jnp.where(alive, yaw, mechs.yaw), velocity=jnp.where(alive[:, None], velocity, 0.0)
    )


def move_mechs(
    mechs: Mechs,
    chassis: ChassisTable,
    ground: NearbyColumns,
    priority: jax.Array,
    size: tuple[int, int],
    original: bool,
) -> Mechs:
    """Moves the mechs one after another, along x, then y, then z.

    An obstacle stops a mech along that axis; a low step of the terrain raises the mech instead. Mechs
    that already overlap do not block each other, so that they can separate (with `original` they do).

    Args:
      mechs: the mechs with their desired velocities.
      chassis: rows per mech.
      ground: columns around them.
      priority: `[M]` integers; mechs move in ascending order, ties by index.
      size: of the map along x and y.
      original: overlapping mechs block each other, and mechs may step up onto other mechs.
    """
    earlier = np.tril(np.ones((priority.size,) * 2, bool), -1)
    rank = ((priority[:, None] > priority) | ((priority[:, None] == priority) & earlier)).sum(-1)
    order = jnp.zeros_like(rank).at[rank].set(jnp.arange(rank.size), unique_indices=True)
    half = chassis.size / 2
    walkers = _Walker(mechs.velocity, half, _obstacles(mechs, half, ground), mechs.alive)
    walkers = jax.tree.map(lambda v: v[order], walkers)
    limit = jnp.asarray(size, jnp.float32)

    def turn(position, inputs):
        index, walker = inputs
        moved, velocity = _walk(index, walker, position, walkers, limit, original)
        return position.at[index].set(moved), (moved, velocity)

    numbers = jnp.arange(rank.size)
    _, (position, velocity) = lax.scan(turn, mechs.position[order], (numbers, walkers))
    return mechs.replace(position=position[rank], velocity=velocity[rank])


def movement_noise(mechs: Mechs, chassis: ChassisTable) -> jax.Array:
    """Returns the loudness `[M]` of moving mechs; 0 for fallen and dead ones."""
    speed = vectors.vector_length(mechs.velocity)
    return jnp.where(mechs.alive & (mechs.fallen == 0), speed * chassis.noise, 0.0)


def _solid_from(terrain: Terrain, corner: jax.Array, side: int) -> jax.Array:
    span = np.arange(side, dtype=np.int32)
    x, y = corner[:, 0, None, None] + span, corner[:, 1, None, None] + span[:, None]
    return blocking_columns(terrain, *jnp.broadcast_arrays(x, y))[0]


def _obstacles(mechs: Mechs, half: jax.Array, ground: NearbyColumns) -> jax.Array:
    """Returns blocking cells `[M, 2, 2]` of the columns under a mech, at its present and next x and y.

    They do not depend on the mech's height, so the sequential part only compares words.
    """
    here = mechs.position[:, :2]
    centre = jnp.stack([here, here + mechs.velocity[:, :2] * SUBSTEP], 1)
    low, high = jnp.floor(centre - half[:, None, :2]), jnp.ceil(centre + half[:, None, :2])
    low, high = (v.astype(jnp.int32) - ground.corner[:, None] for v in (low, high))
    span = np.arange(ground.solid.shape[-1], dtype=np.int32)
    covered = (span >= low[..., None]) & (span < high[..., None])
    rows = jnp.where(covered[:, :, 0, None], ground.solid[:, None], 0)
    rows = lax.reduce(rows, np.uint32(0), lax.bitwise_or, (3,))
    words = jnp.where(covered[:, None, :, 1], rows[:, :, None], 0)
    return lax.reduce(words, np.uint32(0), lax.bitwise_or, (3,))


def _walk(index, walker, position, walkers, limit, original):
    """Moves one mech; returns its position and velocity `[3]`."""
    start, half, velocity = position[index], walker.half, walker.velocity
    there = start + velocity * SUBSTEP
    reach = half + walkers.half
    others = walkers.present & (jnp.arange(position.shape[0]) != index)
    if not original:
        others &= ~(jnp.abs(position - start) < reach).all(-1)

    def near(axis, value):
        return jnp.abs(position[:, axis] - value) < reach[:, axis]

    def rock(word, z):
        low, high = z - half[2], z + half[2]
        body = layer_bits(jnp.floor(low).astype(jnp.int32), jnp.ceil(high).astype(jnp.int32))
        return (low < 0) | (word & body != 0)

    def slide(word, column, z):
        """Returns whether the move is possible, and the height after it."""
        level = (column & near(2, z)).any()
        raised = z + STEP_UP
        free = ~(rock(word, z) | level)
        steps = (
            (jnp.abs(velocity[2]) < STEP_UP_SPEED) & ~rock(word, raised) & ~(column & near(2, raised)).any()
        )
        steps &= True if original else ~level
        return free | steps, jnp.where(free | ~steps, z, raised)

    x_near = near(0, start[0]), near(0, there[0])
    y_near = near(1, start[1]), near(1, there[1])
    goes_x, z = slide(walker.words[1, 0], others & x_near[1] & y_near[0], start[2])
    x_now = jnp.where(goes_x, x_near[1], x_near[0])
    words = jnp.where(goes_x, walker.words[1], walker.words[0])
    goes_y, z = slide(words[1], others & x_now & y_near[1], z)
    column = others & x_now & jnp.where(goes_y, y_near[1], y_near[0])
    falls_to = z + velocity[2] * SUBSTEP
    word = jnp.where(goes_y, words[1], words[0])
    goes_z = ~(rock(word, falls_to) | (column & near(2, falls_to)).any())

    goes = jnp.stack([goes_x, goes_y, goes_z])
    end = jnp.where(goes, there, start).at[2].set(jnp.where(goes_z, falls_to, z))
    planar = jnp.clip(end[:2], half[:2], limit - half[:2])
    end = jnp.concatenate([planar, jnp.maximum(end[2:], half[2:])])
    end = jnp.where(walker.present, end, start)
    return end, jnp.where(walker.present & goes, velocity, 0.0)
