"""Positions of cars along a map's centreline, tracked from decision to decision.

See docs/reference/f110.md 7.3.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from physics.frenet import arc_difference, frenet, frenet_near
from physics.mapbank import MapBank


class TrackPosition(struct.PyTreeNode):
    """Positions of N cars in road coordinates.

    Attributes:
      arc: `[N]` arc length in metres.
      offset: `[N]` metres to the left of the centreline.
      heading: `[N]` tangent angle of the centreline, rad.
      index: `[N]` int32 centreline segment.
      progress: `[N]` metres travelled along the centreline since the start, negative if backwards.
    """

    arc: jax.Array
    offset: jax.Array
    heading: jax.Array
    index: jax.Array
    progress: jax.Array


def untracked_positions(cars: int) -> TrackPosition:
    """Returns zeros, the positions of cars that are not tracked."""
    zero = jnp.zeros(cars)
    return TrackPosition(zero, zero, zero, jnp.zeros(cars, jnp.int32), zero)


def locate_on_track(bank: MapBank, map_index: jax.Array, xy: jax.Array) -> TrackPosition:
    """Locates cars at `xy [N, 2]` on the whole centreline; their progress is 0."""
    arc, offset, heading, index = frenet(bank, map_index, xy)
    return TrackPosition(arc, offset, heading, index, jnp.zeros_like(arc))


def follow_track(
    bank: MapBank, map_index: jax.Array, before: TrackPosition, xy: jax.Array, window: int
) -> TrackPosition:
    """Tracks cars through R physics steps.

    Args:
      bank: maps.
      map_index: int32.
      before: positions before the steps.
      xy: `[R, N, 2]` after each step, metres.
      window: centreline segments that a car may pass in R steps, see `search_window`.

    Returns:
      Positions `[R, N]` after each step.
    """
    hint = jnp.broadcast_to(before.index, xy.shape[:-1])
    where = jnp.broadcast_to(map_index, xy.shape[:-1])
    arc, offset, heading, index = frenet_near(bank, where, xy, hint, window)
    earlier = jnp.concatenate([before.arc[None], arc[:-1]])
    moved = arc_difference(bank, where, earlier, arc)
    return TrackPosition(arc, offset, heading, index, before.progress + jnp.cumsum(moved, axis=0))


def search_window(bank: MapBank, metres: float) -> int:
    """Returns the largest number of centreline segments that a car passes in `metres`, plus one."""
    length = np.asarray(bank.centerline_length)[np.asarray(bank.has_centerline)]
    if length.size == 0:
        return 1
    return math.ceil(metres / (length.min() / bank.centerline.shape[1])) + 1
