"""Start poses of adversarial episodes: named spawn points on any map.

The poses are computed once, on the host, into a table from which the start of an episode is drawn. See
docs/reference/f110.md 8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from scipy import ndimage

from algos.checks import suggest_names
from jaxmarl_echelon.envs.settings import read_mapping, read_numbers
from physics.boxes import boxes_overlap
from physics.centerline import Centerline
from physics.gridmap import OccupancyMap, wall_distance
from physics.host_arrays import put_array
from physics.medial_loop import wall_off_unseen

BUILT_IN = {
    "pinch_right": (1.2, -0.3, 0.2),
    "pinch_left": (1.2, 0.3, -0.2),
    "pinch_ahead": (1.2, 0.0, 0.0),
    "approach_0.0C": (1.2, 0.0, 0.0),
    "approach_0.3L": (1.2, 0.3, 0.0),
    "approach_0.3R": (1.2, -0.3, 0.0),
}

_SHARES = np.linspace(1.0, 0.0, 11)
SPAWN_MARGIN = 0.05
_BASES = 512
_HEADINGS = 32
_CANDIDATES = 4096


@dataclass(frozen=True)
class SpawnPoint:
    """Named placement of the two cars.

    Attributes:
      name: its name in configurations and tables.
      offset: attacker relative to the defender: metres ahead, metres to the left, turn in rad.
        On a map with a centreline and no `base_poses`, "ahead" follows the track if `defender` is None.
      attacker: the attacker's pose `(x, y, psi)`, instead of an offset.
      defender: the defender's pose; None draws one of the map's base poses.
    """

    name: str
    offset: tuple[float, float, float] | None = None
    attacker: tuple[float, float, float] | None = None
    defender: tuple[float, float, float] | None = None


class SpawnTable(struct.PyTreeNode):
    """Table of start poses.

    Attributes:
      poses: `[M, P, S, 2, 3]` per map, base position and spawn point: attacker, defender.
      count: `[M]` int32, number of base positions of each map, at most P.
    """

    poses: jax.Array
    count: jax.Array


class Spawn(struct.PyTreeNode):
    """Random start of one episode.

    Attributes:
      map_index: int32.
      point: int32, spawn point.
      poses: `[2, 3]`.
      shift: `[2, 3]` random shift of the poses, to be applied as far as there is room.
      speed: m/s.
    """

    map_index: jax.Array
    point: jax.Array
    poses: jax.Array
    shift: jax.Array
    speed: jax.Array


def read_points(extra: Mapping | None) -> tuple[SpawnPoint, ...]:
    """Returns the built-in spawn points followed by a configuration's own.

    Args:
      extra: name to `{offset: [ahead, left, turn]}` or `{pose: [x, y, psi]}`, both with an
        optional `defender: [x, y, psi]`; entries replace built-in ones of the same name.

    Raises:
      ValueError: an entry has other keys, or a pose without three finite numbers.
    """
    points = {name: SpawnPoint(name, offset=offset) for name, offset in BUILT_IN.items()}
    for name, entry in read_mapping("spawn_points", extra).items():
        points[name] = _read_point(str(name), entry)
    return tuple(points.values())


def spawn_weights(spawns: str | Sequence | Mapping, points: Sequence[SpawnPoint]) -> np.ndarray:
    """Converts `"all"`, names, or `name: weight` into a weight per spawn point, float32 `[S]`.

    Raises:
      ValueError: an unknown name, a negative weight, or no positive weight at all.
    """
    names = [point.name for point in points]
    if isinstance(spawns, str):
        spawns = names if spawns == "all" else [spawns]
    if not isinstance(spawns, Mapping):
        spawns = dict.fromkeys(spawns, 1.0)
    for name, weight in spawns.items():
        if name not in names:
            raise ValueError(
                f"env.spawns={name}: unknown spawn point; {suggest_names(name, ('all', *names))}"
            )
        if not np.isfinite(weight) or weight < 0:
            raise ValueError(f"env.spawns.{name}={weight}: a weight must be 0 or more")
    weights = np.array([spawns.get(name, 0.0) for name in names], np.float32)
    if weights.sum() <= 0:
        raise ValueError(f"env.spawns={spawns}: at least one spawn point needs a positive weight")
    return weights


def spawn_table(
    maps: Sequence[OccupancyMap],
    points: Sequence[SpawnPoint],
    size: tuple[float, float],
    bases: Mapping[str, Sequence[Sequence[float]]],
) -> SpawnTable:
    """Computes the poses of both cars for every spawn point on every map.

    Base poses (the defender's) are, in this order of preference: those in `bases`, positions
    spread over the map's centreline, positions in its free space. The attacker's lateral
    offset is shrunk until its box is clear of the walls and of the defender's box; base poses
    without room are left out.

    Args:
      maps: the M maps.
      points: the S spawn points.
      size: length and width of a car in metres.
      bases: map name to base poses `[[x, y, psi], ...]`.

    Raises:
      ValueError: a map has no room for one of the spawn points.
    """
    tables = [_map_table(grid, points, size, bases.get(grid.name)) for grid in maps]
    longest = max(table.shape[0] for table in tables)
    padded = [np.resize(table, (longest, *table.shape[1:])) for table in tables]
    return SpawnTable(
        poses=put_array(np.stack(padded), np.float32),
        count=put_array([table.shape[0] for table in tables], np.int32),
    )


def draw_spawn(key: jax.Array, table: SpawnTable, params) -> Spawn:
    """Draws a map, a base position, a spawn point and a speed.

    Args:
      key: random key.
      table: the poses.
      params: anything with `map_weights [M]`, `spawn_weights [S]`, `spawn_jitter [3]` (half
        widths of a uniform shift of the attacker along x and y, m, and of its heading, rad),
        `pose_jitter [3]` (the same for each car, returned as `shift`) and `speed_range [2]` (m/s).
    """
    map_key, base_key, point_key, jitter_key, speed_key, shift_key = jax.random.split(key, 6)
    map_index = jax.random.categorical(map_key, jnp.log(params.map_weights)).astype(jnp.int32)
    point = jax.random.categorical(point_key, jnp.log(params.spawn_weights)).astype(jnp.int32)
    base = jax.random.randint(base_key, (), 0, table.count[map_index])
    shift = params.spawn_jitter * jax.random.uniform(jitter_key, (3,), minval=-1.0, maxval=1.0)
    low, high = params.speed_range[0], params.speed_range[1]
    return Spawn(
        map_index=map_index,
        point=point,
        poses=table.poses[map_index, base, point].at[0].add(shift),
        shift=params.pose_jitter * jax.random.uniform(shift_key, (2, 3), minval=-1.0, maxval=1.0),
        speed=low + (high - low) * jax.random.uniform(speed_key),
    )


def nth_positive(weights: jax.Array, n: jax.Array) -> jax.Array:
    """Returns a weight of 1 for the n-th positive weight, 0 for the others."""
    positive = weights > 0
    return (positive & (jnp.cumsum(positive) == n + 1)).astype(weights.dtype)


def follow_centerline(line: Centerline, s, d=0.0, turn=0.0) -> np.ndarray:
    """Returns poses `[..., 3]` at arc length `s` and `d` metres to the left of a centreline, on the host.

    `turn` is added to the tangent's heading. Arc lengths wrap on closed lines and are clipped on open ones.
    """
    s, d, turn = np.broadcast_arrays(s, d, turn)
    knots = np.asarray(line.s, np.float64)
    columns = [np.asarray(v, np.float64) for v in (line.x, line.y, np.unwrap(line.heading))]
    if line.closed:
        around = 2 * np.pi * np.round((columns[2][-1] - columns[2][0]) / (2 * np.pi))
        knots = np.append(knots, line.length)
        columns = [np.append(v, v[0] + extra) for v, extra in zip(columns, (0, 0, around), strict=True)]
        s = np.mod(s, line.length)
    x, y, heading = (np.interp(s, knots, column) for column in columns)
    facing = np.mod(heading + turn + np.pi, 2 * np.pi) - np.pi
    return np.stack([x - d * np.sin(heading), y + d * np.cos(heading), facing], axis=-1)


def _clear(grid: OccupancyMap, poses: np.ndarray, size: tuple[float, float]) -> np.ndarray:
    """Tells whether boxes at `poses [..., 3]` are a cell and a margin away from every wall."""
    ahead, left = (np.linspace(-0.5, 0.5, 9) * extent for extent in size)
    spots = np.stack(np.meshgrid(ahead, left, indexing="ij"), axis=-1).reshape(-1, 2)
    c, s = np.cos(poses[..., 2, None]), np.sin(poses[..., 2, None])
    x = poses[..., 0, None] + c * spots[:, 0] - s * spots[:, 1]
    y = poses[..., 1, None] + s * spots[:, 0] + c * spots[:, 1]
    return grid.distance(np.stack([x, y], axis=-1)).min(axis=-1) > grid.resolution + SPAWN_MARGIN


def _apart(poses: np.ndarray, others: np.ndarray, size: tuple[float, float]) -> np.ndarray:
    """Tells whether boxes at `poses [K, P, 3]` share no point with those at `others [P, 3]`; `[K, P]`."""
    box = np.reshape(size, (2, 1, 1))
    return ~boxes_overlap(np.moveaxis(poses, -1, 0), box, np.moveaxis(others, -1, 0), box, np)


def _read_point(name: str, entry: Mapping) -> SpawnPoint:
    keys = set(entry) if isinstance(entry, Mapping) else set()
    if len(keys & {"offset", "pose"}) != 1 or keys - {"offset", "pose", "defender"}:
        allowed = "offset or pose, and optionally defender"
        raise ValueError(f"env.spawn_points.{name}={entry}: allowed keys: {allowed}")
    poses = {}
    for key, value in entry.items():
        poses[key] = read_numbers(f"spawn_points.{name}.{key}", value, 3)
    return SpawnPoint(name, poses.get("offset"), poses.get("pose"), poses.get("defender"))


def _map_table(grid, points, size, fixed) -> np.ndarray:
    """Returns poses `[P, S, 2, 3]` of one map."""
    bases, place = _base_poses(grid, points, size, fixed)
    columns, usable = [], np.ones(len(bases), bool)
    for point in points:
        poses, clear = _place_point(point, bases, place, grid, size)
        if not clear.any():
            raise ValueError(f"env.map={grid.name}: no room for spawn point {point.name} on this map")
        columns.append(poses)
        usable &= clear
    if not usable.any():
        raise ValueError(f"env.map={grid.name}: no position has room for all spawn points")
    return np.stack(columns, axis=1)[usable]


def _base_poses(grid, points, size, fixed):
    """Returns base poses `[P, 3]` and the function `(offset, share) -> [P, 3]` that offsets them."""
    if fixed is not None:
        bases = np.asarray(fixed, np.float64).reshape(-1, 3)
    elif grid.centerline is not None:
        line = grid.centerline
        reach = [0.0, *(point.offset[0] for point in points if point.offset)]
        first, last = 1.0 - min(reach), line.length - max(reach) - 1.0
        start, end = (0.0, line.length) if line.closed else (first, max(last, first))
        arcs = np.linspace(start, end, _BASES, endpoint=not line.closed)
        return follow_centerline(line, arcs), lambda offset, share: follow_centerline(
            line, arcs + offset[0], share * offset[1], offset[2]
        )
    else:
        bases = _free_bases(grid, size)
    return bases, lambda offset, share: _ahead_of(bases, offset, share)


def _place_point(point, bases, place, grid, size) -> tuple[np.ndarray, np.ndarray]:
    """Returns attacker and defender poses `[P, 2, 3]` of a spawn point, and a mask of clear pairs."""
    defender = bases if point.defender is None else np.broadcast_to(point.defender, bases.shape)
    if point.attacker is not None:
        tries = np.broadcast_to(point.attacker, (1, *bases.shape))
    elif point.defender is not None:
        tries = np.stack([_ahead_of(defender, point.offset, share) for share in _SHARES])
    else:
        tries = np.stack([place(point.offset, share) for share in _SHARES])
    clear = _clear(grid, tries, size) & _apart(tries, defender, size)
    first = np.argmax(clear, axis=0)
    attacker = np.take_along_axis(tries, first[None, :, None], axis=0)[0]
    return np.stack([attacker, defender], axis=1), clear.any(axis=0) & _clear(grid, defender, size)


def _ahead_of(bases, offset, share) -> np.ndarray:
    ahead, left, turn = offset[0], share * offset[1], offset[2]
    c, s = np.cos(bases[:, 2]), np.sin(bases[:, 2])
    return np.stack(
        [bases[:, 0] + c * ahead - s * left, bases[:, 1] + s * ahead + c * left, bases[:, 2] + turn], axis=-1
    )


def _free_bases(grid: OccupancyMap, size: tuple[float, float]) -> np.ndarray:
    """Finds base poses `[P, 3]` in free, seen space, each facing its longest free direction."""
    shut = wall_off_unseen(grid)
    grid = grid if shut.occupied.all() else shut
    room = 0.5 * float(np.hypot(*size)) + grid.resolution + SPAWN_MARGIN
    rows, columns = np.nonzero(_indoors(grid.field) & (grid.field > room))
    chosen = np.random.default_rng(0).permutation(rows.size)[:_CANDIDATES]
    xy = grid.world(rows[chosen], columns[chosen])
    headings = np.linspace(-np.pi, np.pi, _HEADINGS, endpoint=False)
    angles = np.tile(headings, len(xy))
    reach = wall_distance(grid, np.repeat(xy, _HEADINGS, axis=0), angles, 10.0)
    longest = reach.reshape(len(xy), _HEADINGS).argmax(axis=1)
    # Only the roomiest candidates, so that few episodes begin close to a wall.
    order = np.argsort(-grid.distance(xy), kind="stable")[: 2 * _BASES]
    return np.column_stack([xy, headings[longest]])[order]


def _indoors(values: np.ndarray) -> np.ndarray:
    """Marks the largest free region that walls separate from the image's border, or else the largest one."""
    labels, count = ndimage.label(values > 0)
    border = np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))
    sizes = np.bincount(labels.ravel(), minlength=count + 1)
    sizes[0] = 0
    closed = sizes.copy()
    closed[border] = 0
    best = closed if closed.any() else sizes
    return labels == best.argmax()
