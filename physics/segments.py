"""Straight segments of roads: contact with boxes, distances, and the lane that a body drives on.

A segment is its midpoint, the unit vector from its start to its end, and half its length (m). This form
needs no division, and a segment of length 0 is a point without a special case. See
docs/reference/drive.md, 'Road segments and polylines'.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from physics.angles import wrap_angle

LANE_REACH = 4.0
WRONG_WAY = 3.0
WRONG_ANGLE = float(np.deg2rad(30.0))
ALIGNED_ANGLE = float(np.deg2rad(15.0))


class RoadSegments(NamedTuple):
    """Straight road segments, every leaf `[...]`.

    Attributes:
      x, y: midpoint, m.
      half: half the length, m.
      cos, sin: direction from start to end.
    """

    x: jax.Array
    y: jax.Array
    half: jax.Array
    cos: jax.Array
    sin: jax.Array


class MatchedLane(struct.PyTreeNode):
    """The lane that a body drives on, every leaf `[...]`.

    Attributes:
      index: int32 position of its segment among the candidates.
      found: bool; a candidate lies within 4 m.
      aligned: bool; one was found, and the body's heading differs by at most 15 degrees from the lane's.
      distance: from the body's centre, m.
      offset: signed distance to the line through the segment, left of it positive, m.
      angle: heading less the lane's, in [-pi, pi).
    """

    index: jax.Array
    found: jax.Array
    aligned: jax.Array
    distance: jax.Array
    offset: jax.Array
    angle: jax.Array


def segments_between(start: jax.Array, end: jax.Array) -> RoadSegments:
    """Builds segments from their end points `[..., 2]`; one of length 0 points along +x."""
    middle, along = (start + end) / 2, end - start
    length = jnp.hypot(along[..., 0], along[..., 1])
    safe = jnp.where(length > 0, length, 1.0)
    cos = jnp.where(length > 0, along[..., 0] / safe, 1.0)
    return RoadSegments(middle[..., 0], middle[..., 1], length / 2, cos, along[..., 1] / safe)


def segments_meet_box(
    segments: RoadSegments, x: jax.Array, y: jax.Array, cos: jax.Array, sin: jax.Array, size: jax.Array
) -> jax.Array:
    """Tells whether segments share a point with a solid box, touching or inside it, by separating axes.

    Args:
      segments: `[...]`.
      x, y: centre of the box, `[...]`.
      cos, sin: of its heading, `[...]`.
      size: `[..., 2]` length and width.
    """
    dx, dy = segments.x - x, segments.y - y
    ahead, left = dx * cos + dy * sin, dy * cos - dx * sin
    along = jnp.abs(segments.cos * cos + segments.sin * sin)
    across = jnp.abs(segments.sin * cos - segments.cos * sin)
    length, width = size[..., 0] / 2, size[..., 1] / 2
    return (
        (jnp.abs(ahead) <= length + segments.half * along)
        & (jnp.abs(left) <= width + segments.half * across)
        & (jnp.abs(dx * segments.sin - dy * segments.cos) <= length * across + width * along)
    )


def segment_offsets(
    segments: RoadSegments, x: jax.Array, y: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns distances of points from segments, offsets left of their lines, and positions along them.

    Returns:
      distance, offset, and signed distance from the midpoint along the direction, all `[...]`, m.
    """
    dx, dy = x - segments.x, y - segments.y
    along = dx * segments.cos + dy * segments.sin
    left = dy * segments.cos - dx * segments.sin
    beyond = jnp.maximum(jnp.abs(along) - segments.half, 0.0)
    return jnp.sqrt(left**2 + beyond**2), left, along


def _first_least(cost: jax.Array) -> jax.Array:
    """Index of the least of costs `[..., K]`, the first of equal ones: two sweeps, where `argmin` has one.

    On a CPU a comparison of pairs, as `argmin` has it, takes three times as long.
    """
    count = cost.shape[-1]
    least = jnp.min(cost, axis=-1, keepdims=True)
    first = jnp.min(jnp.where(cost == least, jnp.arange(count, dtype=jnp.int32), count), axis=-1)
    return jnp.minimum(first, count - 1)


def match_lane(
    segments: RoadSegments, there: jax.Array, x: jax.Array, y: jax.Array, cos: jax.Array, sin: jax.Array
) -> MatchedLane:
    """Finds the lane segment of least cost: distance, plus 3 m if headings differ by more than 30 degrees.

    Args:
      segments: candidates `[..., K]`.
      there: bool `[..., K]`; the candidate exists.
      x, y, cos, sin: centre and heading of the body, `[...]`.
    """
    distance, left, _ = segment_offsets(segments, x[..., None], y[..., None])
    cos, sin = cos[..., None], sin[..., None]
    straight = segments.cos * cos + segments.sin * sin
    cost = distance + jnp.where(straight < np.cos(WRONG_ANGLE), WRONG_WAY, 0.0)
    cost = jnp.where(there & (distance <= LANE_REACH), cost, jnp.inf)
    # A one-hot sum, because gathering one element per row costs more on a CPU.
    index = _first_least(cost)
    chosen = jnp.arange(cost.shape[-1]) == index[..., None]

    def pick(value):
        return jnp.sum(jnp.where(chosen, value, 0.0), axis=-1)

    found = jnp.any(jnp.isfinite(cost), axis=-1)
    turned = pick(segments.cos * sin - segments.sin * cos)
    angle = wrap_angle(jnp.where(found, jnp.arctan2(turned, pick(straight)), 0.0))
    aligned = found & (jnp.abs(angle) <= ALIGNED_ANGLE)
    return MatchedLane(index, found, aligned, pick(distance), jnp.where(found, pick(left), 0.0), angle)
