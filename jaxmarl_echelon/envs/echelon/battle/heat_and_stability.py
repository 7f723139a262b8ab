"""Timers, heat, terrain hazards and stability of mechs.

Reference: docs/reference/echelon.md 7.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.masks import select_rows
from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import EchelonParams, Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    FALL,
    LEGGED_STABILITY,
    MAX_STABILITY,
    SUBSTEP,
    TRIGGERS,
    VENT,
    ChassisTable,
)
from physics.voxels import DEBRIS_FIELD, LAVA, WATER

LAVA_HEAT, LAVA_DAMAGE = 40.0, 5.0
DEBRIS_HEAT, DEBRIS_DAMAGE = 20.0, 1.25
WATER_COOLING = 30.0
ECM_HEAT, ECCM_HEAT = 3.0, 2.0
VENTING = 2.0
REGENERATION, LEAST_REGENERATION = 10.0, 0.1
LEGGED_PENALTY, MOVING_PENALTY, SUPPRESSED_PENALTY = 0.5, 0.5, 0.75
MOVING_SPEED = 1.0
BASE_ACTIONS = 9
_ROUNDING = 1e-3


class MechCommands(NamedTuple):
    """Commands of the mechs for a decision.

    Attributes:
      base: `[M, 9]` in the order of `unit_tables.ACTIONS`, finite and in [-1, 1].
      triggers: `[M, 7]` bool; the mech has the weapon and its trigger is pulled.
    """

    base: jax.Array
    triggers: jax.Array


def parse_commands(commands: jax.Array, params: EchelonParams) -> MechCommands:
    """Converts commands `[M, 9 or more]` to orders; non-finite numbers count as 0."""
    base = commands[:, :BASE_ACTIONS]
    base = jnp.clip(jnp.where(jnp.isfinite(base), base, 0.0), -1.0, 1.0).astype(jnp.float32)
    trigger = jnp.asarray(TRIGGERS)[params.classes]
    pulled = jnp.take_along_axis(base, jnp.maximum(trigger, 0), axis=1) > 0
    return MechCommands(base, pulled & (trigger >= 0))


def is_shut_down(mechs: Mechs, chassis: ChassisTable) -> jax.Array:
    """Returns bool `[M]`: too hot to move, turn, fire or sense.

    Heat within 1e-3 of the capacity counts as above it, so that float32 sums which should end
    exactly there agree with float64 sums of the original (docs/reference/echelon.md 7).
    """
    return mechs.heat > chassis.heat_capacity - _ROUNDING


def is_legged(mechs: Mechs) -> jax.Array:
    """Returns bool `[M]`: the hit points of the legs are used up."""
    return mechs.leg_hp <= 0


def update_condition(
    mechs: Mechs, chassis: ChassisTable, orders: MechCommands, foot: jax.Array
) -> tuple[Mechs, jax.Array]:
    """Advances timers, heat, hazards and stability of living mechs by one substep.

    Args:
      mechs: the mechs.
      chassis: rows per mech.
      orders: their commands.
      foot: `[M]` uint8 material at their feet.

    Returns:
      the mechs, and the damage `[M]` by hazards, which is already subtracted from their hit points;
      mechs without hit points are not yet marked as dead.
    """
    counted = mechs.replace(
        suppressed=_down(mechs.suppressed), painted=_down(mechs.painted), cooldown=_down(mechs.cooldown)
    )
    burnt, damage = _hazards(counted, chassis, foot)
    steady = _stability(burnt)
    vented = (orders.base[:, VENT] > 0) & ~is_shut_down(steady, chassis)
    dissipated = chassis.dissipation * SUBSTEP * jnp.where(vented, 1.0 + VENTING, 1.0)
    cooled = steady.replace(heat=jnp.maximum(steady.heat - dissipated, 0.0))
    after = select_rows(mechs.alive, cooled, mechs)
    return after, jnp.where(mechs.alive, damage, 0.0)


def _down(timer: jax.Array) -> jax.Array:
    return jnp.maximum(timer - 1, 0)


def _hazards(mechs: Mechs, chassis: ChassisTable, foot: jax.Array) -> tuple[Mechs, jax.Array]:
    emitters = jnp.where(mechs.ecm, ECM_HEAT, 0.0) + jnp.where(mechs.eccm, ECCM_HEAT, 0.0)
    heat = mechs.heat + jnp.where(is_shut_down(mechs, chassis), 0.0, emitters) * SUBSTEP
    heat += jnp.where(foot == LAVA, LAVA_HEAT, jnp.where(foot == DEBRIS_FIELD, DEBRIS_HEAT, 0.0)) * SUBSTEP
    heat = jnp.where(foot == WATER, jnp.maximum(heat - WATER_COOLING * SUBSTEP, 0.0), heat)
    damage = (
        jnp.where(foot == LAVA, LAVA_DAMAGE, jnp.where(foot == DEBRIS_FIELD, DEBRIS_DAMAGE, 0.0)) * SUBSTEP
    )
    return mechs.replace(heat=heat, hp=mechs.hp - damage), damage


def _stability(mechs: Mechs) -> Mechs:
    """Updates falling, lying, getting up and regeneration of stability."""
    legged = is_legged(mechs)
    moving = vectors.squared_length(mechs.velocity) > MOVING_SPEED**2
    penalty = jnp.where(legged, LEGGED_PENALTY, 0.0) + jnp.where(moving, MOVING_PENALTY, 0.0)
    penalty += jnp.where(mechs.suppressed > 0, SUPPRESSED_PENALTY, 0.0)
    gain = REGENERATION * SUBSTEP * jnp.maximum(1.0 - penalty, LEAST_REGENERATION)
    regained = jnp.minimum(mechs.stability + gain, jnp.where(legged, LEGGED_STABILITY, MAX_STABILITY))

    lying = mechs.fallen > 0
    falls = ~lying & (mechs.stability <= 0)
    fallen = jnp.where(falls, FALL, _down(mechs.fallen))
    rises = lying & (fallen == 0)
    stability = jnp.where(lying | falls, mechs.stability, regained)
    return mechs.replace(
        fallen=fallen,
        stability=jnp.where(rises, MAX_STABILITY / 2, stability),
        velocity=jnp.where(falls[:, None], 0.0, mechs.velocity),
    )
