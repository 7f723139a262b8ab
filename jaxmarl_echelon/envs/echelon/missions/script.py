"""Scripted team that carries out mission orders, with the disposition and awareness of its scenario.

It reads the whole state, but reacts only to enemies that its own sensors have in sight, unless its awareness
is `hot`. Reference: docs/reference/echelon.md 15.8.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import BLUE
from jaxmarl_echelon.envs.echelon.missions.measures import squads, staging
from jaxmarl_echelon.envs.echelon.missions.state import CONFIRMATION
from jaxmarl_echelon.envs.echelon.missions.verbs.suppress import TARGET_TIME
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import (
    ADVANCE,
    AWARENESS,
    CIRCLE,
    DISPOSITIONS,
    DRIVES,
    ROAM,
    WATCH,
)
from jaxmarl_echelon.envs.echelon.scripts import heuristic as plain

AMBUSH_RANGE = 12.0
POINT_DISTANCE = 4.0
WATCH_GAP, CIRCLE_GAP = 8.0, 12.0
# Angle around the objective from the own side to the flank, rad.
FLANK_TURN = 1.75
GOAL_RADIUS = 4.0
GOOD, BAD = 0.6, 0.3
_BITS = 32
_COLD, _HOT = AWARENESS.index("cold"), AWARENESS.index("hot")
_AMBUSH, _PATROL = DISPOSITIONS.index("ambush"), DISPOSITIONS.index("patrol")


class MissionScriptMemory(struct.PyTreeNode):
    """Memory of a team of A mechs.

    Attributes:
      motion: memory of the plain heuristic.
      leg: `[A]` int32 number of reached points of a route, or of a flanking move.
      alarmed: bool; the team has noticed enemies.
      sprung: bool; the team's ambush has begun.
    """

    motion: plain.HeuristicMemory
    leg: jax.Array
    alarmed: jax.Array
    sprung: jax.Array


def make_mission_script(env, side: int, *, moves: bool = True) -> ScriptedPolicy:
    """Returns a policy that plays a team of missions.

    As a teacher it neither waits nor holds fire as its scenario says: an imitator's mean action would lie
    between those of both conducts.

    Args:
      env: the environment.
      side: 0 for blue, 1 for red.
      moves: False for mechs that only turn and shoot.
    """
    own = plain.team_members(env.teams, side)
    foes = plain.team_members(env.teams, 1 - side)

    def init():
        leg = jnp.zeros(own.size, jnp.int32)
        return MissionScriptMemory(
            plain.initial_heuristic_memory(own.size), leg, jnp.bool_(False), jnp.bool_(False)
        )

    def play(key, memory, state, params, *, teaches):
        echelon, scenario = state.echelon, state.scenario
        mechs, tally = echelon.battle.mechs, echelon.battle.tally
        timer = state.by_mech.timer[own][:, foes]
        hot = (scenario.awareness[side] == _HOT) & (side != BLUE)
        cold = (scenario.awareness[side] == _COLD) & (side != BLUE)
        ambush = (scenario.disposition[side] == _AMBUSH) & (side != BLUE)
        known = jnp.broadcast_to((timer > 0).any(0) | hot, timer.shape)
        alarmed = memory.alarmed | (timer >= CONFIRMATION).any() | tally.hit[own].any()
        apart = vectors.vector_length(mechs.position[own][:, None] - mechs.position[foes])
        close = (known & mechs.alive[foes] & mechs.alive[own][:, None] & (apart <= AMBUSH_RANGE)).any()
        sprung = memory.sprung | close
        zone, leg = _goals(env, side, own, memory.leg, state)
        waits, fire = (ambush & ~sprung) | (cold & ~alarmed), scenario.fire[side]
        if teaches:
            waits, fire = jnp.zeros_like(waits), jnp.ones_like(fire)
        brief = plain.TeamTask(
            zone=zone,
            fire=jnp.where(waits, 0.0, fire),
            known=known,
            still=jnp.broadcast_to(waits, own.shape),
            spared=_spared(env, side, state),
        )
        battle_params = env.battle_params(scenario, params)
        motion, action = plain.compute_team_actions(
            env.interface, own, brief, key, memory.motion, echelon, battle_params, moves=moves
        )
        memory = MissionScriptMemory(motion, leg, alarmed, sprung)
        return memory, jnp.concatenate([action, 2.0 * _status(state, own)[:, None] - 1.0], axis=1)

    return ScriptedPolicy(init, partial(play, teaches=False), partial(play, teaches=True))


def _spared(env, side: int, state) -> jax.Array:
    """Returns bool `[M]`: the mech is to be suppressed, and has not been for long enough."""
    verb = staging.present_orders(state.scenario.orders, state.echelon.decision).verb[side]
    return jnp.asarray(env.registry.flags("spares"))[verb] & (state.by_mech.pinned < TARGET_TIME)


def _status(state, own: np.ndarray) -> jax.Array:
    """Returns the status reports of the mechs: 0.3 in trouble, else 0.6."""
    mechs, hurt = state.echelon.battle.mechs, state.by_mech.hurt
    troubled = (hurt > 0) | (mechs.suppressed > 0) | (mechs.fallen > 0)
    return jnp.where(troubled[own], BAD, GOOD)


def _goals(env, side: int, own: np.ndarray, leg: jax.Array, state) -> tuple[jax.Array, jax.Array]:
    """Returns each mech's destination, x, y and radius `[A, 3]`, and its number of reached points."""
    scenario, mechs = state.scenario, state.echelon.battle.mechs
    order = staging.present_orders(scenario.orders, state.echelon.decision)
    zone = order.zone[side]
    position = mechs.position[own, :2]
    start = squads.squad_centres(scenario.start, scenario.present, env.teams)[side]
    out = vectors.unit_vectors(start - zone[:2])
    cos, sin = np.cos(FLANK_TURN), np.sin(FLANK_TURN)
    beside = jnp.stack([out[0] * cos - out[1] * sin, out[0] * sin + out[1] * cos])
    limit = np.array(env.bank.size[:2], np.float32) - POINT_DISTANCE
    flank = jnp.clip(zone[:2] + (zone[2] + CIRCLE_GAP) * beside, POINT_DISTANCE, limit)
    watch = jnp.clip(zone[:2] + (zone[2] + WATCH_GAP) * out, POINT_DISTANCE, limit)
    patrols = (scenario.disposition[side] == _PATROL) & (side != BLUE)
    route = scenario.route[side][leg % scenario.route.shape[1]]

    drive = jnp.asarray([DRIVES.index(verb.drive) for verb in env.registry.verbs])[order.verb[side]]
    goal = jnp.broadcast_to(zone[:2], position.shape)
    goal = jnp.where(drive == DRIVES.index(WATCH), watch, goal)
    circles = drive == DRIVES.index(CIRCLE)
    goal = jnp.where(circles & (leg == 0)[:, None], flank, goal)
    goal = jnp.where(drive == DRIVES.index(ROAM), _unseen(env, own, position, state), goal)
    goal = jnp.where(patrols, route, goal)
    arrived = vectors.vector_length(goal - position) < POINT_DISTANCE
    direct = (drive == DRIVES.index(ADVANCE)) & ~patrols
    radius = jnp.where(direct, zone[2], GOAL_RADIUS)
    zones = jnp.concatenate([goal, jnp.broadcast_to(radius, (own.size, 1))], axis=1)
    # Only these have points to count: an arrival at a stage is no point of the flanking move after it.
    return zones, leg + (arrived & (circles | patrols))


def _unseen(env, own: np.ndarray, position: jax.Array, state) -> jax.Array:
    """Returns the centre `[A, 2]` of a nearby coverage cell that the team has not entered, for each mech."""
    ground = env.ground
    index = state.echelon.battle.map_index
    seen = state.by_mech.visited[own]
    taken = jax.lax.reduce(seen, np.uint32(0), jax.lax.bitwise_or, (0,))
    left = ground.open_cells[index] & ~taken
    count = ground.columns * -(-env.bank.size[1] // ground.cell)
    number = np.arange(count)
    free = (left[number // _BITS] >> (number % _BITS).astype(np.uint32)) & 1 == 1
    middle = (np.stack([number % ground.columns, number // ground.columns], -1) + 0.5) * ground.cell
    # Each mech prefers different cells, so that the team spreads out.
    taste = np.random.default_rng(0).uniform(1.0, 1.5, (own.size, count)).astype(np.float32)
    cost = vectors.vector_length(middle.astype(np.float32) - position[:, None]) * taste
    cost = jnp.where(free & (cost > ground.cell / 2), cost, jnp.float32(1e9))
    chosen, _ = vectors.argmin_and_min(cost, 1)
    return jnp.asarray(middle, jnp.float32)[chosen]
