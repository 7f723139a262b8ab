"""Track coordinates (Frenet frame): arc length and signed offset relative to a map's centreline.

Formulas: docs/reference/f110.md 4.5.
"""

import jax
import jax.numpy as jnp

from physics.angles import wrap_angle_by_remainder
from physics.mapbank import MapBank


def frenet(
    bank: MapBank, map_index: jax.Array, xy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Projects points onto the nearest segment of the whole centreline.

    Args:
      map_index: int32 scalar, or the batch shape of `xy`.
      xy: `[..., 2]` metres.

    Returns:
      `(s, d, heading, index)`: arc length of the projection in metres, in [0, length) on a closed line and
      [0, length] on an open one; signed distance from the segment's line in metres, positive to the left;
      tangent angle at the projection, interpolated between points, in [-pi, pi); int32 number of the
      segment, which starts at that centreline point.
    """
    count = bank.centerline.shape[1]
    points = bank.centerline[0] if bank.field.shape[0] == 1 else bank.centerline[map_index]
    start = points[..., :2]
    distance, _, _ = _foot(start, jnp.roll(start, -1, axis=-2), xy[..., None, :])
    closing = jnp.arange(count) == count - 1
    distance = jnp.where(closing & ~jnp.asarray(bank.closed[map_index])[..., None], jnp.inf, distance)
    return _project(bank, map_index, xy, jnp.argmin(distance, axis=-1).astype(jnp.int32))


def frenet_near(
    bank: MapBank, map_index: jax.Array, xy: jax.Array, index_hint: jax.Array, window: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Projects points like `frenet`, but only onto segments within `window` (static) of `index_hint`.

    Exact as long as the point moved less than `window` segments since the hint was taken.
    `index_hint` has the batch shape of `xy`.
    """
    offset = jnp.arange(-window, window + 1, dtype=jnp.int32)
    count = bank.centerline.shape[1]
    maps = jnp.asarray(map_index)[..., None]
    candidates = jnp.asarray(index_hint)[..., None] + offset
    candidates = jnp.where(bank.closed[maps], jnp.mod(candidates, count), jnp.clip(candidates, 0, count - 2))
    start, end = _ends(bank, maps, candidates)
    distance, _, _ = _foot(start, end, xy[..., None, :])
    best = jnp.argmin(distance, axis=-1)
    index = jnp.take_along_axis(candidates, best[..., None], axis=-1)[..., 0]
    return _project(bank, map_index, xy, index)


def cartesian(bank: MapBank, map_index: jax.Array, s: jax.Array, d: jax.Array) -> jax.Array:
    """Returns the world pose `[..., 3]` at arc length `s` and offset `d` (left positive), along the line.

    `s` wraps on closed lines and is clipped on open ones. The offset is taken along the
    normal of the segment, the inverse of `frenet` away from corners tighter than the offset.
    """
    length = bank.centerline_length[map_index]
    s = jnp.where(bank.closed[map_index], jnp.mod(s, jnp.maximum(length, 1e-6)), jnp.clip(s, 0.0, length))
    position = s / _spacing(bank, map_index)
    # Rounding can put the position on the far end of the last segment.
    index = jnp.minimum(jnp.floor(position).astype(jnp.int32), _segments(bank, map_index) - 1)
    start, end = _ends(bank, map_index, index)
    along = end[..., :2] - start[..., :2]
    unit = along / jnp.maximum(jnp.linalg.norm(along, axis=-1, keepdims=True), 1e-6)
    normal = jnp.stack([-unit[..., 1], unit[..., 0]], axis=-1)
    fraction = position - index
    xy = start[..., :2] + fraction[..., None] * along + jnp.asarray(d)[..., None] * normal
    return jnp.concatenate([xy, _heading(start, end, fraction)[..., None]], axis=-1)


def arc_difference(bank: MapBank, map_index: jax.Array, start: jax.Array, end: jax.Array) -> jax.Array:
    """Returns the signed arc length from `start` to `end` in metres, the shorter way on closed lines."""
    length = jnp.maximum(bank.centerline_length[map_index], 1e-6)
    difference = end - start
    return jnp.where(bank.closed[map_index], difference - length * jnp.round(difference / length), difference)


def _segments(bank: MapBank, map_index: jax.Array) -> jax.Array:
    count = bank.centerline.shape[1]
    return jnp.where(bank.closed[map_index], count, count - 1)


def _spacing(bank: MapBank, map_index: jax.Array) -> jax.Array:
    return jnp.maximum(bank.centerline_length[map_index] / _segments(bank, map_index), 1e-6)


def _ends(bank: MapBank, map_index: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
    count = bank.centerline.shape[1]
    table = bank.centerline.reshape(-1, 4)
    after = jnp.where(index + 1 == count, 0, index + 1)
    base = jnp.asarray(map_index) * count
    return table[base + index], table[base + after]


def _foot(start: jax.Array, end: jax.Array, xy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns squared distances to segments, the feet's positions along them (0 to 1), and signed offsets."""
    # By components, because reductions over a trailing axis of two are five times slower on a CPU.
    along_x, along_y = end[..., 0] - start[..., 0], end[..., 1] - start[..., 1]
    dx, dy = xy[..., 0] - start[..., 0], xy[..., 1] - start[..., 1]
    squared = jnp.maximum(along_x * along_x + along_y * along_y, 1e-12)
    fraction = jnp.clip((dx * along_x + dy * along_y) / squared, 0.0, 1.0)
    gap_x, gap_y = dx - fraction * along_x, dy - fraction * along_y
    offset = (along_x * dy - along_y * dx) / jnp.sqrt(squared)
    return gap_x * gap_x + gap_y * gap_y, fraction, offset


def _heading(start: jax.Array, end: jax.Array, fraction: jax.Array) -> jax.Array:
    return wrap_angle_by_remainder(
        start[..., 2] + fraction * wrap_angle_by_remainder(end[..., 2] - start[..., 2])
    )


def _project(
    bank: MapBank, map_index: jax.Array, xy: jax.Array, index: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    start, end = _ends(bank, map_index, index)
    _, fraction, d = _foot(start, end, xy)
    s = (index + fraction) * _spacing(bank, map_index)
    length = bank.centerline_length[map_index]
    s = jnp.where(bank.closed[map_index] & (s >= length), 0.0, s)
    return s, d, _heading(start, end, fraction), index
