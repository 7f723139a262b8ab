"""Who sees the objective: one of five samples of it per decision. Source: spec section 7.5, Overwatch."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.smoke import smoked
from jaxmarl_echelon.envs.echelon.battle.state import Battle
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.types import Order
from physics.line_of_sight import sight_clear
from physics.voxels import Terrain

REACH, HEIGHT = 20.0, 1.5
# The centre, and points half way to the circle.
SAMPLES = np.array([[0, 0], [0.5, 0], [0, 0.5], [-0.5, 0], [0, -0.5]], np.float32)
_SHARE = 1 / 4


def watching(
    terrain: Terrain,
    battle: Battle,
    order: Order,
    needed: jax.Array,
    decision: jax.Array,
    teams: squads.Teams,
) -> jax.Array:
    """Which mechs `[M]` see the present sample of their team's objective; only where it is needed.

    Args:
      terrain: as it is now.
      battle: the battle.
      order: `[K]` what the teams are told.
      needed: `[K]` bool.
      decision: decisions taken; samples take turns.
      teams: mechs of blue and of red.
    """
    team = squads.team_of(teams)
    offset = jnp.asarray(SAMPLES)[decision % len(SAMPLES)]
    planar = order.zone[:, :2] + offset * order.zone[:, 2:]
    point = jnp.pad(planar, ((0, 0), (0, 1)), constant_values=HEIGHT)[team]
    position = battle.mechs.position
    looks = needed[team] & battle.mechs.alive & (vectors.square(point - position) <= REACH * REACH)
    end = jnp.where(looks[:, None], point, position)
    clear = looks & sight_clear(terrain, position, end, share=_SHARE)
    return clear & ~smoked(battle.smoke, position, end, clear)
