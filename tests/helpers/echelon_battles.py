"""Mechs, battles and episodes of Echelon made by hand, for tests."""

import jax
import numpy as np

from jaxmarl_echelon.envs.echelon.battle.state import (
    CLOUDS_PER_MECH,
    MESSAGE,
    NO_MECH,
    PROJECTILES_PER_MECH,
    Battle,
    EchelonParams,
    EchelonState,
    Mechs,
    Projectiles,
    Smoke,
    Tally,
)
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CHASSIS, ChassisTable
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank, stack_maps
from jaxmarl_echelon.envs.echelon.terrain.layout import make_map
from physics.voxels import DIRT, SOLID, empty_overlay

SIZE = (40, 40, 20)


def _placed(tree, changes):
    """The tree with some fields changed, as arrays of jax: made by NumPy, they need no programs."""
    changed = {name: np.asarray(value, getattr(tree, name).dtype) for name, value in changes.items()}
    return jax.device_put(tree.replace(**changed))


def chassis_of(classes) -> ChassisTable:
    """Rows of the chassis table, one per mech."""
    return jax.device_put(ChassisTable(*(np.asarray(column)[np.asarray(classes)] for column in CHASSIS)))


def make_mechs(position, classes, **changes) -> Mechs:
    """Sound mechs at rest that look along +x; `changes` replace single fields."""
    position, classes = np.asarray(position, np.float32), np.asarray(classes)
    size = len(classes)
    timer = np.zeros(size, np.int32)
    none = np.zeros(size, bool)
    mechs = Mechs(
        position=position,
        velocity=np.zeros((size, 3), np.float32),
        yaw=np.zeros(size, np.float32),
        hp=np.asarray(CHASSIS.hp[classes]),
        leg_hp=np.asarray(CHASSIS.leg_hp[classes]),
        heat=np.zeros(size, np.float32),
        stability=np.full(size, 100.0, np.float32),
        fallen=timer,
        suppressed=timer,
        painted=timer,
        painter=np.full(size, NO_MECH, np.int32),
        cooldown=np.zeros((size, 5), np.int32),
        focus=np.full(size, NO_MECH, np.int32),
        ecm=none,
        eccm=none,
        alive=~none,
        noise=np.zeros(size, np.float32),
    )
    return _placed(mechs, changes)


def quiet_tally(size: int, **changes) -> Tally:
    """A decision in which nothing happened, but for `changes`."""
    zero, count, none = np.zeros(size, np.float32), np.zeros(size, np.int32), np.zeros(size, bool)
    tally = Tally(
        dealt=zero,
        dealt_to_friends=zero,
        taken=zero,
        kills=count,
        assists=count,
        died=none,
        hit=none,
        hit_direction=np.zeros((size, 3), np.float32),
        shots=np.zeros((size, 7), np.int32),
        intercepted=count,
        hits=np.zeros((size, 7), np.int32),
    )
    return _placed(tally, changes)


def make_battle(mechs: Mechs, tally: Tally | None = None, map_index: int = 0, pages: int = 0) -> Battle:
    """A battle without projectiles and smoke on unchanged terrain of 40 x 40 x 20."""
    size = mechs.yaw.shape[0]
    shots, clouds = (size, PROJECTILES_PER_MECH), (size, CLOUDS_PER_MECH)
    battle = Battle(
        mechs=mechs,
        projectiles=Projectiles(
            position=np.zeros((*shots, 3), np.float32),
            velocity=np.zeros((*shots, 3), np.float32),
            age=np.zeros(shots, np.int32),
            kind=np.full(shots, NO_MECH, np.int32),
            target=np.full(shots, NO_MECH, np.int32),
        ),
        smoke=Smoke(np.zeros((*clouds, 3), np.float32), np.zeros(clouds, np.int32)),
        overlay=empty_overlay(SIZE[::-1], pages, 0),
        map_index=np.int32(map_index),
        tally=quiet_tally(size) if tally is None else tally,
    )
    return jax.device_put(battle)


def make_state(battle: Battle, **changes) -> EchelonState:
    """An episode at its start, but for `changes`."""
    size = battle.mechs.yaw.shape[0]
    state = EchelonState(
        battle=battle,
        decision=np.int32(0),
        score=np.zeros(2, np.float32),
        messages=np.zeros((size, MESSAGE), np.float32),
        contacts=np.full((size, 5), NO_MECH, np.int32),
        sort=np.zeros(size, np.int32),
        hostile_only=np.zeros(size, bool),
        waypoint=np.full((size, 2), -1.0, np.float32),
        outcome=np.int32(-1),
        ending=np.int32(-1),
    )
    return _placed(state, changes)


def make_params(classes, packs=None, **changes) -> EchelonParams:
    """Parameters of an episode on one map without any jitter, but for `changes`."""
    size = len(classes)
    params = EchelonParams(
        classes=np.asarray(classes, np.int32),
        pack=np.asarray([0] * size if packs is None else packs, np.int32),
        map_weights=np.ones(1, np.float32),
        reward={},
        fire_probability=np.ones(2, np.float32),
        assist=np.zeros(2, np.float32),
        full_observation=np.bool_(True),
        gravity=np.float32(9.81),
        max_decisions=np.int32(240),
        zone_seconds=np.float32(30.0),
        spawn_jitter=np.float32(0.0),
        yaw_jitter=np.float32(0.0),
    )
    return _placed(params, changes)


def flat_bank(zones=((20.0, 20.0, 5.0),), boxes=(), size=SIZE) -> TerrainBank:
    """Flat terrains of 40 x 40 x 20, one per zone, with solid boxes `(low, high)` of cells x, y, z."""
    voxels = np.zeros(size[::-1], np.uint8)
    voxels[0] = DIRT
    for (x0, y0, z0), (x1, y1, z1) in boxes:
        voxels[z0:z1, y0:y1, x0:x1] = SOLID
    return stack_maps([make_map(voxels, zone, team_size=5) for zone in zones])
