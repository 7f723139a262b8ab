"""Where cars are along a map's centreline, followed from decision to decision."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from physics.frenet import arc_difference, frenet, frenet_near
from physics.mapbank import MapBank


@struct.dataclass
class TrackPosition:
    """Positions of N cars in road coordinates.

    Attributes:
      arc: `[N]` arc length in metres.
      offset: `[N]` metres to the left of the centreline.
      heading: `[N]` tangent angle of the centreline, rad.
      index: `[N]` int32 centreline segment.
      progress: `[N]` metres travelled along the centreline since the start, backwards negative.
    """

    arc: jax.Array
    offset: jax.Array
    heading: jax.Array
    index: jax.Array
    progress: jax.Array


def nowhere(cars: int) -> TrackPosition:
    """Returns zeros: positions of cars that nobody follows."""
    zero = jnp.zeros(cars)
    return TrackPosition(zero, zero, zero, jnp.zeros(cars, jnp.int32), zero)


def locate(bank: MapBank, map_index: jax.Array, xy: jax.Array) -> TrackPosition:
    """Finds cars at `xy [N, 2]` anywhere along the centreline; their progress is 0."""
    arc, offset, heading, index = frenet(bank, map_index, xy)
    return TrackPosition(arc, offset, heading, index, jnp.zeros_like(arc))


def follow(
    bank: MapBank, map_index: jax.Array, before: TrackPosition, xy: jax.Array, window: int
) -> TrackPosition:
    """Follows cars through R physics steps.

    Args:
      bank: maps.
      map_index: int32.
      before: positions when the steps began.
      xy: `[R, N, 2]` after each step, metres.
      window: centreline segments that a car may pass in R steps, see `search_window`.

    Returns:
      positions `[R, N]` after each step.
    """
    hint = jnp.broadcast_to(before.index, xy.shape[:-1])
    where = jnp.broadcast_to(map_index, xy.shape[:-1])
    arc, offset, heading, index = frenet_near(bank, where, xy, hint, window)
    earlier = jnp.concatenate([before.arc[None], arc[:-1]])
    moved = arc_difference(bank, where, earlier, arc)
    return TrackPosition(arc, offset, heading, index, before.progress + jnp.cumsum(moved, axis=0))


def search_window(bank: MapBank, metres: float) -> int:
    """Returns how many centreline segments of any map a car passes in `metres`, with one to spare."""
    length = np.asarray(bank.centerline_length)[np.asarray(bank.has_centerline)]
    if length.size == 0:
        return 1
    return math.ceil(metres / (length.min() / bank.centerline.shape[1])) + 1
