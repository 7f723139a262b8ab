"""Presence in the capture zone, and its hold. Height is ignored.

Reference: docs/reference/echelon.md 13.1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

CONTESTED_FLOOR = 0.25


class ZoneHold(NamedTuple):
    """State of the contest for the zone.

    Attributes:
      inside: `[M]` bool; alive and in the zone.
      contested: bool; both teams are in it.
      margin: (blue - red) / (blue + red) in tons inside, 0 for an empty zone.
      tick: `[2]` share of a full hold for blue and red: 1 if alone inside, 0 without mechs inside;
        in a contested zone `CONTESTED_FLOOR`, and more for the heavier team.
    """

    inside: jax.Array
    contested: jax.Array
    margin: jax.Array
    tick: jax.Array


def inside_zone(position: jax.Array, zone: jax.Array) -> jax.Array:
    """Returns bool `[...]`: positions `[..., 3]` lie in the zone `[3]`, or each in its own `[..., 3]`."""
    return distance_to_zone(position, zone) < zone[..., 2]


def distance_to_zone(position: jax.Array, zone: jax.Array) -> jax.Array:
    """Returns the planar distances of positions `[..., 3]` to the zone's centre."""
    return jnp.hypot(position[..., 0] - zone[..., 0], position[..., 1] - zone[..., 1])


def compute_zone_hold(
    position: jax.Array, counts: jax.Array, tonnage: jax.Array, team: jax.Array, zone: jax.Array
) -> ZoneHold:
    """Computes presence and hold from the tonnage of each team in the zone.

    Args:
      position: `[M, 3]`.
      counts: `[M]` bool; mechs that count, such as the living ones.
      tonnage: `[M]`.
      team: `[M]` 0 for blue, 1 for red.
      zone: `[3]` x, y and radius.
    """
    inside = counts & inside_zone(position, zone)
    tons = jnp.stack([jnp.sum(jnp.where(inside & (team == side), tonnage, 0.0)) for side in (0, 1)])
    contested = jnp.all(tons > 0)
    total = jnp.sum(tons)
    margin = jnp.where(total > 0, (tons[0] - tons[1]) / jnp.maximum(total, 1e-6), 0.0)
    lead = jnp.maximum(jnp.stack([margin, -margin]), 0.0)
    alone = (tons > 0).astype(jnp.float32)
    tick = jnp.where(contested, CONTESTED_FLOOR + (1.0 - CONTESTED_FLOOR) * lead, alone)
    return ZoneHold(inside, contested, margin, tick)
