"""Places of a scenario: objectives, formations and start positions of mechs.

Places are those of `ground.ScenarioGround`; each holds at most one mech. Reference:
docs/reference/echelon.md 15.6.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarl_echelon.envs.echelon.battle import vectors

FORMATIONS = ("line", "wedge", "column", "scattered")
# Spacing of the enemies by cohesion, voxels.
COHESION = {"tight": 3.5, "spread": 8.0, "scattered": 16.0}
PLACEMENTS = ("centre", "edge", "distributed")
# Least distance of objectives from the borders; tolerance of distances; least distance between the teams.
MARGIN = 6.0
_SHARPNESS, _APART, _PLACE_SHARPNESS = 2.0, 12.0, 0.1
_GOLDEN = np.pi * (3.0 - 5.0**0.5)
_TAKEN = np.float32(1e9)
_NOT = np.float32(-1e6)


def draw_objective(
    key: jax.Array, places: jax.Array, free: jax.Array, size, placement: jax.Array
) -> jax.Array:
    """Draws a place for an objective; int32.

    Args:
      key: random key.
      places: `[P, 2]`.
      free: `[P]` bool.
      size: of the map along x and y.
      placement: int32 index into `PLACEMENTS`.
    """
    span = np.array(size[:2], np.float32)
    reach = min(size[:2]) / 2.0
    off = vectors.vector_length(places - span / 2) / reach
    inner = ((places >= MARGIN) & (places <= span - MARGIN)).all(-1)
    wanted = jnp.array([0.0, 0.7, 0.0])[placement]
    score = -jnp.square((off - wanted) / _PLACE_SHARPNESS) / 2
    score = jnp.where(placement == PLACEMENTS.index("distributed"), 0.0, score)
    return jax.random.categorical(key, score + jnp.where(free & inner, 0.0, _NOT))


def draw_at_distance(
    key: jax.Array,
    places: jax.Array,
    free: jax.Array,
    centre: jax.Array,
    distance: jax.Array,
    shunned: jax.Array,
) -> jax.Array:
    """Draws a free place at approximately a distance from a point, in any direction; int32.

    Args:
      key: random key.
      places: `[P, 2]`.
      free: `[P]` bool.
      centre: `[2]`.
      distance: voxels.
      shunned: `[2]` point to avoid.
    """
    off = vectors.vector_length(places - centre) - distance
    close = jnp.maximum(_APART - vectors.vector_length(places - shunned), 0.0)
    score = -(jnp.square(off) + jnp.square(close)) / _SHARPNESS**2
    return jax.random.categorical(key, score + jnp.where(free, 0.0, _NOT))


def formation_offsets(kind: jax.Array, count: jax.Array, size: int) -> jax.Array:
    """Returns offsets `[A, 2]` of a formation with unit spacing, ahead and to the left of its centre.

    Args:
      kind: int32 index into `FORMATIONS`.
      count: int32 mechs in it.
      size: A, slots.
    """
    number = jnp.arange(size, dtype=jnp.float32)
    side = jnp.where(number % 2 == 1, 1.0, -1.0) * jnp.ceil(number / 2)
    rank = jnp.ceil(number / 2)
    turn, reach = number * _GOLDEN, 0.6 * jnp.sqrt(number)
    zero, middle = jnp.zeros(size), (count - 1) / 2.0
    rows = (
        jnp.stack([zero, number - middle], -1),
        jnp.stack([-rank, side], -1),
        jnp.stack([middle - number, zero], -1),
        jnp.stack([reach * jnp.cos(turn), reach * jnp.sin(turn)], -1),
    )
    return jnp.stack(rows)[kind]


def place_formation(anchor: jax.Array, offsets: jax.Array, spacing: jax.Array, yaw: jax.Array) -> jax.Array:
    """Returns points `[A, 2]` of a formation that faces `yaw`."""
    cos, sin = jnp.cos(yaw), jnp.sin(yaw)
    x, y = offsets[:, 0] * cos - offsets[:, 1] * sin, offsets[:, 0] * sin + offsets[:, 1] * cos
    return anchor + spacing * jnp.stack([x, y], -1)


def assign_places(places: jax.Array, free: jax.Array, wanted: jax.Array, present: jax.Array) -> jax.Array:
    """Assigns the nearest free place to each mech in turn; `[M, 2]`.

    Args:
      places: `[P, 2]`, at least as many free ones as mechs.
      free: `[P]` bool.
      wanted: `[M, 2]` desired points.
      present: `[M]` bool; others occupy no place.
    """

    def take(taken, mech):
        point, there = mech
        apart = vectors.squared_length(places - point) + jnp.where(taken, _TAKEN, 0.0)
        chosen, _ = vectors.argmin_and_min(apart, 0)
        return taken | ((jnp.arange(taken.size) == chosen) & there), places[chosen]

    _, found = lax.scan(take, ~free, (wanted, present))
    return found
