"""Lines of sight through voxels: visibility between two points, and the first voxel that a shot hits.

The voxels along a segment are those of J. Amanatides and A. Woo, "A fast voxel traversal algorithm
for ray tracing" (1987), with the exact number of crossings: the walk never passes the end's cell on
any axis. `is_sight_clear` walks over columns only: within one it compares the word of the column with
the bits of the heights that the segment has there. See docs/reference/echelon.md, 'Lines of sight'.
"""

from functools import cache, partial
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from physics.sparse_batch import broadcast_unbatched, fold_active, on_accelerator, take_rows
from physics.voxels import SightColumns, Terrain, make_sight_columns, opaque_columns

# Later than any crossing on the segment; finite, so that its product with a zero slope is 0.
_NEVER = np.float32(1e9)
# (columns, share): all segments walk this many columns, then those that are neither blocked nor at their end
# are compacted into chunks of this share of all, for the next stage. Small batches have the last stage only.
_STAGES = ((8, 0.5), (8, 0.5), (16, 0.5))
_ACCELERATOR_STAGES = ((16, 0.25),)
_SMALL, _FEW = 1 << 14, 1 << 8
_UNROLL, _ACCELERATOR_UNROLL = 4, 16
# A walk's state is one word, since XLA on a CPU computes a loop's body once for each array that it carries:
# columns walked along x (10 bits), along y (10), lowest cell to look at (6), and these two.
_ENDED, _BLOCKED = np.uint32(1 << 30), np.uint32(1 << 31)


def is_sight_clear(
    terrain: Terrain, start: jax.Array, end: jax.Array, *, steps: int | None = None, share: float = 1.0
) -> jax.Array:
    """Returns whether no opaque voxel lies between points, bool `[...]`; symmetric in the two points.

    The voxels of the two points are ignored. A segment that leaves the map in between is blocked, and one
    within a single voxel is clear. If a segment meets an edge or a corner of voxels exactly, it is arbitrary
    which of the adjoining voxels count. A segment with a non-finite point is blocked. Nested batches (leading
    axes or `vmap`) are merged into one.

    Args:
      start: `[..., 3]` x, y, z in voxels.
      end: `[..., 3]`.
      steps: largest number of borders between columns that are crossed; beyond them segments count as
        clear. None for no limit.
      share: expected share of segments that are not single points, which are compacted first (`steps` None
        only).
    """
    start, end = jnp.broadcast_arrays(start, end)
    points = [[point[..., axis].ravel() for axis in range(3)] for point in (start, end)]
    count = points[0][0].size
    index = jnp.broadcast_to(jnp.asarray(terrain.map_index, jnp.int32), (count,))
    rays = _Rays(*points, index, jnp.zeros((count,), jnp.int32))
    return _walker(terrain.shape[0], steps, share)(make_sight_columns(terrain), rays).reshape(
        start.shape[:-1]
    )


def find_first_voxel(
    terrain: Terrain, start: jax.Array, end: jax.Array, *, steps: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Finds the first opaque voxel on segments; the start's voxel does not count, the end's does.

    A segment that leaves the map hits the first cell outside. On ties a step along z comes before one along
    y, and that before one along x.

    Args:
      start: `[..., 3]` x, y, z in voxels.
      end: `[..., 3]`.
      steps: largest number of borders between voxels that are crossed (|dx| + |dy| + |dz| in cells);
        voxels beyond are not hit.

    Returns:
      Whether there is a hit `[...]`, the share of the segment at which it enters that voxel (1 without
      a hit), and the voxel, int32 `[..., 3]` (that of the end without one).
    """
    start, end = (jnp.moveaxis(point, -1, 0) for point in jnp.broadcast_arrays(start, end))
    way = end - start
    last = jnp.floor(end).astype(jnp.int32)
    sign = jnp.where(way < 0, -1, 1)
    slope = 1 / jnp.where(way == 0, 1, way)
    size = np.array(terrain.shape[::-1], np.int32)
    views = make_sight_columns(terrain)

    def advance(_, carry):
        cell, at, hit = carry
        border = jnp.where(way < 0, cell, cell + 1)
        times = jnp.where(cell == last, _NEVER, (border - start) * slope)
        time = times.min(0)
        moves = ~hit & (time < _NEVER)
        x, y, z = (
            c + jnp.where(a & moves, s, 0) for c, a, s in zip(cell, _first_axis(times), sign, strict=True)
        )
        inside = (x >= 0) & (x < size[0]) & (y >= 0) & (y < size[1]) & (z >= 0) & (z < size[2])
        word = opaque_columns(views, terrain.map_index, 0, x, y)
        entered = moves & (~inside | ((word >> jnp.clip(z, 0, 31).astype(jnp.uint32)) & 1 != 0))
        return jnp.stack([x, y, z]), jnp.where(entered, time, at), hit | entered

    carry = (
        jnp.floor(start).astype(jnp.int32),
        jnp.ones(start.shape[1:], start.dtype),
        jnp.zeros(start.shape[1:], bool),
    )
    cell, at, hit = lax.fori_loop(0, steps, advance, carry, unroll=steps if on_accelerator() else 1)
    return hit, jnp.clip(at, 0, 1), jnp.moveaxis(jnp.where(hit, cell, last), 0, -1)


def passes_smoke_cloud(
    start: jax.Array, end: jax.Array, centre: jax.Array, alive: jax.Array, radius: jax.Array
) -> jax.Array:
    """Returns whether segments come within `radius` of a live cloud's centre, bool `[...]`.

    Args:
      start: `[..., 3]`.
      end: `[..., 3]`.
      centre: `[C, 3]`.
      alive: `[C]` bool.
      radius: of the clouds, scalar or `[C]`.
    """
    way = [(end - start)[..., axis, None] for axis in range(3)]
    to = [centre[:, axis] - start[..., axis, None] for axis in range(3)]
    square = jnp.maximum(sum(w * w for w in way), np.finfo(np.float32).tiny)
    share = jnp.clip(sum(t * w for t, w in zip(to, way, strict=True)) / square, 0, 1)
    apart = sum((t - share * w) ** 2 for t, w in zip(to, way, strict=True))
    return (alive & (apart <= jnp.square(radius))).any(-1)


class _Rays(NamedTuple):
    """Segments whose visibility is computed.

    start, end: three arrays `[R]`; map_index, row: int32 `[R]`, map and environment of each segment.
    """

    start: list[jax.Array]
    end: list[jax.Array]
    map_index: jax.Array
    row: jax.Array


@cache
def _walker(height: int, steps: int | None, share: float):
    """Returns `(views, rays) -> [R]` bool, whether a segment is clear; it merges nested batches into one."""

    @custom_vmap
    def walker(views, rays):
        rays, blocked = _arranged(rays, (views.stored.shape[2], views.stored.shape[1], height))
        low = jnp.maximum(jnp.floor(rays.start[2]) + 1, 0).astype(jnp.uint32)
        state = (low << 20) | jnp.where(blocked, _BLOCKED, np.uint32(0))
        if steps is not None:
            return _several(_step(views, rays), steps + 1, state) < _BLOCKED
        stages = _STAGES if state.size > _SMALL else ()
        if on_accelerator():
            stages = _ACCELERATOR_STAGES
        elif share < 1 and state.size > _FEW:
            stages = ((1, share), *stages)
        return _finish(views, rays, state, stages) < _BLOCKED

    @walker.def_vmap
    def batch(axis_size, batched, views, rays):
        """Merges the new axis into that of the segments, and the overlays into one."""
        if batched[0].stored:
            axes = jax.tree.map(lambda b: 0 if b else None, tuple(batched))
            return jax.vmap(walker.fun, axes)(views, rays), True

        rays = broadcast_unbatched(batched[1], rays, axis_size)
        if any(batched[0][1:]):
            overlays = broadcast_unbatched(batched[0][1:], views[1:], axis_size)
            first_row = jnp.arange(axis_size, dtype=jnp.int32)[:, None] * overlays[0].shape[1]
            rays = rays._replace(row=rays.row + first_row)
            views = SightColumns(views.stored, *(lax.collapse(v, 0, 2) for v in overlays))
        shape = rays.row.shape
        return walker(views, jax.tree.map(jnp.ravel, rays)).reshape(shape), True

    return walker


def _arranged(rays: _Rays, size: tuple[int, int, int]) -> tuple[_Rays, jax.Array]:
    """Orders segments from their lower ends up, and marks those that leave the map and so are blocked.

    Blocked segments, and segments without voxels between their ends, become points, which take no steps.
    """
    (x, y, z), (u, v, w) = rays.start, rays.end
    swap = (w < z) | ((w == z) & ((u < x) | ((u == x) & (v < y))))
    start = [jnp.where(swap, b, a) for a, b in zip(rays.start, rays.end, strict=True)]
    end = [jnp.where(swap, a, b) for a, b in zip(rays.start, rays.end, strict=True)]
    first, last = [jnp.floor(p) for p in start], [jnp.floor(p) for p in end]
    crossings = sum(jnp.abs(b - a) for a, b in zip(first, last, strict=True))
    opening, closing, sign = [], [], []
    for a, b, p, q in zip(first, last, start, end, strict=True):
        way = q - p
        slope = 1 / jnp.where(way == 0, 1, way)
        opening.append(jnp.where(a == b, _NEVER, (jnp.where(way < 0, a, a + 1) - p) * slope))
        closing.append(jnp.where(a == b, -_NEVER, (jnp.where(way < 0, b + 1, b) - p) * slope))
        sign.append(jnp.where(way < 0, -1.0, 1.0))
    # A walk is monotonic and the map convex: between two inside cells all cells are inside.
    inside = True
    for a, b, s, n, opens, closes in zip(
        first, last, sign, size, _first_axis(opening), _last_axis(closing), strict=True
    ):
        for cell in (a + jnp.where(opens, s, 0), b - jnp.where(closes, s, 0)):
            inside = inside & (cell >= 0) & (cell < n)
    walks = inside & (crossings > 1)
    # A non-finite sum comes from a non-finite point.
    blocked = ~inside & ~(crossings <= 1)
    start, end = ([jnp.where(walks, c, 0) for c in point] for point in (start, end))
    return rays._replace(start=start, end=end), blocked


def _step(views: SightColumns, rays: _Rays):
    """Returns `(states [R]) -> states`, which tests one column and moves to the next one, if any."""
    start, end = rays.start, rays.end
    way = [q - p for p, q in zip(start, end, strict=True)]
    first, last = ([jnp.floor(c).astype(jnp.int32) for c in point] for point in (start, end))
    count = [jnp.abs(last[i] - first[i]) for i in (0, 1)]
    sign = [jnp.where(way[i] < 0, -1, 1) for i in (0, 1)]
    rate = [1 / jnp.where(way[i] == 0, 1, jnp.abs(way[i])) for i in (0, 1)]
    gap = [jnp.where(way[i] < 0, start[i] - first[i], first[i] + 1 - start[i]) for i in (0, 1)]

    def step(state):
        walked = [((state >> shift) & 1023).astype(jnp.int32) for shift in (0, 10)]
        time_x, time_y = (
            jnp.where(k == n, _NEVER, (k.astype(jnp.float32) + g) * r)
            for k, n, g, r in zip(walked, count, gap, rate, strict=True)
        )
        time = jnp.minimum(time_x, time_y)
        final = time == _NEVER
        leave = jnp.minimum(jnp.floor(start[2] + time * way[2]), jnp.floor(end[2])).astype(jnp.int32)
        high = jnp.where(final, last[2] - 1, leave)
        low = (state >> 20) & 63
        ix, iy = (first[i] + walked[i] * sign[i] for i in (0, 1))
        word = opaque_columns(views, rays.map_index, rays.row, ix, iy)
        upto = np.uint32(0xFFFFFFFF) >> (31 - high).astype(jnp.uint32)
        seen = (low.astype(jnp.int32) <= high) & ((word & upto) >> low != 0)
        along_x = time_x < time_y
        walked = (along_x & ~final).astype(jnp.uint32) + ((~along_x & ~final).astype(jnp.uint32) << 10)
        flags = jnp.where(seen, _BLOCKED, np.uint32(0)) | jnp.where(final, _ENDED, np.uint32(0))
        kept = state & (_BLOCKED | _ENDED | np.uint32((1 << 20) - 1))
        return (kept + walked) | (leave.astype(jnp.uint32) << 20) | flags

    return step


def _several(step, columns: int, state: jax.Array) -> jax.Array:
    unroll = columns if on_accelerator() else min(columns, _UNROLL)
    return lax.fori_loop(0, columns, lambda _, s: step(s), state, unroll=unroll)


def _finish(views: SightColumns, rays: _Rays, state: jax.Array, stages: tuple) -> jax.Array:
    """Walks segments until they are blocked or end."""
    step = _step(views, rays)
    if not stages:
        together = _ACCELERATOR_UNROLL if on_accelerator() else _UNROLL
        return lax.while_loop(lambda s: (s < _ENDED).any(), partial(_several, step, together), state)
    (columns, share), *later = stages
    state = _several(step, columns, state)
    room = ceil(state.size * share)

    def finish(active, state):
        picked, begin = take_rows((rays, state), active.index)
        moved = _finish(views, picked, jnp.where(active.live, begin, _ENDED), tuple(later))
        # Gathering all states by their places costs less on a CPU than scattering those that moved.
        taken = (state < _ENDED) & (active.place < room)
        return jnp.where(taken, take_rows(moved, jnp.clip(active.place, 0, room - 1)), state)

    return fold_active(state < _ENDED, finish, state, room)


def _first_axis(times) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Marks the first of three crossings: x only if strictly first, y if before z, else z."""
    x, y, z = times
    first_x = (x < y) & (x < z)
    first_y = ~first_x & (y < z)
    return first_x, first_y, ~first_x & ~first_y


def _last_axis(times) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Marks the last of three crossings, with ties in the same order."""
    x, y, z = times
    last_x = (x >= y) & (x >= z)
    last_y = ~last_x & (y >= z)
    return last_x, last_y, ~last_x & ~last_y
