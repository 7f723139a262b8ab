"""Sensors: electronic warfare, sight, noise.

Reference: docs/reference/echelon.md 9 and 10.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import is_shut_down
from jaxmarl_echelon.envs.echelon.battle.smoke import find_smoke_blocked
from jaxmarl_echelon.envs.echelon.battle.state import Battle, Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import ChassisTable
from physics.line_of_sight import is_sight_clear
from physics.voxels import Terrain

EW_RANGE = 50.0
JAMMING, COUNTERING = 0.85, 0.65
WORST, BEST = 0.25, 1.5
LOCK_QUALITY = 0.7
RADAR_RANGE = 14.0
HOT = 0.8
MUFFLED, LOUDNESS_SCALE = 0.2, 5.0


def compute_sensor_quality(
    mechs: Mechs, team: np.ndarray, chassis: ChassisTable
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns sensor quality, jamming level and counter-jamming level, `[M]` each.

    Mechs that are dead or shut down have the worst quality and levels of 0.

    Args:
      mechs: the mechs.
      team: `[M]`.
      chassis: rows per mech.
    """
    working = mechs.alive & ~is_shut_down(mechs, chassis)
    apart = mechs.position - mechs.position[:, None]
    level = jnp.maximum(1.0 - vectors.vector_length(apart) / EW_RANGE, 0.0)
    friends = team[:, None] == team
    others = ~np.eye(team.size, dtype=bool)
    jam = jnp.where(~friends & (mechs.ecm & working), level, 0.0).max(-1)
    eccm = jnp.where(friends & others & (mechs.eccm & working), level, 0.0).max(-1)
    jam, eccm = jnp.where(working, jam, 0.0), jnp.where(working, eccm, 0.0)
    clear = jnp.clip(1.0 - JAMMING * jam + COUNTERING * eccm, WORST, BEST)
    return jnp.where(working, clear, WORST), jam, eccm


def find_clear_lines(terrain: Terrain, battle: Battle) -> tuple[jax.Array, jax.Array]:
    """Tests lines of sight between mech centres.

    Returns:
      bool `[M, M]` each, symmetric: clear of terrain, and clear of smoke.
    """
    position = battle.mechs.position
    size = position.shape[0]
    one, other = np.triu_indices(size, 1)
    start, end = position[one], position[other]
    # Lines to dead mechs are not used: shortened to points they cost no steps.
    both = (battle.mechs.alive[one] & battle.mechs.alive[other])[:, None]
    terrain_clear = is_sight_clear(terrain, start, jnp.where(both, end, start))
    smoke_clear = ~find_smoke_blocked(battle.smoke, start, end, both[:, 0])

    def matrix(values):
        half = jnp.zeros((size, size), bool).at[one, other].set(values)
        return half | half.T | np.eye(size, dtype=bool)

    return matrix(terrain_clear), matrix(smoke_clear)


def find_visible_mechs(
    battle: Battle,
    team: np.ndarray,
    packmates: jax.Array,
    chassis: ChassisTable,
    terrain_clear: jax.Array,
    smoke_clear: jax.Array,
    full: jax.Array,
) -> jax.Array:
    """Returns bool `[M, M]`: the living viewer (first) notices the living target; False on the diagonal.

    Args:
      battle: the battle.
      team: `[M]`.
      packmates: `[M, M]` bool.
      chassis: rows per mech.
      terrain_clear: `[M, M]` from `find_clear_lines`.
      smoke_clear: `[M, M]` from `find_clear_lines`.
      full: bool; all living mechs notice each other.
    """
    mechs = battle.mechs
    sensed, _, _ = compute_sensor_quality(mechs, team, chassis)
    sensed = sensed[:, None]
    apart = mechs.position - mechs.position[:, None]
    distance = vectors.vector_length(apart)
    painted = (
        packmates[jnp.maximum(mechs.painter, 0)] & ((mechs.painter >= 0) & (mechs.painted > 0))[:, None]
    ).T
    glowing = (mechs.heat > HOT * chassis.heat_capacity) | mechs.ecm | mechs.eccm
    noticed = (painted & (sensed >= LOCK_QUALITY)) | (distance <= RADAR_RANGE * sensed)
    noticed |= (team[:, None] != team) & glowing & smoke_clear
    noticed |= (terrain_clear & smoke_clear) | full
    return noticed & mechs.alive & mechs.alive[:, None] & ~np.eye(team.size, dtype=bool)


def hear_noise(mechs: Mechs, clear: jax.Array) -> jax.Array:
    """Returns noise of other mechs per quadrant, `[M, 4]`: front left, front right, rear left, rear right.

    Args:
      mechs: the mechs.
      clear: `[M, M]` bool, sight.
    """
    apart = mechs.position - mechs.position[:, None]
    loudness = mechs.noise / (1.0 + vectors.squared_length(apart)) * jnp.where(clear, 1.0, MUFFLED)
    others = mechs.alive & mechs.alive[:, None] & ~np.eye(mechs.hp.size, dtype=bool)
    loudness = jnp.where(others, loudness, 0.0)
    cos, sin = jnp.cos(mechs.yaw)[:, None], jnp.sin(mechs.yaw)[:, None]
    ahead = cos * apart[..., 0] + sin * apart[..., 1]
    left = cos * apart[..., 1] - sin * apart[..., 0]
    front, port = _quadrants(ahead, left)
    heard = [(loudness * (f & p)).sum(-1) for f in (front, ~front) for p in (port, ~port)]
    return jnp.log1p(jnp.stack(heard, -1)) / LOUDNESS_SCALE


def _quadrants(ahead: jax.Array, left: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns bool: in front, and to the left; bearings in [0, 90) degrees are front left, 90 rear left."""
    port = (left > 0) | ((left == 0) & (ahead >= 0))
    front = jnp.where(port, (ahead > 0) | ((ahead == 0) & (left == 0)), ahead > 0)
    return front, port
