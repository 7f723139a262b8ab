"""Frames: compact snapshots of a battle, recorded at every decision."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import is_shut_down
from jaxmarl_echelon.envs.echelon.battle.surroundings import chassis_of

# Lengths are whole numbers of 1/32 voxel, up to 1024 voxels, more than a map has; yaw is in 1/256 of a turn.
LENGTH_UNIT = 1 / 32
YAW_UNIT = 2 * np.pi / 256

STATUS_FLAGS = ("alive", "fallen", "shutdown", "legged", "painted", "suppressed", "ecm", "eccm", "hit")


class BattleFrame(struct.PyTreeNode):
    """Snapshot of a battle of M mechs, blue first, in small integer types.

    Attributes:
      position: `[M, 3]` int16 centres, in `LENGTH_UNIT`.
      yaw: `[M]` uint8, in `YAW_UNIT`.
      hp: `[M]` uint8 percent of the body's hit points, rounded up.
      heat: `[M]` uint8 percent of the capacity, at most 255; above 100 a mech is shut down.
      status: `[M]` uint16, bit i for `STATUS[i]`.
      classes: `[M]` uint8 index into `unit_tables.CLASSES`.
      pack: `[M]` uint8.
      shots: `[M]` uint8, bit i if `tables.WEAPONS[i]` was fired during the last decision.
      painter: `[M]` int8 mech that painted this one last, or -1.
      kills: `[M]` uint8 enemies killed during the last decision.
      dealt: `[M]` uint16 damage dealt to enemies during the last decision.
      projectile: `[M, P, 3]` int16 positions, in `LENGTH_UNIT`.
      projectile_kind: `[M, P]` int8 index into `unit_tables.WEAPONS`, or -1.
      smoke: `[M, C, 3]` int16 centres, in `LENGTH_UNIT`.
      smoke_left: `[M, C]` uint8 substeps until the cloud vanishes.
      score: `[2]` float32 seconds that blue and red have held the zone.
      zone_seconds: float32 winning score, possibly infinite.
      map_index: int32.
      decision: int16 decisions taken.
      ending: int8 index into `results.ENDINGS`, or -1 while the episode runs.
    """

    position: jax.Array
    yaw: jax.Array
    hp: jax.Array
    heat: jax.Array
    status: jax.Array
    classes: jax.Array
    pack: jax.Array
    shots: jax.Array
    painter: jax.Array
    kills: jax.Array
    dealt: jax.Array
    projectile: jax.Array
    projectile_kind: jax.Array
    smoke: jax.Array
    smoke_left: jax.Array
    score: jax.Array
    zone_seconds: jax.Array
    map_index: jax.Array
    decision: jax.Array
    ending: jax.Array


def take_battle_snapshot(state, params, time=None) -> BattleFrame:
    """Returns the frame of a state; pure, for use inside jit."""
    del time
    battle, mechs, tally = state.battle, state.battle.mechs, state.battle.tally
    chassis = chassis_of(params)
    hp, heat = mechs.hp / chassis.hp, mechs.heat / chassis.heat_capacity
    flags = dict(
        alive=mechs.alive,
        fallen=mechs.fallen > 0,
        shutdown=is_shut_down(mechs, chassis),
        legged=mechs.leg_hp <= 0,
        painted=mechs.painted > 0,
        suppressed=mechs.suppressed > 0,
        ecm=mechs.ecm,
        eccm=mechs.eccm,
        hit=tally.hit,
    )
    return BattleFrame(
        position=_lengths(mechs.position),
        yaw=jnp.mod(jnp.round(mechs.yaw / YAW_UNIT), 256).astype(jnp.uint8),
        hp=_whole(jnp.ceil(100 * hp), jnp.uint8),
        heat=_whole(jnp.ceil(100 * heat), jnp.uint8),
        status=_bits([flags[name] for name in STATUS_FLAGS], jnp.uint16),
        classes=params.classes.astype(jnp.uint8),
        pack=params.pack.astype(jnp.uint8),
        shots=_bits(list(jnp.moveaxis(tally.shots > 0, -1, 0)), jnp.uint8),
        painter=mechs.painter.astype(jnp.int8),
        kills=_whole(tally.kills, jnp.uint8),
        dealt=_whole(jnp.round(tally.dealt), jnp.uint16),
        projectile=_lengths(battle.projectiles.position),
        projectile_kind=battle.projectiles.kind.astype(jnp.int8),
        smoke=_lengths(battle.smoke.position),
        smoke_left=_whole(battle.smoke.left, jnp.uint8),
        score=state.score.astype(jnp.float32),
        zone_seconds=jnp.asarray(params.zone_seconds, jnp.float32),
        map_index=battle.map_index.astype(jnp.int32),
        decision=state.decision.astype(jnp.int16),
        ending=state.ending.astype(jnp.int8),
    )


def _lengths(x: jax.Array) -> jax.Array:
    return jnp.clip(jnp.round(x / LENGTH_UNIT), -32768, 32767).astype(jnp.int16)


def _whole(x: jax.Array, dtype) -> jax.Array:
    return jnp.clip(x, 0, jnp.iinfo(dtype).max).astype(dtype)


def _bits(flags: list[jax.Array], dtype) -> jax.Array:
    return sum(flag.astype(dtype) << index for index, flag in enumerate(flags))


def has_status(frames: BattleFrame, name: str) -> np.ndarray:
    """Returns whether mechs have the status `name`, bool in the shape of `frames.status`."""
    return (frames.status >> STATUS_FLAGS.index(name)) & 1 == 1
