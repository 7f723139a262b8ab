"""Sight through voxels: whether two points see each other, and where a shot hits.

The voxels along a segment are those of J. Amanatides and A. Woo, "A fast voxel traversal algorithm
for ray tracing" (1987), with the exact number of crossings: the walk never passes the end's cell on
any axis. `sight_clear` walks over columns only: within one it compares the word of the column with
the bits of the heights that the segment has there. Source: spec sections 2.1, 2.3 and 9.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from physics.voxels import Terrain, opaque_columns

_UNROLL = 4
# Later than any crossing on the segment; finite, so that no product with a zero slope is undefined.
_NEVER = np.float32(1e9)


def sight_clear(terrain: Terrain, start: jax.Array, end: jax.Array, *, steps: int | None = None) -> jax.Array:
    """Whether no opaque voxel lies between points, bool `[...]`; the same both ways.

    The voxels of the two points are not looked at. Leaving the map in between blocks, and a segment
    within one voxel is clear. If the segment meets an edge or a corner of voxels exactly, which of the
    voxels there count is arbitrary.

    Args:
      start: `[..., 3]` x, y, z in voxels.
      end: `[..., 3]`.
      steps: borders between columns to cross at most, for segments that are known to be short; what
        lies farther is taken for clear. None walks as far as the longest segment of the batch needs.
    """
    ray, leaves = _prepare(terrain, start, end)
    walk = _Walk(ray.first[..., 0], ray.first[..., 1], ray.first[..., 2] + 1, leaves)

    def advance(walk):
        return _next_column(terrain, ray, walk)

    if steps is not None:
        walk = advance(lax.fori_loop(0, steps, lambda _, walk: advance(walk), walk, unroll=_UNROLL))
        return ~walk.blocked
    most = jnp.abs(ray.last - ray.first)[..., :2].sum(-1).max(initial=0) + 1

    def several(carry):
        done, walk = carry
        for _ in range(_UNROLL):
            walk = advance(walk)
        return done + _UNROLL, walk

    return ~lax.while_loop(lambda carry: carry[0] < most, several, (jnp.int32(0), walk))[1].blocked


def cast(
    terrain: Terrain, start: jax.Array, end: jax.Array, *, steps: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The first opaque voxel on segments; the start's voxel does not count, the end's does.

    Leaving the map is a hit of the first cell outside. On ties a step along z comes before one along
    y, and that before one along x.

    Args:
      start: `[..., 3]` x, y, z in voxels.
      end: `[..., 3]`.
      steps: borders between voxels to cross at most (|dx| + |dy| + |dz| in cells); what lies farther
        is not hit.

    Returns:
      Whether there is a hit `[...]`, the share of the segment at which it enters that voxel (1 without
      a hit), and the voxel, int32 `[..., 3]` (that of the end without one).
    """
    cell, last, sign, inverse, plane = _traversal(start, end)
    size = np.array(terrain.shape[::-1], np.int32)

    def advance(_, carry):
        cell, at, hit = carry
        times = jnp.where(cell == last, _NEVER, (cell + plane - start) * inverse)
        move = (_first_axis(times) & (cell != last) & ~hit[..., None]).astype(jnp.int32)
        moved = move.any(-1)
        cell = cell + move * sign
        word = opaque_columns(terrain, cell[..., 0], cell[..., 1])
        height = jnp.clip(cell[..., 2], 0, size[2] - 1).astype(jnp.uint32)
        inside = ((cell >= 0) & (cell < size)).all(-1)
        entered = moved & (~inside | ((word >> height) & 1 != 0))
        return cell, jnp.where(entered, times.min(-1), at), hit | entered

    at, hit = (jnp.full(cell.shape[:-1], value) for value in (np.float32(1), False))
    cell, at, hit = lax.fori_loop(0, steps, advance, (cell, at, hit), unroll=True)
    return hit, jnp.clip(at, 0, 1), jnp.where(hit[..., None], cell, last)


def in_smoke(
    start: jax.Array, end: jax.Array, centre: jax.Array, alive: jax.Array, radius: jax.Array
) -> jax.Array:
    """Whether segments come within `radius` of a living cloud's centre, bool `[...]`.

    Args:
      start: `[..., 3]`.
      end: `[..., 3]`.
      centre: `[C, 3]`.
      alive: `[C]` bool.
      radius: of the clouds, scalar or `[C]`.
    """
    way = (end - start)[..., None, :]
    to = centre - start[..., None, :]
    share = (to * way).sum(-1) / jnp.maximum((way * way).sum(-1), np.finfo(np.float32).tiny)
    apart = to - jnp.clip(share, 0, 1)[..., None] * way
    return (alive & ((apart * apart).sum(-1) <= jnp.square(radius))).any(-1)


class _Rays(NamedTuple):
    """Segments that do not descend.

    start, way, inverse `[..., 3]`: origin, end minus origin, 1 / way; sign `[..., 3]` -1 or 1; plane
    `[..., 3]`: 1 where a cell is left through its upper border; first, last `[..., 3]`: cells.
    """

    start: jax.Array
    way: jax.Array
    inverse: jax.Array
    sign: jax.Array
    plane: jax.Array
    first: jax.Array
    last: jax.Array


class _Walk(NamedTuple):
    """A column, the lowest cell in it that is to be looked at, and whether something blocks."""

    x: jax.Array
    y: jax.Array
    low: jax.Array
    blocked: jax.Array


def _traversal(start: jax.Array, end: jax.Array) -> tuple[jax.Array, ...]:
    """First and last cells, signs, inverse slopes, and 1 where cells are left through upper borders."""
    way = end - start
    cell, last = (jnp.floor(point).astype(jnp.int32) for point in (start, end))
    sign = jnp.where(way < 0, -1, 1)
    inverse = 1 / jnp.where(way == 0, 1, way)
    return cell, last, sign, inverse, (way >= 0).astype(jnp.int32)


def _first_axis(times: jax.Array) -> jax.Array:
    """One-hot bool `[..., 3]`, the earliest of three: x only if alone, y if before z, else z."""
    x, y, z = (times[..., i] for i in range(3))
    first_x = (x < y) & (x < z)
    first_y = ~first_x & (y < z)
    return jnp.stack([first_x, first_y, ~first_x & ~first_y], -1)


def _last_axis(times: jax.Array) -> jax.Array:
    """One-hot bool `[..., 3]`, the last of three crossings in the same order."""
    x, y, z = (times[..., i] for i in range(3))
    last_x = (x >= y) & (x >= z)
    last_y = ~last_x & (y >= z)
    return jnp.stack([last_x, last_y, ~last_x & ~last_y], -1)


def _prepare(terrain: Terrain, start: jax.Array, end: jax.Array) -> tuple[_Rays, jax.Array]:
    """Segments from their lower ends up, and which of them leave the map in between."""
    start, end = jnp.broadcast_arrays(start, end)
    (x, y, z), (u, v, w) = (jnp.moveaxis(point, -1, 0) for point in (start, end))
    swap = ((w < z) | ((w == z) & ((u < x) | ((u == x) & (v < y)))))[..., None]
    start, end = jnp.where(swap, end, start), jnp.where(swap, start, end)
    first, last, sign, inverse, plane = _traversal(start, end)
    opening = jnp.where(first == last, _NEVER, (first + plane - start) * inverse)
    closing = jnp.where(first == last, -_NEVER, (last + 1 - plane - start) * inverse)
    size = np.array(terrain.shape[::-1], np.int32)
    second, last_but_one = first + _first_axis(opening) * sign, last - _last_axis(closing) * sign
    outside = [((cell < 0) | (cell >= size)).any(-1) for cell in (second, last_but_one)]
    # A walk is monotonic and the map convex: between two cells inside, all are.
    leaves = (jnp.abs(last - first).sum(-1) > 1) & (outside[0] | outside[1])
    return _Rays(start, end - start, inverse, sign, plane, first, last), leaves


def _next_column(terrain: Terrain, ray: _Rays, walk: _Walk) -> _Walk:
    """Looks at the cells of one column and moves on to the next; stays in the last."""
    height = np.int32(terrain.shape[0])
    time_x, time_y = (
        jnp.where(
            cell == ray.last[..., axis],
            _NEVER,
            ((cell + ray.plane[..., axis]) - ray.start[..., axis]) * ray.inverse[..., axis],
        )
        for axis, cell in enumerate((walk.x, walk.y))
    )
    time = jnp.minimum(time_x, time_y)
    final = time == _NEVER
    top = ray.last[..., 2]
    leave = jnp.floor(ray.start[..., 2] + time * ray.way[..., 2])
    leave = jnp.clip(jnp.minimum(leave, top.astype(jnp.float32)).astype(jnp.int32), ray.first[..., 2], top)
    high = jnp.where(final, top - 1, leave)
    word = opaque_columns(terrain, walk.x, walk.y)
    upto = np.uint32(0xFFFFFFFF) >> (31 - jnp.clip(high, 0, height - 1)).astype(jnp.uint32)
    low = jnp.clip(walk.low, 0, 31).astype(jnp.uint32)
    seen = (walk.low <= high) & ((word & upto) >> low != 0)
    step_x = (time_x < time_y) & ~final
    return _Walk(
        walk.x + jnp.where(step_x, ray.sign[..., 0], 0),
        walk.y + jnp.where(step_x | final, 0, ray.sign[..., 1]),
        leave,
        walk.blocked | seen,
    )
