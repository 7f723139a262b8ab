"""The scripted team of missions: carries out orders, with the disposition and awareness of its scenario.

It reads the whole state, but attends only to enemies that its own sensors have in sight, unless it is `hot`.
Source: spec sections 6.2 and 7.9.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import BLUE
from jaxmarl_echelon.envs.echelon.missions.measures import squads, staging
from jaxmarl_echelon.envs.echelon.missions.types import CONFIRMATION
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
ARRIVED = 4.0
WATCH_GAP, CIRCLE_GAP = 8.0, 12.0
# Turn from the own side of the objective to its flank, rad.
FLANK_TURN = 1.75
GOAL_RADIUS = 4.0
GOOD, BAD = 0.6, 0.3
_BITS = 32
_COLD, _HOT = AWARENESS.index("cold"), AWARENESS.index("hot")
_AMBUSH, _PATROL = DISPOSITIONS.index("ambush"), DISPOSITIONS.index("patrol")


@struct.dataclass
class Memory:
    """Memory of a team of A mechs.

    Attributes:
      motion: of the plain script.
      leg: `[A]` int32 points of a route that were reached.
      alarmed: bool; it knows that there are enemies.
      sprung: bool; its ambush has begun.
    """

    motion: plain.Memory
    leg: jax.Array
    alarmed: jax.Array
    sprung: jax.Array


def mission_script(env, side: int, *, moves: bool = True) -> ScriptedPolicy:
    """Plays a team of missions.

    Args:
      env: the environment.
      side: 0 for blue, 1 for red.
      moves: False for mechs that stay where they are, turn and shoot.
    """
    own = plain.members(env.teams, side)
    foes = plain.members(env.teams, 1 - side)

    def init():
        leg = jnp.zeros(own.size, jnp.int32)
        return Memory(plain.unmoved(own.size), leg, jnp.bool_(False), jnp.bool_(False))

    def act(key, memory, state, params):
        echelon, scenario = state.echelon, state.scenario
        mechs, tally = echelon.battle.mechs, echelon.battle.tally
        timer = state.by_mech.timer[own][:, foes]
        hot = (scenario.awareness[side] == _HOT) & (side != BLUE)
        cold = (scenario.awareness[side] == _COLD) & (side != BLUE)
        ambush = (scenario.disposition[side] == _AMBUSH) & (side != BLUE)
        known = jnp.broadcast_to((timer > 0).any(0) | hot, timer.shape)
        alarmed = memory.alarmed | (timer >= CONFIRMATION).any() | tally.hit[own].any()
        apart = vectors.length(mechs.position[own][:, None] - mechs.position[foes])
        close = (known & mechs.alive[foes] & mechs.alive[own][:, None] & (apart <= AMBUSH_RANGE)).any()
        sprung = memory.sprung | close
        zone, leg = _goals(env, side, own, memory.leg, state)
        waits = (ambush & ~sprung) | (cold & ~alarmed)
        brief = plain.Brief(
            zone=zone,
            fire=jnp.where(waits, 0.0, scenario.fire[side]),
            known=known,
            still=jnp.broadcast_to(waits, own.shape),
        )
        battle_params = env.battle_params(scenario, params)
        motion, action = plain.follow(
            env, own, brief, key, memory.motion, echelon, battle_params, moves=moves
        )
        memory = Memory(motion, leg, alarmed, sprung)
        return memory, jnp.concatenate([action, 2.0 * _status(state, own)[:, None] - 1.0], axis=1)

    return ScriptedPolicy(init, act)


def _status(state, own: np.ndarray) -> jax.Array:
    """What the mechs report of themselves: worse under fire."""
    mechs, hurt = state.echelon.battle.mechs, state.by_mech.hurt
    troubled = (hurt > 0) | (mechs.suppressed > 0) | (mechs.fallen > 0)
    return jnp.where(troubled[own], BAD, GOOD)


def _goals(env, side: int, own: np.ndarray, leg: jax.Array, state) -> tuple[jax.Array, jax.Array]:
    """Where each mech of a team wants to go: x, y and radius `[A, 3]`, and points reached so far."""
    scenario, mechs = state.scenario, state.echelon.battle.mechs
    order = staging.current(scenario.orders, state.echelon.decision)
    zone = order.zone[side]
    position = mechs.position[own, :2]
    start = squads.centre(scenario.start, scenario.present, env.teams)[side]
    out = vectors.unit(start - zone[:2])
    cos, sin = np.cos(FLANK_TURN), np.sin(FLANK_TURN)
    beside = jnp.stack([out[0] * cos - out[1] * sin, out[0] * sin + out[1] * cos])
    limit = np.array(env.bank.size[:2], np.float32) - ARRIVED
    flank = jnp.clip(zone[:2] + (zone[2] + CIRCLE_GAP) * beside, ARRIVED, limit)
    watch = jnp.clip(zone[:2] + (zone[2] + WATCH_GAP) * out, ARRIVED, limit)
    patrols = (scenario.disposition[side] == _PATROL) & (side != BLUE)
    route = scenario.route[side][leg % scenario.route.shape[1]]

    drive = jnp.asarray([DRIVES.index(verb.drive) for verb in env.registry.verbs])[order.verb[side]]
    goal = jnp.broadcast_to(zone[:2], position.shape)
    goal = jnp.where(drive == DRIVES.index(WATCH), watch, goal)
    goal = jnp.where((drive == DRIVES.index(CIRCLE)) & (leg == 0)[:, None], flank, goal)
    goal = jnp.where(drive == DRIVES.index(ROAM), _unseen(env, own, position, state), goal)
    goal = jnp.where(patrols, route, goal)
    arrived = vectors.length(goal - position) < ARRIVED
    direct = (drive == DRIVES.index(ADVANCE)) & ~patrols
    radius = jnp.where(direct, zone[2], GOAL_RADIUS)
    zones = jnp.concatenate([goal, jnp.broadcast_to(radius, (own.size, 1))], axis=1)
    return zones, leg + arrived


def _unseen(env, own: np.ndarray, position: jax.Array, state) -> jax.Array:
    """For each mech the middle `[A, 2]` of a coverage cell near it that its team has not entered."""
    ground = env.ground
    index = state.echelon.battle.map_index
    seen = state.by_mech.visited[own]
    taken = jax.lax.reduce(seen, np.uint32(0), jax.lax.bitwise_or, (0,))
    left = ground.open_cells[index] & ~taken
    count = ground.columns * -(-env.bank.size[1] // ground.cell)
    number = np.arange(count)
    free = (left[number // _BITS] >> (number % _BITS).astype(np.uint32)) & 1 == 1
    middle = (np.stack([number % ground.columns, number // ground.columns], -1) + 0.5) * ground.cell
    # Each mech prefers other cells, so that they part.
    taste = np.random.default_rng(0).uniform(1.0, 1.5, (own.size, count)).astype(np.float32)
    cost = vectors.length(middle.astype(np.float32) - position[:, None]) * taste
    cost = jnp.where(free & (cost > ground.cell / 2), cost, jnp.float32(1e9))
    chosen, _ = vectors.lowest(cost, 1)
    return jnp.asarray(middle, jnp.float32)[chosen]
