"""Damage to mechs: effects of all weapons of a phase are summed, then applied together.

Reference: docs/reference/echelon.md 8.2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import NO_MECH, HitLog, Mechs, Tally
from jaxmarl_echelon.envs.echelon.battle.surroundings import Scene
from jaxmarl_echelon.envs.echelon.battle.unit_tables import PAINT, SUPPRESSION, WEAPONS

REAR, REAR_FACTOR = 0.707, 1.5
PAINT_BONUS = 0.1
LEG_HEIGHT, LEG_CHANCE, LEG_SHARE = 0.3, 0.1, 0.5


class Effects(NamedTuple):
    """Summed effects of the weapons of a phase.

    Attributes:
      damage: `[M, M]` damage to the body, by shooter and target.
      legs: `[M]` damage to the legs.
      stability: `[M]` stability lost.
      heat: `[M]` heat added to targets.
      suppressor: `[M]` int32 mech whose autocannon hit it (the highest index of several), or -1.
      painter: `[M]` int32 mech that paints it, or -1.
      assists: `[M]` int32 hits by others on targets that this mech has painted.
      hits: `[M, 7]` int32 enemies that a shooter hit, per weapon.
    """

    damage: jax.Array
    legs: jax.Array
    stability: jax.Array
    heat: jax.Array
    suppressor: jax.Array
    painter: jax.Array
    assists: jax.Array
    hits: jax.Array


def no_effects(mechs: int) -> Effects:
    """Returns neutral effects for `mechs` mechs."""
    zeros, whole = jnp.zeros(mechs), jnp.zeros(mechs, jnp.int32)
    return Effects(
        damage=jnp.zeros((mechs, mechs)),
        legs=zeros,
        stability=zeros,
        heat=zeros,
        suppressor=jnp.full(mechs, NO_MECH, jnp.int32),
        painter=jnp.full(mechs, NO_MECH, jnp.int32),
        assists=whole,
        hits=jnp.zeros((mechs, len(WEAPONS)), jnp.int32),
    )


def no_tally(mechs: int, logged: bool = False) -> Tally:
    """Returns a tally of zeros for `mechs` mechs, with a hit log if `logged`."""
    zeros, whole, never = jnp.zeros(mechs), jnp.zeros(mechs, jnp.int32), jnp.zeros(mechs, bool)
    weapons = jnp.zeros((mechs, len(WEAPONS)), jnp.int32)
    return Tally(
        dealt=zeros,
        dealt_to_friends=zeros,
        taken=zeros,
        kills=whole,
        assists=whole,
        died=never,
        hit=never,
        hit_direction=jnp.zeros((mechs, 3)),
        shots=weapons,
        hits=weapons,
        intercepted=whole,
        log=HitLog(zeros, never, jnp.full(mechs, NO_MECH, jnp.int32)) if logged else None,
    )


def add_effects(first: Effects, second: Effects) -> Effects:
    """Adds two sets of effects; of two painters of a mech the one with the higher index counts as last."""
    return Effects(
        *(a + b for a, b in zip(first[:4], second[:4], strict=True)),
        suppressor=jnp.maximum(first.suppressor, second.suppressor),
        painter=jnp.maximum(first.painter, second.painter),
        assists=first.assists + second.assists,
        hits=first.hits + second.hits,
    )


def apply_effects(mechs: Mechs, tally: Tally, effects: Effects, scene: Scene) -> tuple[Mechs, Tally]:
    """Applies effects to living mechs; mechs without hit points die.

    A kill is credited to the enemy that dealt the most damage in the phase.
    """
    alive = mechs.alive
    damage = jnp.where(alive, effects.damage, 0.0)
    taken = vectors.sum_pairwise(damage, 0)
    painted = alive & (effects.painter != NO_MECH)
    hurt = mechs.replace(
        hp=mechs.hp - taken,
        leg_hp=mechs.leg_hp - jnp.where(alive, effects.legs, 0.0),
        heat=mechs.heat + jnp.where(alive, effects.heat, 0.0),
        stability=jnp.maximum(mechs.stability - jnp.where(alive, effects.stability, 0.0), 0.0),
        suppressed=jnp.where(alive & (effects.suppressor != NO_MECH), SUPPRESSION, mechs.suppressed),
        painted=jnp.where(painted, PAINT, mechs.painted),
        painter=jnp.where(painted, effects.painter, mechs.painter),
    )
    counted = _count(tally, hurt, damage, taken, effects, scene)
    return mark_dead(hurt, counted)


def mark_dead(mechs: Mechs, tally: Tally) -> tuple[Mechs, Tally]:
    """Marks mechs without hit points as dead."""
    dies = mechs.alive & (mechs.hp <= 0)
    dead = mechs.replace(
        alive=mechs.alive & ~dies,
        velocity=jnp.where(dies[:, None], 0.0, mechs.velocity),
        noise=jnp.where(dies, 0.0, mechs.noise),
    )
    return dead, tally.replace(died=tally.died | dies)


def has_paint_bonus(mechs: Mechs, scene: Scene) -> jax.Array:
    """Returns bool `[M, M]`: the shooter's pack has painted the target, which gives a damage bonus."""
    known = (mechs.painted > 0) & (mechs.painter != NO_MECH)
    return (scene.packmates[jnp.maximum(mechs.painter, 0)] & known[:, None]).T


def rear_damage_factor(heading: jax.Array, direction: jax.Array) -> jax.Array:
    """Returns the damage factor `[...]`: `REAR_FACTOR` for attacks along `direction` from behind, else 1.

    Args:
      heading: `[..., 2]` unit vectors, headings of the targets.
      direction: `[..., 2 or 3]` of the attack, of any length.
    """
    planar = direction[..., :2]
    along = vectors.dot(heading, planar)
    length = vectors.vector_length(planar)
    return jnp.where((length > 1e-6) & (along > REAR * length), REAR_FACTOR, 1.0)


def heading_vectors(mechs: Mechs) -> jax.Array:
    """Returns the headings of the mechs as unit vectors `[M, 2]`."""
    return jnp.stack([jnp.cos(mechs.yaw), jnp.sin(mechs.yaw)], -1)


def _count(tally, mechs, damage, taken, effects, scene):
    size = damage.shape[0]
    by_enemies = jnp.where(scene.enemies, damage, 0.0)
    dealt = vectors.sum_pairwise(by_enemies, 1)
    killed = mechs.alive & (mechs.hp <= 0) & (by_enemies.max(0) > 0)
    killer = jnp.where(killed, vectors.argmin_and_min(-by_enemies, 0)[0], NO_MECH)
    attacker = vectors.argmin_and_min(-damage, 0)[0]
    towards = mechs.position[attacker] - mechs.position
    hit = taken > 0
    return tally.replace(
        dealt=tally.dealt + dealt,
        dealt_to_friends=tally.dealt_to_friends + (vectors.sum_pairwise(damage, 1) - dealt),
        taken=tally.taken + taken,
        kills=tally.kills + (killer == jnp.arange(size)[:, None]).sum(1, dtype=jnp.int32),
        assists=tally.assists + effects.assists,
        hit=tally.hit | hit,
        hit_direction=jnp.where(hit[:, None], vectors.unit_vectors(towards), tally.hit_direction),
        hits=tally.hits + effects.hits,
        log=None if tally.log is None else _logged(tally.log, mechs, by_enemies, effects),
    )


def _logged(log: HitLog, mechs: Mechs, by_enemies: jax.Array, effects: Effects) -> HitLog:
    """Returns the log with the damage `[M, M]` between enemies in this phase added."""
    towards = vectors.unit_vectors((mechs.position - mechs.position[:, None])[..., :2])
    enfilade = 0.5 * (1.0 + vectors.dot(towards, heading_vectors(mechs)[None]))
    hit = mechs.alive & (effects.suppressor != NO_MECH)
    return HitLog(
        rear=log.rear + vectors.sum_pairwise(by_enemies * enfilade, 1),
        struck=log.struck | (by_enemies > 0).any(0),
        suppressor=jnp.where(hit, effects.suppressor, log.suppressor),
    )
