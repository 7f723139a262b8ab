"""Mechs, battles and episodes of Echelon made by hand, for tests."""

import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.tables import CHASSIS, ChassisTable
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank, bank_of
from jaxmarl_echelon.envs.echelon.terrain.layout import layout_from
from jaxmarl_echelon.envs.echelon.types import (
    CLOUDS_PER_MECH,
    MESSAGE,
    NOBODY,
    PROJECTILES_PER_MECH,
    Battle,
    EchelonParams,
    EchelonState,
    Mechs,
    Projectiles,
    Smoke,
    Tally,
)
from physics.voxels import DIRT, SOLID, no_overlay

SIZE = (40, 40, 20)


def chassis_of(classes) -> ChassisTable:
    """Rows of the chassis table, one per mech."""
    return ChassisTable(*(jnp.asarray(column)[jnp.asarray(classes)] for column in CHASSIS))


def make_mechs(position, classes, **changes) -> Mechs:
    """Sound mechs at rest that look along +x; `changes` replace single fields."""
    position, classes = jnp.asarray(position, jnp.float32), np.asarray(classes)
    size = len(classes)
    timer = jnp.zeros(size, jnp.int32)
    none = jnp.zeros(size, bool)
    mechs = Mechs(
        position=position,
        velocity=jnp.zeros((size, 3)),
        yaw=jnp.zeros(size),
        hp=jnp.asarray(CHASSIS.hp[classes]),
        leg_hp=jnp.asarray(CHASSIS.leg_hp[classes]),
        heat=jnp.zeros(size),
        stability=jnp.full(size, 100.0),
        fallen=timer,
        suppressed=timer,
        painted=timer,
        painter=jnp.full(size, NOBODY, jnp.int32),
        cooldown=jnp.zeros((size, 5), jnp.int32),
        focus=jnp.full(size, NOBODY, jnp.int32),
        ecm=none,
        eccm=none,
        alive=~none,
        noise=jnp.zeros(size),
    )
    return mechs.replace(
        **{name: jnp.asarray(value, getattr(mechs, name).dtype) for name, value in changes.items()}
    )


def quiet_tally(size: int, **changes) -> Tally:
    """A decision in which nothing happened, but for `changes`."""
    zero, count, none = jnp.zeros(size), jnp.zeros(size, jnp.int32), jnp.zeros(size, bool)
    tally = Tally(
        dealt=zero,
        dealt_to_friends=zero,
        taken=zero,
        kills=count,
        assists=count,
        died=none,
        hit=none,
        hit_direction=jnp.zeros((size, 3)),
        shots=jnp.zeros((size, 7), jnp.int32),
        intercepted=count,
        hits=jnp.zeros((size, 7), jnp.int32),
    )
    return tally.replace(
        **{name: jnp.asarray(value, getattr(tally, name).dtype) for name, value in changes.items()}
    )


def make_battle(mechs: Mechs, tally: Tally | None = None, map_index: int = 0, pages: int = 0) -> Battle:
    """A battle without projectiles and smoke on unchanged terrain of 40 x 40 x 20."""
    size = mechs.yaw.shape[0]
    shots, clouds = (size, PROJECTILES_PER_MECH), (size, CLOUDS_PER_MECH)
    return Battle(
        mechs=mechs,
        projectiles=Projectiles(
            position=jnp.zeros((*shots, 3)),
            velocity=jnp.zeros((*shots, 3)),
            age=jnp.zeros(shots, jnp.int32),
            kind=jnp.full(shots, NOBODY, jnp.int32),
            target=jnp.full(shots, NOBODY, jnp.int32),
        ),
        smoke=Smoke(jnp.zeros((*clouds, 3)), jnp.zeros(clouds, jnp.int32)),
        overlay=no_overlay(SIZE[::-1], pages, 0),
        map_index=jnp.int32(map_index),
        tally=quiet_tally(size) if tally is None else tally,
    )


def make_state(battle: Battle, **changes) -> EchelonState:
    """An episode at its start, but for `changes`."""
    size = battle.mechs.yaw.shape[0]
    state = EchelonState(
        battle=battle,
        decision=jnp.int32(0),
        score=jnp.zeros(2),
        messages=jnp.zeros((size, MESSAGE)),
        contacts=jnp.full((size, 5), NOBODY, jnp.int32),
        sort=jnp.zeros(size, jnp.int32),
        hostile_only=jnp.zeros(size, bool),
        waypoint=jnp.zeros((0, 2)),
        outcome=jnp.int32(-1),
        ending=jnp.int32(-1),
    )
    return state.replace(
        **{name: jnp.asarray(value, getattr(state, name).dtype) for name, value in changes.items()}
    )


def make_params(classes, packs=None, **changes) -> EchelonParams:
    """Parameters of an episode on one map without any jitter, but for `changes`."""
    size = len(classes)
    params = EchelonParams(
        classes=jnp.asarray(classes, jnp.int32),
        pack=jnp.asarray([0] * size if packs is None else packs, jnp.int32),
        map_weights=jnp.ones(1),
        reward={},
        fire_probability=jnp.ones(2),
        assist=jnp.zeros(2),
        full_observation=jnp.bool_(True),
        gravity=jnp.float32(9.81),
        max_decisions=jnp.int32(240),
        zone_seconds=jnp.float32(30.0),
        spawn_jitter=jnp.float32(0.0),
        yaw_jitter=jnp.float32(0.0),
    )
    return params.replace(
        **{name: jnp.asarray(value, getattr(params, name).dtype) for name, value in changes.items()}
    )


def flat_bank(zones=((20.0, 20.0, 5.0),), boxes=(), size=SIZE) -> TerrainBank:
    """Flat terrains of 40 x 40 x 20, one per zone, with solid boxes `(low, high)` of cells x, y, z."""
    voxels = np.zeros(size[::-1], np.uint8)
    voxels[0] = DIRT
    for (x0, y0, z0), (x1, y1, z1) in boxes:
        voxels[z0:z1, y0:y1, x0:x1] = SOLID
    return bank_of([layout_from(voxels, zone, team_size=5) for zone in zones])
