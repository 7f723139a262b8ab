"""A planar lidar: sphere tracing on distance fields, boxes of other cars, Gaussian noise.

A ray advances by the distance field until it stands on an occupied cell (J. C. Hart, "Sphere
tracing", 1996). Most rays need three or four steps, a few along a wall more than a hundred, so
after some steps the unfinished ones are gathered into smaller arrays (`_STAGES`).
"""

from dataclasses import dataclass
from functools import partial
from math import ceil, pi
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from physics.boxes import ray_box
from physics.compaction import first_true
from physics.mapbank import MapBank, distance_at

# (steps, block, share): all rays take some steps; then the blocks of neighbouring beams that are not done
# move on to the next stage, which has room for a share of the rays. After the last stage rays go on until all
# are done, and so do small batches from the start.
_STAGES = ((8, 4, 0.22), (20, 4, 0.4), (40, 4, 0.4), (60, 4, 0.4))
_SMALL = 1 << 14  # fewer rays are not worth the stages, nor the time to compile them
_LAST_STEPS = 16


@dataclass(frozen=True)
class Lidar:
    """A scanner at the car's reference point that looks ahead.

    Attributes:
      beams: number of beams; beam 0 is the rightmost one.
      fov: angle between the first beam and the last, rad.
      max_range: longest range, m.
      noise: standard deviation of a range, m.
      angle_bins: 0 traces beams along their own angles. Otherwise directions come from a table of that
        many angles on [0, 2 pi], both ends included, and a beam takes the bin its angle is truncated to:
        2000 gives the f1tenth_gym scans, whose beams are off by up to 0.2 degrees.

    Raises:
      ValueError: a value is out of range.
    """

    beams: int = 108
    fov: float = 4.7
    max_range: float = 30.0
    noise: float = 0.01
    angle_bins: int = 0

    def __post_init__(self):
        if self.beams < 1:
            raise ValueError(f"lidar.beams={self.beams}: at least 1 is needed")
        if not 0 <= self.fov <= 2 * pi:
            raise ValueError(f"lidar.fov={self.fov}: must lie in [0, 2 pi]")
        if not self.max_range > 0:
            raise ValueError(f"lidar.max_range={self.max_range}: must be positive")
        if not self.noise >= 0:
            raise ValueError(f"lidar.noise={self.noise}: must not be negative")
        if self.angle_bins != 0 and self.angle_bins < 2:
            raise ValueError(f"lidar.angle_bins={self.angle_bins}: 0 (exact) or at least 2")

    @property
    def angles(self) -> np.ndarray:
        """Directions `[beams]` relative to the car's heading, rad, counter-clockwise."""
        return np.linspace(-self.fov / 2, self.fov / 2, self.beams) if self.beams > 1 else np.zeros(1)


class _Rays(NamedTuple):
    """Rays in the bank's cells. `start` is the flat index of a map's first cell, None if there is one map."""

    row: jax.Array
    col: jax.Array
    row_rate: jax.Array
    col_rate: jax.Array
    start: jax.Array | None


def scan(bank: MapBank, map_index: jax.Array, pose: jax.Array, lidar: Lidar) -> jax.Array:
    """Noise-free distances to the walls, m.

    Batches of poses are traced together, whether they come as leading axes or through `vmap`.

    Args:
      map_index: int32 `[...]` or scalar.
      pose: `[..., 3]` x, y, heading; m and rad.

    Returns:
      `[..., beams]` in [0, max_range]; 0 from within walls or outside the map.
    """
    single = bank.field.shape[0] == 1
    affine = (bank.to_cell[0] if single else bank.to_cell[map_index])[..., None, :, :]
    here = distance_at(bank, map_index, pose[..., :2])[..., None]
    x, y = pose[..., :1], pose[..., 1:2]
    cell = [affine[..., i, 0] * x + affine[..., i, 1] * y + affine[..., i, 2] for i in (0, 1)]
    # A ray that starts outside the map waits on cell [0, 0], which is occupied.
    row, col = (jnp.where(here > 0, c, 0) for c in cell)
    row_rate, col_rate = _rates(affine, pose[..., 2:], lidar)
    start = None if single else jnp.asarray(map_index * bank.field[0].size)[..., None]
    rays = _Rays(row, col, row_rate, col_rate, start)
    rays, here = jax.tree.map(lambda v: jnp.broadcast_to(v, row_rate.shape), (rays, here))
    return jnp.minimum(_march(bank.field, lidar.max_range, rays, here), lidar.max_range)


def add_opponents(
    ranges: jax.Array, pose: jax.Array, others: jax.Array, sizes: jax.Array, valid: jax.Array, lidar: Lidar
) -> jax.Array:
    """Shortens the ranges of beams that meet other cars.

    Args:
      ranges: `[beams]` m.
      pose: `[3]` of the scanning car.
      others: `[N, 3]` poses of the boxes' centres.
      sizes: `[N, 2]` their lengths and widths, m.
      valid: `[N]` bool; other boxes are not seen.

    Returns:
      `[beams]` m.
    """
    angles = pose[2] + lidar.angles.astype(pose.dtype)
    hits = jax.vmap(lambda box, size: ray_box(pose[:2], angles, box, size[0], size[1]))(others, sizes)
    return jnp.minimum(ranges, jnp.where(valid[:, None], hits, jnp.inf).min(0, initial=jnp.inf))


def add_noise(key: jax.Array, ranges: jax.Array, lidar: Lidar, sigma: jax.Array | None = None) -> jax.Array:
    """Adds independent Gaussian noise to `ranges` (any shape, m), clipped to [0, max_range].

    `sigma` in metres, possibly traced, replaces `lidar.noise`.
    """
    sigma = lidar.noise if sigma is None else sigma
    noise = sigma * jax.random.normal(key, ranges.shape, ranges.dtype)
    return jnp.clip(ranges + noise, 0.0, lidar.max_range)


def _rates(affine: jax.Array, heading: jax.Array, lidar: Lidar) -> list[jax.Array]:
    """Rows and columns `[..., beams]` that beams cross per metre.

    `affine` is `[..., 1, 2, 3]` as in the bank, `heading` `[..., 1]`.
    """
    dtype = heading.dtype
    if lidar.angle_bins:
        turns = heading / (2 * pi) + (lidar.angles / (2 * pi)).astype(dtype)
        index = ((turns - jnp.floor(turns)) * lidar.angle_bins).astype(jnp.int32)
        table = np.linspace(0, 2 * pi, lidar.angle_bins)
        cos, sin = (jnp.asarray(f(table), dtype).at[index].get(mode="clip") for f in (np.cos, np.sin))
        return [affine[..., i, 0] * cos + affine[..., i, 1] * sin for i in (0, 1)]
    cos, sin = jnp.cos(heading), jnp.sin(heading)
    forward = [affine[..., i, 0] * cos + affine[..., i, 1] * sin for i in (0, 1)]
    left = [affine[..., i, 1] * cos - affine[..., i, 0] * sin for i in (0, 1)]
    beams = np.stack([np.cos(lidar.angles), np.sin(lidar.angles)]).astype(dtype)
    # Elementwise, XLA would fuse this into every use and take the heading's sine once per beam and use.
    return [
        jnp.matmul(jnp.concatenate(ahead_left, -1), beams, precision=lax.Precision.HIGHEST)
        for ahead_left in zip(forward, left, strict=True)
    ]


@custom_vmap
def _march(field: jax.Array, reach: jax.Array, rays: _Rays, travelled: jax.Array) -> jax.Array:
    """Distances at which rays stop, given how far they have come; all `[...]`, and `field` `[M, H, W]`."""
    cells, cols = field.reshape(-1), field.shape[-1]
    flat = jax.tree.map(jnp.ravel, (rays, travelled))
    stages = _STAGES if travelled.size > _SMALL else ()
    return _finish(cells, cols, reach, *flat, stages).reshape(travelled.shape)


@_march.def_vmap
def _march_batch(axis_size, batched, field, reach, rays, travelled):
    """Puts the new axis beside the others: compaction works best on all rays at once."""
    if batched[0] or batched[1]:
        axes = jax.tree.map(lambda b: 0 if b else None, tuple(batched))
        return jax.vmap(_march.fun, axes)(field, reach, rays, travelled), True
    rays, travelled = jax.tree.map(
        lambda b, v: v if b else jnp.broadcast_to(v, (axis_size, *v.shape)),
        tuple(batched[2:]),
        (rays, travelled),
    )
    return _march(field, reach, rays, travelled), True


def _finish(
    cells: jax.Array, cols: int, reach: jax.Array, rays: _Rays, travelled: jax.Array, stages: tuple
) -> jax.Array:
    """Takes rays `[N]` to their ends: some steps for all, then later stages for those not done."""

    def ahead(travelled):
        # The ring of occupied cells stops rays before an index could name a cell of another row or map.
        row = (rays.row + travelled * rays.row_rate).astype(jnp.int32)
        index = row * cols + (rays.col + travelled * rays.col_rate).astype(jnp.int32)
        index = index if rays.start is None else index + rays.start
        distance = cells.at[index].get(mode="clip", wrap_negative_indices=False)
        return jnp.where(travelled <= reach, distance, 0).astype(travelled.dtype)

    def advance(travelled, steps):
        travelled = lax.fori_loop(0, steps - 1, lambda _, t: t + ahead(t), travelled)
        last = ahead(travelled)
        return travelled + last, last > 0

    if not stages:
        carry = (travelled, jnp.ones(travelled.shape, bool))
        return lax.while_loop(lambda c: c[1].any(), lambda c: advance(c[0], _LAST_STEPS), carry)[0]
    (steps, block, share), *later = stages
    travelled, unfinished = advance(travelled, steps)
    count = travelled.size
    rays, travelled, unfinished = jax.tree.map(partial(_blocks, block), (rays, travelled, unfinished))
    room = ceil(travelled.shape[0] * share)

    def select(carry):
        travelled, unfinished, _ = carry
        chosen, place, total = first_true(unfinished, room)
        idle = jnp.arange(room)[:, None] >= total
        picked = jax.tree.map(lambda v: v[chosen].ravel(), rays)
        start = jnp.where(idle, reach + 1, travelled[chosen]).ravel()
        moved = _blocks(block, _finish(cells, cols, reach, picked, start, later))
        taken = unfinished & (place < room)
        travelled = jnp.where(taken[:, None], moved[jnp.clip(place, 0, room - 1)], travelled)
        return travelled, unfinished & ~taken, total > room

    unfinished = unfinished.any(1)
    travelled, _, _ = lax.while_loop(lambda c: c[2], select, (travelled, unfinished, unfinished.any()))
    return travelled.ravel()[:count]


def _blocks(size: int, values: jax.Array) -> jax.Array:
    return jnp.pad(values, (0, -values.size % size)).reshape(-1, size)
