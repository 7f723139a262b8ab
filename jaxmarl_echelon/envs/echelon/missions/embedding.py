"""The mission embedding: what an order looks like to a mech. Source: spec sections 5.2 and 7.1."""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.types import PARAMETERS, Order

# Distance that is shown as 1, voxels.
FARTHEST = 200.0
SPATIAL = ("objective_distance", "objective_sin", "objective_cos", "terrain_complexity")


def fields(verbs: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the embedding's numbers, with V verbs V + 8."""
    return (*verbs, *PARAMETERS, *SPATIAL)


def embed(order: Order, position: jax.Array, verbs: int, teams: squads.Teams) -> jax.Array:
    """The embedding of each mech's order, `[M, V + 8]`, in [-1, 1].

    The bearing is in the world's axes. The objective lies on the ground.

    Args:
      order: `[K]` what the teams are told.
      position: `[M, 3]`.
      verbs: V.
      teams: mechs of blue and of red.
    """
    team = squads.team_of(teams)
    goal = jnp.pad(order.zone[:, :2], ((0, 0), (0, 1)))[team]
    offset = goal - position
    planar = vectors.length(offset[:, :2])
    there = planar < 1e-6
    columns = jnp.stack(
        [
            jnp.minimum(vectors.length(offset) / FARTHEST, 1.0),
            jnp.where(there, 0.0, offset[:, 1] / jnp.where(there, 1.0, planar)),
            jnp.where(there, 1.0, offset[:, 0] / jnp.where(there, 1.0, planar)),
            order.complexity[team],
        ],
        axis=-1,
    )
    parts = jax.nn.one_hot(order.verb, verbs)[team], order.parameters[team], columns
    return jnp.concatenate(parts, axis=-1, dtype=jnp.float32)
