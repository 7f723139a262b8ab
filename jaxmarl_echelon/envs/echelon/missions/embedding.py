"""Mission embedding: the features of an order in an observation.

Reference: docs/reference/echelon.md 15.7.
"""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.state import PARAMETERS, Order

# Distance that maps to 1, voxels.
FARTHEST = 200.0
SPATIAL = ("objective_distance", "objective_sin", "objective_cos", "terrain_complexity")


def embedding_fields(verbs: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of the embedding's V + 8 features, for V verbs."""
    return (*verbs, *PARAMETERS, *SPATIAL)


def embed_orders(order: Order, position: jax.Array, verbs: int, teams: squads.TeamSizes) -> jax.Array:
    """Returns the embedding of each mech's order, `[M, V + 8]`, in [-1, 1].

    The bearing is in world axes. The objective lies on the ground.

    Args:
      order: `[K]` present orders of the teams.
      position: `[M, 3]`.
      verbs: number of verbs V.
      teams: mechs of blue and of red.
    """
    team = squads.team_numbers(teams)
    goal = jnp.pad(order.zone[:, :2], ((0, 0), (0, 1)))[team]
    offset = goal - position
    planar = vectors.vector_length(offset[:, :2])
    there = planar < 1e-6
    columns = jnp.stack(
        [
            jnp.minimum(vectors.vector_length(offset) / FARTHEST, 1.0),
            jnp.where(there, 0.0, offset[:, 1] / jnp.where(there, 1.0, planar)),
            jnp.where(there, 1.0, offset[:, 0] / jnp.where(there, 1.0, planar)),
            order.complexity[team],
        ],
        axis=-1,
    )
    parts = jax.nn.one_hot(order.verb, verbs)[team], order.parameters[team], columns
    return jnp.concatenate(parts, axis=-1, dtype=jnp.float32)
