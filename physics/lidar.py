"""Planar lidar: sphere tracing on distance fields, boxes of other cars, Gaussian noise.

A ray advances by the distance field until it reaches an occupied cell (J. C. Hart, "Sphere
tracing", 1996). Most need three or four steps, a few along a wall more than a hundred: unfinished rays are
compacted in stages. Beams are grouped into fans of neighbours at fixed angles to each other, which
keeps gathers small. See docs/reference/f110.md 5.
"""

from dataclasses import dataclass
from functools import cache
from math import ceil, pi
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from physics.boxes import ray_box_distances
from physics.mapbank import MapBank, distance_at, place_in_field
from physics.sparse_batch import broadcast_unbatched, fold_active, on_accelerator, put_rows, take_rows

# (steps, share): all beams take this many steps, then the unfinished fans are compacted into chunks of this
# share of all, for the next stage. The last stage runs until all beams are done; small batches have no other.
_STAGES = ((4, 0.4), (4, 0.5), (8, 0.5), (20, 0.4), (40, 0.3))
_WIDE_STAGES = ((4, 0.4), (4, 0.5), (8, 0.5), (12, 0.45), (16, 0.45), (24, 0.45), (40, 0.3))  # for wide fans
_ACCELERATOR_STAGES = ((16, 0.1),)
_SMALL = 1 << 11  # up to so many rays, stages cost more time to run and to compile than they save
_LAST_STEPS = 16
_FAN, _WIDE_FAN, _DENSE = 4, 8, 0.02  # beams per fan; per wide fan, if beams are less than _DENSE rad apart


@dataclass(frozen=True)
class Lidar:
    """A planar scanner at the car's reference point, symmetric about the heading.

    Attributes:
      beams: number of beams; beam 0 is the rightmost one.
      fov: angle between the first beam and the last, rad.
      max_range: longest range, m.
      noise: standard deviation of a range, m.
      angle_bins: 0 traces beams along their exact angles. Otherwise directions come from a table of this
        many angles on [0, 2 pi], both ends included, and a beam's angle is truncated to a bin: 2000 gives
        the f1tenth_gym scans, whose beams are off by up to 0.2 degrees.

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


class _Fans(NamedTuple):
    """F fans of neighbouring beams in the bank's cells.

    Attributes:
      row, col: `[F]` cells in which they start.
      row_ahead, col_ahead: `[F]` cells crossed per metre along the fan's middle.
      row_left, col_left: `[F]` cells crossed per metre to the left of the middle.
      start: `[F]` flat index of the map's first cell; None if there is one map.
    """

    row: jax.Array
    col: jax.Array
    row_ahead: jax.Array
    col_ahead: jax.Array
    row_left: jax.Array
    col_left: jax.Array
    start: jax.Array | None


class _March(NamedTuple):
    """Constants of all rays: `cells` of all maps, flat; tiles across a map; largest range in metres."""

    cells: jax.Array
    tiles: int
    reach: float

    def ahead(self, fans: _Fans, rates: tuple[jax.Array, jax.Array], travelled: jax.Array) -> jax.Array:
        """Returns wall distances `[F, K]` of rays that have `travelled` `[F, K]` m; 0 beyond their reach.

        `rates` are the rows and columns `[F, K]` that the rays cross per metre.
        """
        # The ring of occupied cells stops rays before an index could name a cell of another row or map.
        row = (fans.row[:, None] + travelled * rates[0]).astype(jnp.int32)
        col = (fans.col[:, None] + travelled * rates[1]).astype(jnp.int32)
        index = place_in_field(self.tiles, row, col)
        index = index if fans.start is None else index + fans.start[:, None]
        distance = self.cells.at[index].get(mode="clip", wrap_negative_indices=False)
        return jnp.where(travelled <= self.reach, distance, 0).astype(travelled.dtype)


def scan_walls(bank: MapBank, map_index: jax.Array, pose: jax.Array, lidar: Lidar) -> jax.Array:
    """Returns noise-free distances to the walls, m; merges nested batches (leading axes or `vmap`) into one.

    Args:
      map_index: int32 `[...]` or scalar.
      pose: `[..., 3]` x, y, heading; m and rad.

    Returns:
      `[..., beams]` in [0, max_range]; 0 from within walls or outside the map.
    """
    return _tracer(lidar)(bank, jnp.broadcast_to(map_index, pose.shape[:-1]), pose)


def add_opponent_boxes(
    ranges: jax.Array, pose: jax.Array, others: jax.Array, sizes: jax.Array, valid: jax.Array, lidar: Lidar
) -> jax.Array:
    """Shortens the ranges of beams that meet other cars.

    Args:
      ranges: `[beams]` m.
      pose: `[3]` of the scanning car.
      others: `[N, 3]` poses of the boxes' centres.
      sizes: `[N, 2]` their lengths and widths, m.
      valid: `[N]` bool; boxes that are not valid are ignored.

    Returns:
      `[beams]` m.
    """
    angles = lidar.angles.astype(pose.dtype)
    hits = jax.vmap(lambda box, size: ray_box_distances(pose, angles, box, size[0], size[1]))(others, sizes)
    return jnp.minimum(ranges, jnp.where(valid[:, None], hits, jnp.inf).min(0, initial=jnp.inf))


def add_range_noise(
    key: jax.Array, ranges: jax.Array, lidar: Lidar, sigma: jax.Array | None = None
) -> jax.Array:
    """Adds independent Gaussian noise to `ranges` (any shape, m), clipped to [0, max_range].

    `sigma` in metres, possibly traced, replaces `lidar.noise`.
    """
    sigma = lidar.noise if sigma is None else sigma
    noise = sigma * jax.random.normal(key, ranges.shape, ranges.dtype)
    return jnp.clip(ranges + noise, 0.0, lidar.max_range)


@cache
def _tracer(lidar: Lidar):
    """Returns `(bank, map_index [...], pose [..., 3]) -> [..., beams]`, which merges nested batches."""

    @custom_vmap
    def trace(bank, map_index, pose):
        ranges = _trace(bank, map_index.ravel(), pose.reshape(-1, 3), lidar)
        return ranges.reshape(*pose.shape[:-1], lidar.beams)

    @trace.def_vmap
    def _(axis_size, batched, bank, map_index, pose):
        if any(jax.tree.leaves(batched[0])):
            axes = jax.tree.map(lambda b: 0 if b else None, tuple(batched))
            return jax.vmap(trace.fun, axes)(bank, map_index, pose), True
        return trace(bank, *broadcast_unbatched(batched[1:], (map_index, pose), axis_size)), True

    return trace


def _trace(bank: MapBank, map_index: jax.Array, pose: jax.Array, lidar: Lidar) -> jax.Array:
    """Returns ranges `[N, beams]` from poses `[N, 3]`."""
    march = _March(bank.field.reshape(-1), bank.field.shape[2], lidar.max_range)
    return _march_on((march,), bank, map_index, pose, lidar)


def _march_on(
    marches: tuple[_March, ...], bank: MapBank, map_index: jax.Array, pose: jax.Array, lidar: Lidar
) -> jax.Array:
    """Traces rays through several fields in order, each from the distances that the previous one reached."""
    between = lidar.fov / (lidar.beams - 1) if lidar.beams > 1 else 0.0
    width = 1 if lidar.angle_bins else _WIDE_FAN if between < _DENSE else _FAN
    width = min(width, lidar.beams)
    number = -(-lidar.beams // width)
    middle = lidar.angles[0] + between * (width * np.arange(number) + (width - 1) / 2)
    turn = (between * (np.arange(width) - (width - 1) / 2)).astype(pose.dtype)

    here = distance_at(bank, map_index, pose[:, :2])
    fans = _fans(bank, map_index, pose, here > 0, middle, lidar)
    stages = _ACCELERATOR_STAGES if on_accelerator() else _WIDE_STAGES if width > _FAN else _STAGES
    stages = () if pose.shape[0] * lidar.beams <= _SMALL else stages
    travelled = jnp.broadcast_to(jnp.repeat(here, number)[:, None], (here.size * number, width))
    for march in marches:
        travelled = _finish(march, turn, fans, travelled, stages)
    return jnp.minimum(travelled.reshape(-1, width * number)[:, : lidar.beams], lidar.max_range)


def _fans(
    bank: MapBank, map_index: jax.Array, pose: jax.Array, inside: jax.Array, angles: np.ndarray, lidar: Lidar
) -> _Fans:
    """Returns the `[N * G]` fans from poses `[N, 3]` along `angles` `[G]`."""
    single, shape = bank.field.shape[0] == 1, (pose.shape[0], angles.size)
    affine = bank.to_cell[0] if single else bank.to_cell[map_index]
    x, y = pose[:, 0], pose[:, 1]
    cell = [affine[..., i, 0] * x + affine[..., i, 1] * y + affine[..., i, 2] for i in (0, 1)]
    # A ray that starts outside the map stays on cell [0, 0], which is occupied.
    cell = [jnp.where(inside, c, 0)[:, None] for c in cell]
    ahead, left = _rates(affine[..., None, :, :], pose[:, 2:], angles, lidar)
    start = None if single else map_index[:, None] * bank.field[0].size
    every = _Fans(*cell, *ahead, *left, start)
    return jax.tree.map(lambda v: jnp.broadcast_to(v, shape).ravel(), every)


def _rates(affine: jax.Array, heading: jax.Array, angles: np.ndarray, lidar: Lidar) -> tuple[list, list]:
    """Returns rows and columns `[N, G]` crossed per metre along `angles` `[G]`, and per metre to their left.

    `affine` is `[..., 1, 2, 3]` as in the bank, `heading` `[N, 1]`.
    """
    dtype = heading.dtype

    def along(cos, sin):
        return [affine[..., i, 0] * cos + affine[..., i, 1] * sin for i in (0, 1)]

    if lidar.angle_bins:
        turns = heading / (2 * pi) + (angles / (2 * pi)).astype(dtype)
        index = ((turns - jnp.floor(turns)) * lidar.angle_bins).astype(jnp.int32)
        table = np.linspace(0, 2 * pi, lidar.angle_bins)
        cos, sin = (jnp.asarray(f(table), dtype).at[index].get(mode="clip") for f in (np.cos, np.sin))
        return along(cos, sin), along(-sin, cos)
    cos, sin = jnp.cos(heading), jnp.sin(heading)
    own = [jnp.concatenate(pair, -1) for pair in zip(along(cos, sin), along(-sin, cos), strict=True)]
    # Elementwise, XLA would fuse this into every use and take the heading's sine once per fan and use.
    turned = np.stack([[np.cos(angles), np.sin(angles)], [-np.sin(angles), np.cos(angles)]]).astype(dtype)
    ahead, left = ([jnp.matmul(v, t, precision=lax.Precision.HIGHEST) for v in own] for t in turned)
    return ahead, left


def _finish(march: _March, turn: np.ndarray, fans: _Fans, travelled: jax.Array, stages: tuple) -> jax.Array:
    """Marches the beams `[F, K]` of fans to their ends; `turn` `[K]` are their angles from the middle."""
    cos, sin = np.cos(turn), np.sin(turn)
    rates = (
        fans.row_ahead[:, None] * cos + fans.row_left[:, None] * sin,
        fans.col_ahead[:, None] * cos + fans.col_left[:, None] * sin,
    )

    def step(_, carry):
        ahead = march.ahead(fans, rates, carry[0])
        return carry[0] + ahead, ahead

    def advance(travelled, steps):
        # The last step stays in the loop: outside, XLA fuses it with the computation of the rates, and it
        # takes as long as four steps.
        unroll = steps if on_accelerator() else 1
        travelled, last = lax.fori_loop(0, steps, step, (travelled, travelled), unroll=unroll)
        return travelled, last > 0

    if not stages:
        carry = (travelled, jnp.ones(travelled.shape, bool))
        return lax.while_loop(lambda c: c[1].any(), lambda c: advance(c[0], _LAST_STEPS), carry)[0]
    (steps, share), *later = stages
    travelled, unfinished = advance(travelled, steps)

    def finish(active, travelled):
        picked, begin = take_rows((fans, travelled), active.index)
        begin = jnp.where(active.live[:, None], begin, march.reach + 1)
        return put_rows(travelled, active.index, _finish(march, turn, picked, begin, later))

    return fold_active(unfinished.any(1), finish, travelled, ceil(travelled.shape[0] * share))
