"""Overwatch coverage: visibility of one of five samples of the objective per decision.

Reference: docs/reference/echelon.md 15.3.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.smoke import find_smoke_blocked
from jaxmarl_echelon.envs.echelon.battle.state import Battle
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.state import Order
from physics.line_of_sight import is_sight_clear
from physics.voxels import Terrain

REACH, HEIGHT = 20.0, 1.5
# The centre, and points half way to the circle.
SAMPLES = np.array([[0, 0], [0.5, 0], [0, 0.5], [-0.5, 0], [0, -0.5]], np.float32)
_SHARE = 1 / 4


def sees_objective_sample(
    terrain: Terrain,
    battle: Battle,
    order: Order,
    needed: jax.Array,
    decision: jax.Array,
    teams: squads.TeamSizes,
) -> jax.Array:
    """Returns bool `[M]`: the mech sees the present sample of its team's objective; False if not needed.

    Args:
      terrain: the present terrain.
      battle: the battle.
      order: `[K]` present orders of the teams.
      needed: `[K]` bool; the team's order needs the samples.
      decision: decisions taken; samples alternate.
      teams: mechs of blue and of red.
    """
    team = squads.team_numbers(teams)
    offset = jnp.asarray(SAMPLES)[decision % len(SAMPLES)]
    planar = order.zone[:, :2] + offset * order.zone[:, 2:]
    point = jnp.pad(planar, ((0, 0), (0, 1)), constant_values=HEIGHT)[team]
    position = battle.mechs.position
    looks = needed[team] & battle.mechs.alive & (vectors.squared_length(point - position) <= REACH * REACH)
    end = jnp.where(looks[:, None], point, position)
    clear = looks & is_sight_clear(terrain, position, end, share=_SHARE)
    return clear & ~find_smoke_blocked(battle.smoke, position, end, clear)
