"""Scripted opponent that moves to the zone and shoots at the nearest enemy.

It reads the whole state. Only cannons, and missiles at painted mechs, are fired without a clear line of
sight. It uses neither jets nor smoke nor path planning. Reference: docs/reference/echelon.md 14.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.envs.echelon import commands
from jaxmarl_echelon.envs.echelon import zone as zone_lib
from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    ACTIONS,
    AUTOCANNON,
    CHASSIS,
    FLAMER,
    FORWARD,
    GAUSS,
    HEAVY,
    LASER,
    MISSILE,
    MISSILE_SIGHT_RANGE,
    PAINTER,
    PRIMARY,
    SCOUT,
    SECONDARY,
    SMOKE,
    SPECIAL,
    STRAFE,
    TERTIARY,
    TRIGGERS,
    VENT,
    WEAPON,
    WEAPONS,
    YAW_RATE,
)
from jaxmarl_echelon.envs.echelon.battle_interface import BattleInterface
from physics.angles import wrap_angle_by_rounding
from physics.line_of_sight import is_sight_clear, passes_smoke_cloud
from physics.voxels import Terrain

TOO_CLOSE = 5.5
COHESION_GAP, COHESION_PEACE = 15.0, 20.0
STUCK_STEP, STUCK_PATIENCE = 0.2, 10
# Decisions of an escape, counted down: a pause, three backwards, four sideways, a pause.
ESCAPE, BACKWARDS, SIDEWAYS = 9, (6, 8), (2, 5)
VENT_HEAT, ECM_HEAT = 0.75, 0.7
ECM, ECCM = 0.25, 0.75
# A spared mech is hit again above this stability, or in the last substeps of its suppression.
STEADY, LAPSE = 60.0, 4
FULL_TURN = np.pi / 3.0
# Largest bearing error at which each weapon is fired, rad.
_AIM = np.zeros(len(WEAPONS), np.float32)
_AIM[[LASER, FLAMER, MISSILE, GAUSS, AUTOCANNON, PAINTER]] = np.radians([60, 60, 90, 30, 30, 30])
# Numbers that act above 0. Off is -1, as far from the threshold as on is: means of imitators tell both apart.
_SWITCHES = np.array([PRIMARY, VENT, SECONDARY, TERTIARY, SPECIAL])
_NEEDS_SIGHT = np.isin(np.arange(len(WEAPONS)), (LASER, FLAMER, PAINTER))


class HeuristicMemory(struct.PyTreeNode):
    """Memory of a team's mechs, for detecting and leaving positions in which they are stuck.

    Attributes:
      position: `[A, 3]` at the last decision.
      still: `[A]` int32 counter: up by 1 per decision without movement, down by 1 with movement.
      escape: `[A]` int32 remaining decisions of the escape manoeuvre, this one included.
      side: `[A]` 1 to step aside to the left, -1 to the right.
    """

    position: jax.Array
    still: jax.Array
    escape: jax.Array
    side: jax.Array


class TeamTask(NamedTuple):
    """Task of the A mechs of a team.

    Attributes:
      zone: `[3]` x, y and radius of the destination, or `[A, 3]` for one per mech.
      fire: probability per decision that a mech is allowed to fire, scalar or `[A]`.
      known: `[A, F]` bool; the mech knows about the enemy, enemies in the order of their indices. None
        for all.
      still: `[A]` bool; the mech only turns. None for no mech.
      spared: `[M]` bool; mechs to keep down rather than to destroy: only their stability is shot at. None for
        none.
    """

    zone: jax.Array
    fire: jax.Array
    known: jax.Array | None = None
    still: jax.Array | None = None
    spared: jax.Array | None = None


class NearestTarget(NamedTuple):
    """Each mech's nearest living enemy.

    Attributes:
      target: `[A]` int32 mech.
      distance: `[A]` voxels; infinite where no enemy lives.
      error: `[A]` bearing relative to the mech's heading, rad.
      clear: `[A]` bool; neither terrain nor smoke in between.
      painted: `[A]` bool; painted by the mech's own pack.
    """

    target: jax.Array
    distance: jax.Array
    error: jax.Array
    clear: jax.Array
    painted: jax.Array


def make_heuristic(interface: BattleInterface, side: int, *, moves: bool = True) -> ScriptedPolicy:
    """Returns a policy for a team; a mech may fire with probability `params.fire_probability[side]`.

    As a teacher it may always fire: the mean of its actions with and without fire would be on the threshold.

    Args:
      interface: the battle, for its terrains and teams.
      side: 0 for blue, 1 for red.
      moves: False for mechs that only turn and shoot.
    """
    own = team_members(interface.teams, side)

    def act(key, memory, state, params):
        key_side, key_fire = jax.random.split(key)
        brief = TeamTask(interface.bank.zone[state.battle.map_index], params.fire_probability[side])
        memory = notice_stuck_mechs(key_side, memory, state.battle.mechs.position[own])
        return memory, compute_team_actions(
            interface, own, brief, key_fire, memory, state, params, moves=moves
        )

    def teach(key, memory, state, params):
        full = params.replace(fire_probability=jnp.ones_like(params.fire_probability))
        return act(key, memory, state, full)

    return ScriptedPolicy(lambda: initial_heuristic_memory(own.size), act, teach)


def team_members(teams: tuple[int, int], side: int) -> np.ndarray:
    """Returns the indices of a team's mechs."""
    return np.arange(teams[0] * side, teams[0] * side + teams[side])


def initial_heuristic_memory(size: int) -> HeuristicMemory:
    """Returns the memory of `size` mechs at the start of an episode."""
    return HeuristicMemory(
        position=jnp.full((size, 3), 1e6, jnp.float32),
        still=jnp.zeros(size, jnp.int32),
        escape=jnp.zeros(size, jnp.int32),
        side=jnp.ones(size, jnp.float32),
    )


def compute_team_actions(
    interface: BattleInterface,
    own: np.ndarray,
    brief: TeamTask,
    key,
    memory: HeuristicMemory,
    state,
    params,
    *,
    moves: bool = True,
) -> jax.Array:
    """Computes the actions `[A, 26]` of a team for one decision.

    Args:
      interface: the battle, for its terrains and teams.
      own: `[A]` mechs of the team.
      brief: their task.
      key: random key.
      memory: of the team, at this decision (`notice_stuck_mechs`).
      state: the episode (`EchelonState`).
      params: its parameters (`EchelonParams`).
      moves: False for mechs that only turn and shoot.
    """
    size = own.size
    sides, mechs = interface.sides(params), jax.tree.map(lambda leaf: leaf[own], state.battle.mechs)
    classes = sides.classes[own]
    aim = _find_targets(interface, state, sides, own, brief.known)
    heat = mechs.heat / jnp.asarray(CHASSIS.heat_capacity)[classes]
    base = jnp.zeros((size, len(ACTIONS)), jnp.float32)
    # Without an enemy to turn to, mechs face where they go, and standing ones stay as they are.
    error = jnp.zeros(size)
    if moves:
        throttle, error = _walk(mechs, classes, aim, brief.zone)
        base = base.at[:, [FORWARD, STRAFE]].set(throttle)
    aim = aim._replace(error=jnp.where(jnp.isfinite(aim.distance), aim.error, error))
    willing = jax.random.bernoulli(key, brief.fire, (size,))
    fire = _fire(classes, aim) & (willing & (heat <= VENT_HEAT))[:, None]
    if brief.spared is not None:
        sparing = brief.spared[aim.target]
        fire &= ~sparing[:, None] | _keeps_down(classes, aim, state.battle.mechs)
    base = base + fire
    base = base.at[:, YAW_RATE].set(jnp.clip(aim.error / FULL_TURN, -1.0, 1.0))
    base = base.at[:, VENT].set(heat > VENT_HEAT)
    warfare = jnp.where(heat < ECM_HEAT, ECM, ECCM)
    base = base.at[:, SECONDARY].set(jnp.where(classes == SCOUT, warfare, base[:, SECONDARY]))
    if moves:
        throttle = jnp.zeros_like(base).at[:, [FORWARD, STRAFE]].set(escape_throttles(memory))
        base = jnp.where((memory.escape > 0)[:, None], throttle, base)
    base = base.at[:, _SWITCHES].set(jnp.where(base[:, _SWITCHES] > 0, base[:, _SWITCHES], -1.0))
    if brief.still is not None:
        throttle = jnp.where(brief.still[:, None], 0.0, base[:, [FORWARD, STRAFE]])
        base = base.at[:, [FORWARD, STRAFE]].set(throttle)
    return _with_control(base, state.contacts[own] == aim.target[:, None])


def _find_targets(interface, state, sides, own: np.ndarray, known: jax.Array | None = None) -> NearestTarget:
    """Finds the nearest living enemy of each of the mechs `own`, among the known ones `[A, F]`."""
    battle = state.battle
    mechs = battle.mechs
    foes = np.setdiff1d(np.arange(sum(interface.teams)), own)
    position = mechs.position[own]
    offset = mechs.position[foes][None] - position[:, None]
    there = mechs.alive[foes] if known is None else mechs.alive[foes] & known
    apart = jnp.where(there, jnp.sqrt(jnp.sum(offset**2, axis=-1)), jnp.inf)
    nearest = jnp.argmin(apart, axis=1)
    target = jnp.asarray(foes)[nearest]
    there = mechs.position[target]
    bearing = jnp.arctan2(there[:, 1] - position[:, 1], there[:, 0] - position[:, 0])
    terrain = Terrain(interface.bank.voxels, battle.map_index, battle.overlay)
    clouds = battle.smoke.position.reshape(-1, 3), battle.smoke.left.reshape(-1) > 0
    clear = is_sight_clear(terrain, position, there)
    clear &= ~passes_smoke_cloud(position, there, *clouds, WEAPON.splash_radius[SMOKE])
    painter = jnp.maximum(mechs.painter[target], 0)
    painted = (mechs.painted[target] > 0) & (mechs.painter[target] >= 0)
    painted &= sides.packmates[own, painter]
    error = wrap_angle_by_rounding(bearing - mechs.yaw[own])
    return NearestTarget(target.astype(jnp.int32), jnp.min(apart, axis=1), error, clear, painted)


def notice_stuck_mechs(key, memory: HeuristicMemory, position: jax.Array) -> HeuristicMemory:
    """Updates the counters of stuck mechs; beyond the limit a mech starts the escape manoeuvre.

    Args:
      key: random key, of the side to step to.
      memory: at the last decision.
      position: `[A, 3]` now.
    """
    escaping = memory.escape > 1
    moved = jnp.linalg.norm(position - memory.position, axis=-1)
    still = jnp.where(moved < STUCK_STEP, memory.still + 1, jnp.maximum(memory.still - 1, 0))
    still = jnp.where(escaping, 0, still)
    stuck = still > STUCK_PATIENCE
    drawn = jnp.where(jax.random.bernoulli(key, shape=stuck.shape), 1.0, -1.0)
    return HeuristicMemory(
        position=position,
        still=jnp.where(stuck, 0, still),
        escape=jnp.where(stuck, ESCAPE, jnp.maximum(memory.escape - 1, 0)),
        side=jnp.where(stuck, drawn, memory.side),
    )


def escape_throttles(memory: HeuristicMemory) -> jax.Array:
    """Returns forward and sideways throttles `[A, 2]` of the escape manoeuvre; 0 for mechs that are free."""

    def during(span):
        return (memory.escape >= span[0]) & (memory.escape <= span[1])

    forward = jnp.where(during(BACKWARDS), -1.0, 0.0)
    return jnp.stack([forward, jnp.where(during(SIDEWAYS), memory.side, 0.0)], axis=-1)


def find_walking_goals(mechs, distance: jax.Array, zone: jax.Array) -> jax.Array:
    """Returns where the mechs of a team walk to, `[A, 2]`: to their zone, or back to the team near it.

    Args:
      mechs: those of the team.
      distance: `[A]` to the nearest known enemy; infinite without one.
      zone: `[3]` x, y and radius of the destination, or `[A, 3]` for one per mech.
    """
    position = mechs.position[:, :2]
    living = mechs.alive[:, None]
    centroid = jnp.sum(jnp.where(living, position, 0.0), axis=0) / jnp.maximum(jnp.sum(living), 1)
    lonely = zone_lib.distance_to_zone(mechs.position, zone) < 2.0 * zone[..., 2]
    lonely &= jnp.hypot(*(position - centroid).T) > COHESION_GAP
    lonely &= distance > COHESION_PEACE
    return jnp.where(lonely[:, None], 0.5 * (zone[..., :2] + centroid), zone[..., :2])


def _walk(mechs, classes, aim: NearestTarget, zone) -> tuple[jax.Array, jax.Array]:
    """Returns forward and sideways throttles `[A, 2]`, and the bearing of the goal `[A]`."""
    position = mechs.position[:, :2]
    goal = find_walking_goals(mechs, aim.distance, zone)
    bearing = wrap_angle_by_rounding(jnp.arctan2(*(goal - position).T[::-1]) - mechs.yaw)
    inside = zone_lib.inside_zone(mechs.position, zone)
    close = (aim.distance < TOO_CLOSE) & ~((classes == HEAVY) & inside)
    forward = jnp.where(close, -0.3, jnp.cos(bearing))
    strafe = jnp.where(close, 1.0, 0.25) * jnp.sin(bearing)
    slow = jnp.where(inside, 0.5, 1.0)
    return jnp.stack([slow * forward, slow * strafe], axis=-1), bearing


def _fire(classes, aim: NearestTarget) -> jax.Array:
    """Returns bool `[A, 9]`: the trigger is pulled."""
    reach = jnp.broadcast_to(jnp.asarray(WEAPON.range), (classes.shape[0], len(WEAPONS)))
    missile = jnp.where(aim.painted, WEAPON.range[MISSILE], MISSILE_SIGHT_RANGE)
    reach = reach.at[:, MISSILE].set(missile)
    wanted = (aim.distance[:, None] <= reach) & (jnp.abs(aim.error)[:, None] <= _AIM)
    wanted &= aim.clear[:, None] | ~_NEEDS_SIGHT
    wanted = wanted.at[:, MISSILE].set(wanted[:, MISSILE] & (aim.clear | aim.painted))
    wanted &= np.arange(len(WEAPONS)) != SMOKE
    trigger = jnp.asarray(TRIGGERS)[classes]
    pulled = trigger[:, None, :] == jnp.arange(len(ACTIONS))[:, None]
    return jnp.any(pulled & wanted[:, None], axis=-1)


def _keeps_down(classes, aim: NearestTarget, mechs) -> jax.Array:
    """Returns bool `[A, 9]`: the trigger is the autocannon's, and the target needs another hit.

    It does when it is steady, or when its suppression is about to end before the next shell arrives.
    """
    target = jax.tree.map(lambda leaf: leaf[aim.target], mechs)
    needed = (target.stability > STEADY) | (target.suppressed <= LAPSE)
    cannon = jnp.asarray(TRIGGERS)[classes, AUTOCANNON]
    return (cannon[:, None] == np.arange(len(ACTIONS))) & (needed & (target.fallen == 0))[:, None]


def _with_control(base, target_slots) -> jax.Array:
    """Completes the action: target slot, enemies only, sorted by distance, empty message."""
    size = base.shape[0]
    action = jnp.zeros((size, commands.ACTION_SIZE), jnp.float32)
    action = action.at[:, : len(ACTIONS)].set(base)
    action = action.at[:, commands.TARGET].set(target_slots)
    action = action.at[:, commands.SORT.start].set(1.0)
    return action.at[:, commands.HOSTILE_ONLY].set(1.0)
