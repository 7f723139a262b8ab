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
from jaxmarl_echelon.envs.echelon.missions.destinations import find_destinations
from jaxmarl_echelon.envs.echelon.missions.measures import staging
from jaxmarl_echelon.envs.echelon.missions.state import CONFIRMATION
from jaxmarl_echelon.envs.echelon.missions.verbs.suppress import TARGET_TIME
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import AWARENESS, DISPOSITIONS
from jaxmarl_echelon.envs.echelon.scripts import heuristic as plain

AMBUSH_RANGE = 12.0
GOOD, BAD = 0.6, 0.3
_COLD, _HOT = AWARENESS.index("cold"), AWARENESS.index("hot")
_AMBUSH = DISPOSITIONS.index("ambush")


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
    between those of both conducts. With `env.navigation` it remembers of its way what
    observations show.

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
        key_side, key_fire = jax.random.split(key)
        if env.navigates:
            shared = jax.tree.map(lambda leaf: leaf[own], state.navigation)
            leg, motion = shared.leg, shared.motion
        else:
            leg = memory.leg
            motion = plain.notice_stuck_mechs(key_side, memory.motion, mechs.position[own])
        zone, leg = find_destinations(env.destination_rules, side, leg, state)
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
        action = plain.compute_team_actions(
            env.interface, own, brief, key_fire, motion, echelon, battle_params, moves=moves
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
