"""Sensors: electronic warfare, sight, noise.

Source: spec sections 2.1 to 2.3.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import is_shut_down
from jaxmarl_echelon.envs.echelon.battle.smoke import smoked
from jaxmarl_echelon.envs.echelon.battle.state import Battle, Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import ChassisTable
from physics.line_of_sight import sight_clear
from physics.voxels import Terrain

EW_RANGE = 50.0
JAMMING, COUNTERING = 0.85, 0.65
WORST, BEST = 0.25, 1.5
LOCK_QUALITY = 0.7
RADAR_RANGE = 14.0
HOT = 0.8
MUFFLED, LOUDNESS_SCALE = 0.2, 5.0


def quality(mechs: Mechs, team: np.ndarray, chassis: ChassisTable) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Quality of the sensors, and the levels of jamming and of countering it, `[M]` each.

    Mechs that are dead or shut down have the worst quality and neither level.

    Args:
      mechs: the mechs.
      team: `[M]`.
      chassis: rows per mech.
    """
    working = mechs.alive & ~is_shut_down(mechs, chassis)
    apart = mechs.position - mechs.position[:, None]
    level = jnp.maximum(1.0 - vectors.length(apart) / EW_RANGE, 0.0)
    friends = team[:, None] == team
    others = ~np.eye(team.size, dtype=bool)
    jam = jnp.where(~friends & (mechs.ecm & working), level, 0.0).max(-1)
    eccm = jnp.where(friends & others & (mechs.eccm & working), level, 0.0).max(-1)
    jam, eccm = jnp.where(working, jam, 0.0), jnp.where(working, eccm, 0.0)
    clear = jnp.clip(1.0 - JAMMING * jam + COUNTERING * eccm, WORST, BEST)
    return jnp.where(working, clear, WORST), jam, eccm


def lines(terrain: Terrain, battle: Battle) -> tuple[jax.Array, jax.Array]:
    """Whether sight between centres is clear of terrain and of smoke, bool `[M, M]` each; symmetric."""
    position = battle.mechs.position
    size = position.shape[0]
    one, other = np.triu_indices(size, 1)
    start, end = position[one], position[other]
    # Lines to the dead are not used: as points they take no steps.
    both = (battle.mechs.alive[one] & battle.mechs.alive[other])[:, None]
    terrain_clear = sight_clear(terrain, start, jnp.where(both, end, start))
    smoke_clear = ~smoked(battle.smoke, start, end, both[:, 0])

    def matrix(values):
        half = jnp.zeros((size, size), bool).at[one, other].set(values)
        return half | half.T | np.eye(size, dtype=bool)

    return matrix(terrain_clear), matrix(smoke_clear)


def visible(
    battle: Battle,
    team: np.ndarray,
    packmates: jax.Array,
    chassis: ChassisTable,
    terrain_clear: jax.Array,
    smoke_clear: jax.Array,
    full: jax.Array,
) -> jax.Array:
    """`[M, M]` bool; which living mechs a living mech notices, itself not counted.

    Args:
      battle: the battle.
      team: `[M]`.
      packmates: `[M, M]` bool.
      chassis: rows per mech.
      terrain_clear: `[M, M]` from `lines`.
      smoke_clear: `[M, M]` from `lines`.
      full: bool; everybody notices everybody.
    """
    mechs = battle.mechs
    sensed, _, _ = quality(mechs, team, chassis)
    sensed = sensed[:, None]
    apart = mechs.position - mechs.position[:, None]
    distance = vectors.length(apart)
    painted = (
        packmates[jnp.maximum(mechs.painter, 0)] & ((mechs.painter >= 0) & (mechs.painted > 0))[:, None]
    ).T
    glowing = (mechs.heat > HOT * chassis.heat_capacity) | mechs.ecm | mechs.eccm
    noticed = (painted & (sensed >= LOCK_QUALITY)) | (distance <= RADAR_RANGE * sensed)
    noticed |= (team[:, None] != team) & glowing & smoke_clear
    noticed |= (terrain_clear & smoke_clear) | full
    return noticed & mechs.alive & mechs.alive[:, None] & ~np.eye(team.size, dtype=bool)


def acoustic(mechs: Mechs, clear: jax.Array) -> jax.Array:
    """Noise of others per quadrant, `[M, 4]`: front left, front right, rear left, rear right.

    Args:
      mechs: the mechs.
      clear: `[M, M]` bool, sight.
    """
    apart = mechs.position - mechs.position[:, None]
    loudness = mechs.noise / (1.0 + vectors.square(apart)) * jnp.where(clear, 1.0, MUFFLED)
    others = mechs.alive & mechs.alive[:, None] & ~np.eye(mechs.hp.size, dtype=bool)
    loudness = jnp.where(others, loudness, 0.0)
    cos, sin = jnp.cos(mechs.yaw)[:, None], jnp.sin(mechs.yaw)[:, None]
    ahead = cos * apart[..., 0] + sin * apart[..., 1]
    left = cos * apart[..., 1] - sin * apart[..., 0]
    front, port = _quadrants(ahead, left)
    heard = [(loudness * (f & p)).sum(-1) for f in (front, ~front) for p in (port, ~port)]
    return jnp.log1p(jnp.stack(heard, -1)) / LOUDNESS_SCALE


def _quadrants(ahead: jax.Array, left: jax.Array) -> tuple[jax.Array, jax.Array]:
    """In front and to the left; bearings 0 to a right angle are front left, a right angle is rear left."""
    port = (left > 0) | ((left == 0) & (ahead >= 0))
    front = jnp.where(port, (ahead > 0) | ((ahead == 0) & (left == 0)), ahead > 0)
    return front, port
