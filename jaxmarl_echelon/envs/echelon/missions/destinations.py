"""Destinations of mechs that carry out a mission order, for the script and for observations.

Reference: docs/reference/echelon.md 15.8.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import BLUE
from jaxmarl_echelon.envs.echelon.missions.measures import squads, staging
from jaxmarl_echelon.envs.echelon.missions.scenarios.ground import ScenarioGround
from jaxmarl_echelon.envs.echelon.missions.state import MissionState
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import (
    ADVANCE,
    CIRCLE,
    DISPOSITIONS,
    DRIVES,
    ROAM,
    WATCH,
)
from jaxmarl_echelon.envs.echelon.scripts.heuristic import team_members

POINT_DISTANCE = 4.0
WATCH_GAP, CIRCLE_GAP = 8.0, 12.0
# Angle around the objective from the own side to the flank, rad.
FLANK_TURN = 1.75
GOAL_RADIUS = 4.0
_BITS = 32
_PATROL = DISPOSITIONS.index("patrol")


class DestinationRules(NamedTuple):
    """Constants of an environment from which destinations are found.

    Attributes:
      registry: the verbs.
      ground: terrain data of scenarios.
      size: voxels of the map along x and y.
      teams: mechs of blue and of red.
    """

    registry: Registry
    ground: ScenarioGround
    size: tuple[int, int]
    teams: squads.TeamSizes


def find_destinations(
    rules: DestinationRules, side: int, leg: jax.Array, state: MissionState
) -> tuple[jax.Array, jax.Array]:
    """Returns each mech's destination, x, y and radius `[A, 3]`, and its number of reached points `[A]`.

    Args:
      rules: the verbs, the terrains, the teams.
      side: 0 for blue, 1 for red.
      leg: `[A]` int32 number of points that have been reached before, of a route or of a flanking move.
      state: the missions.
    """
    registry, ground, size, teams = rules
    own = team_members(teams, side)
    scenario, mechs = state.scenario, state.echelon.battle.mechs
    order = staging.present_orders(scenario.orders, state.echelon.decision)
    zone = order.zone[side]
    position = mechs.position[own, :2]
    start = squads.squad_centres(scenario.start, scenario.present, teams)[side]
    out = vectors.unit_vectors(start - zone[:2])
    cos, sin = np.cos(FLANK_TURN), np.sin(FLANK_TURN)
    beside = jnp.stack([out[0] * cos - out[1] * sin, out[0] * sin + out[1] * cos])
    limit = np.array(size, np.float32) - POINT_DISTANCE
    flank = jnp.clip(zone[:2] + (zone[2] + CIRCLE_GAP) * beside, POINT_DISTANCE, limit)
    watch = jnp.clip(zone[:2] + (zone[2] + WATCH_GAP) * out, POINT_DISTANCE, limit)
    patrols = (scenario.disposition[side] == _PATROL) & (side != BLUE)
    route = scenario.route[side][leg % scenario.route.shape[1]]

    drive = jnp.asarray([DRIVES.index(verb.drive) for verb in registry.verbs])[order.verb[side]]
    goal = jnp.broadcast_to(zone[:2], position.shape)
    goal = jnp.where(drive == DRIVES.index(WATCH), watch, goal)
    circles = drive == DRIVES.index(CIRCLE)
    goal = jnp.where(circles & (leg == 0)[:, None], flank, goal)
    unseen = _find_unseen_cells(ground, size[1], own, position, state)
    goal = jnp.where(drive == DRIVES.index(ROAM), unseen, goal)
    goal = jnp.where(patrols, route, goal)
    arrived = vectors.vector_length(goal - position) < POINT_DISTANCE
    direct = (drive == DRIVES.index(ADVANCE)) & ~patrols
    radius = jnp.where(direct, zone[2], GOAL_RADIUS)
    zones = jnp.concatenate([goal, jnp.broadcast_to(radius, (own.size, 1))], axis=1)
    # Only these have points to count: an arrival at a stage is no point of the flanking move after it.
    return zones, leg + (arrived & (circles | patrols))


def _find_unseen_cells(
    ground: ScenarioGround, depth: int, own: np.ndarray, position: jax.Array, state: MissionState
) -> jax.Array:
    """Returns the centre `[A, 2]` of a nearby coverage cell that the team has not entered, for each mech."""
    index = state.echelon.battle.map_index
    seen = state.by_mech.visited[own]
    taken = jax.lax.reduce(seen, np.uint32(0), jax.lax.bitwise_or, (0,))
    left = ground.open_cells[index] & ~taken
    count = ground.columns * -(-depth // ground.cell)
    number = np.arange(count)
    free = (left[number // _BITS] >> (number % _BITS).astype(np.uint32)) & 1 == 1
    middle = (np.stack([number % ground.columns, number // ground.columns], -1) + 0.5) * ground.cell
    # Each mech prefers different cells, so that the team spreads out.
    taste = np.random.default_rng(0).uniform(1.0, 1.5, (own.size, count)).astype(np.float32)
    cost = vectors.vector_length(middle.astype(np.float32) - position[:, None]) * taste
    cost = jnp.where(free & (cost > ground.cell / 2), cost, jnp.float32(1e9))
    chosen, _ = vectors.argmin_and_min(cost, 1)
    return jnp.asarray(middle, jnp.float32)[chosen]
