"""Navigation aid: where an order leads a mech, which enemy its squad sees, and a way out where it is stuck.

A script reads all of this from the state. A learner without it can neither imitate the script nor equal it:
it sees neither the enemies of its mates nor its own part in a flanking move. With the aid both share one
memory, so that a script that teaches acts on what its pupil observes.
Reference: docs/reference/echelon.md 15.7.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.echelon import zone as zone_lib
from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.missions.destinations import DestinationRules, find_destinations
from jaxmarl_echelon.envs.echelon.missions.state import MissionState
from jaxmarl_echelon.envs.echelon.observing.contacts import turn_to_body, unit_bearing
from jaxmarl_echelon.envs.echelon.scripts import heuristic

FIELDS = (
    "goal_sin", "goal_cos", "goal_distance", "arrived",
    "enemy_known", "enemy_sin", "enemy_cos", "enemy_distance",
    "still", "escaping", "escape_ahead", "escape_left",
)  # fmt: skip
BLOCK = "navigation"
# Of the key of a decision; the battle's and the credit's numbers use others (`assign_credit`).
_STREAM = 0x6E617600


class NavigationState(struct.PyTreeNode):
    """Memory of the aid, of all mechs.

    Attributes:
      motion: `[M, ...]` counters of stuck mechs.
      leg: `[M]` int32 number of reached points of a route, or of a flanking move.
    """

    motion: heuristic.HeuristicMemory
    leg: jax.Array


def navigation_blocks() -> dict[str, tuple[tuple[int, ...], str, tuple[str, ...]]]:
    """Returns shape, kind and fields of the block `navigation`, for a layout."""
    return {BLOCK: ((len(FIELDS),), "vector", FIELDS)}


def initial_navigation(position: jax.Array) -> NavigationState:
    """Returns the memory of mechs at `position [M, 3]` at the start of an episode."""
    size = position.shape[0]
    motion = heuristic.initial_heuristic_memory(size).replace(position=position)
    return NavigationState(motion, jnp.zeros(size, jnp.int32))


def advance_navigation(key: jax.Array, state: MissionState, rules: DestinationRules) -> NavigationState:
    """Returns the memory after a decision.

    Args:
      key: of the decision; used only with a constant folded in.
      state: after the decision, with the memory before it.
      rules: the verbs, the terrains, the teams.
    """
    memory, position = state.navigation, state.echelon.battle.mechs.position
    motion = heuristic.notice_stuck_mechs(jax.random.fold_in(key, _STREAM), memory.motion, position)
    legs = []
    for side in range(len(rules.teams)):
        own = heuristic.team_members(rules.teams, side)
        legs.append(find_destinations(rules, side, memory.leg[own], state)[1])
    return NavigationState(motion, jnp.concatenate(legs))


def observe_navigation(state: MissionState, rules: DestinationRules) -> dict[str, jax.Array]:
    """Returns the block `navigation` `[M, F]` in each mech's frame; distances in longest sides of the map.

    The goal is where the script would walk to. The enemy is the nearest living one that any mech of the own
    squad sees; its fields are 0 without one. `still` counts decisions without movement as a share of those
    after which a mech escapes, and the throttles of that manoeuvre follow.

    Args:
      state: the missions, after the decision.
      rules: the verbs, the terrains, the teams.
    """
    everyone, memory, span = state.echelon.battle.mechs, state.navigation, float(max(rules.size))
    parts = []
    for side in range(len(rules.teams)):
        own, foes = (heuristic.team_members(rules.teams, number) for number in (side, 1 - side))
        mechs, motion = jax.tree.map(lambda leaf, own=own: leaf[own], (everyone, memory.motion))
        zones, _ = find_destinations(rules, side, memory.leg[own], state)
        known = (state.by_mech.timer[own][:, foes] > 0).any(0) & everyone.alive[foes]
        offset = everyone.position[foes] - mechs.position[:, None]
        apart = jnp.where(known, vectors.vector_length(offset), jnp.inf)
        nearest = jnp.argmin(apart, axis=1)
        distance = jnp.min(apart, axis=1)
        met = jnp.isfinite(distance)
        enemy = turn_to_body(offset[np.arange(own.size), nearest], mechs.yaw)
        goal = heuristic.find_walking_goals(mechs, distance, zones) - mechs.position[:, :2]
        ahead = turn_to_body(jnp.pad(goal, ((0, 0), (0, 1))), mechs.yaw)
        columns = (
            *unit_bearing(ahead).T,
            vectors.vector_length(goal) / span,
            zone_lib.inside_zone(mechs.position, zones),
            met,
            *jnp.where(met, unit_bearing(enemy).T, 0.0),
            jnp.where(met, distance, 0.0) / span,
            motion.still / heuristic.STUCK_PATIENCE,
            motion.escape > 0,
            *heuristic.escape_throttles(motion).T,
        )
        parts.append(jnp.stack([jnp.asarray(column, jnp.float32) for column in columns], axis=-1))
    return {BLOCK: jnp.concatenate(parts)}
