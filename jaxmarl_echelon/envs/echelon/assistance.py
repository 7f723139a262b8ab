"""Navigation assistance: throttles are blended with the direction of a waypoint.

Every ten decisions the waypoint is set to the point two steps ahead on a cheapest path to the zone. Paths
are those of the terrain at the start of the battle. Reference: docs/reference/echelon.md 11.5.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import is_shut_down
from jaxmarl_echelon.envs.echelon.battle.state import Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import FORWARD, STRAFE, ChassisTable
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank
from jaxmarl_echelon.envs.echelon.terrain.navigation import LEVEL_REACH, NO_WAY, OTHER_LEVEL, SPAN, WAY

REFRESH = 10
NOWHERE = -1.0
WAYPOINT_DISTANCE = 1.0
_AROUND = np.stack(np.meshgrid(*[np.arange(-1, 2)] * 2, indexing="ij"), -1).reshape(-1, 2).astype(np.int32)


def refresh_waypoints(
    bank: TerrainBank, map_index: jax.Array, mechs: Mechs, chassis: ChassisTable, waypoint: jax.Array
) -> jax.Array:
    """Returns new waypoints of the mechs, `[M, 2]` x and y.

    Paths start at the nearest node in the 3 x 3 columns around a mech. Mechs without a node there, dead
    mechs and mechs that are shut down keep their waypoints.

    Args:
      bank: terrains with stored paths.
      map_index: int32, terrain in the bank.
      mechs: the mechs.
      chassis: rows per mech.
      waypoint: `[M, 2]` previous waypoints.
    """
    depth, width, levels = bank.ways.shape[1:]
    x, y = jnp.moveaxis(jnp.floor(mechs.position[:, None, :2]).astype(jnp.int32) + _AROUND, -1, 0)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < depth)
    codes = bank.ways[map_index, jnp.clip(y, 0, depth - 1), jnp.clip(x, 0, width - 1)].astype(jnp.int32)
    feet = jnp.stack([x + 0.5, y + 0.5], -1)
    rise = np.arange(levels, dtype=np.float32) - mechs.position[:, 2, None]
    other = jnp.where(jnp.abs(rise) > LEVEL_REACH, OTHER_LEVEL, 0.0)
    apart = vectors.squared_length(feet - mechs.position[:, None, :2])
    cost = apart[..., None] + (rise**2 + other)[:, None]
    cost = jnp.where(inside[..., None] & (codes != NO_WAY), cost, jnp.inf).reshape(len(feet), -1)
    nearest, least = vectors.argmin_and_min(cost, 1)
    code = jnp.take_along_axis(codes.reshape(len(feet), -1), nearest[:, None], 1)[:, 0]
    start = jnp.take_along_axis(feet, (nearest // levels)[:, None, None], 1)[:, 0]
    ahead = start + jnp.stack([code % SPAN - WAY, code // SPAN - WAY], -1)
    led = jnp.isfinite(least) & mechs.alive & ~is_shut_down(mechs, chassis)
    return jnp.where(led[:, None], ahead, waypoint)


def blend_throttles(
    commands: jax.Array, mechs: Mechs, chassis: ChassisTable, waypoint: jax.Array, share: jax.Array
) -> jax.Array:
    """Returns commands `[M, 9 or more]` with throttles blended towards the waypoints.

    Args:
      commands: in the order of `unit_tables.ACTIONS`, within [-1, 1].
      mechs: the mechs.
      chassis: rows per mech.
      waypoint: `[M, 2]` x and y, or NOWHERE.
      share: `[M]` weight of the waypoint's direction.
    """
    offset = waypoint - mechs.position[:, :2]
    distance = vectors.vector_length(offset)
    led = (
        mechs.alive
        & ~is_shut_down(mechs, chassis)
        & (waypoint[:, 0] != NOWHERE)
        & (distance > WAYPOINT_DISTANCE)
    )
    x, y = (offset / jnp.maximum(distance, WAYPOINT_DISTANCE)[:, None]).T
    cos, sin = jnp.cos(mechs.yaw), jnp.sin(mechs.yaw)
    share = jnp.where(led, share, 0.0)
    for throttle, towards in ((FORWARD, x * cos + y * sin), (STRAFE, y * cos - x * sin)):
        mixed = (1.0 - share) * commands[:, throttle] + share * towards
        commands = commands.at[:, throttle].set(mixed)
    return commands
