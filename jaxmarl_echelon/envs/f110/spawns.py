"""Where an adversarial episode begins: named spawn points on any map.

The poses are worked out once, on the host, into a table that an episode's start is drawn from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from scipy import ndimage

from physics.occupancy import MapBank, OccupancyMap
from physics.tracks import Centerline

BUILT_IN = {
    "pinch_right": (1.2, -0.3, 0.2),
    "pinch_left": (1.2, 0.3, -0.2),
    "pinch_ahead": (1.2, 0.0, 0.0),
    "approach_0.0C": (1.2, 0.0, 0.0),
    "approach_0.3L": (1.2, 0.3, 0.0),
    "approach_0.3R": (1.2, -0.3, 0.0),
}
LINE2_BASE = (-46.769, -0.7, 0.0)

_SHRINK = np.linspace(1.0, 0.0, 11)
_MARGIN = 0.05
_BASES = 512
_HEADINGS = 32
_CANDIDATES = 4096


@dataclass(frozen=True)
class SpawnPoint:
    """One way to place the two cars.

    Attributes:
      name: what configurations and tables call it.
      offset: attacker relative to the defender: metres ahead, metres to the left, turn in rad.
        On a map with a centreline "ahead" follows the track.
      attacker: the attacker's pose `(x, y, psi)`, instead of an offset.
      defender: the defender's pose; None draws one of the map's base poses.
    """

    name: str
    offset: tuple[float, float, float] | None = None
    attacker: tuple[float, float, float] | None = None
    defender: tuple[float, float, float] | None = None


@struct.dataclass
class SpawnTable:
    """Poses that episodes begin from.

    Attributes:
      poses: `[M, P, S, 2, 3]` per map, base position and spawn point: attacker, defender.
      count: `[M]` int32, how many of the P base positions a map has.
    """

    poses: jax.Array
    count: jax.Array


@struct.dataclass
class Spawn:
    """One drawn start: `map_index` and `task` (spawn point) int32, `poses` [2, 3], `speed` m/s."""

    map_index: jax.Array
    task: jax.Array
    poses: jax.Array
    speed: jax.Array


def read_points(extra: Mapping | None) -> tuple[SpawnPoint, ...]:
    """Returns the built-in spawn points followed by a configuration's own.

    Args:
      extra: name to `{offset: [ahead, left, turn]}` or `{pose: [x, y, psi]}`, either with an
        optional `defender: [x, y, psi]`; a built-in name is replaced.

    Raises:
      ValueError: an entry has other keys, or a pose without three finite numbers.
    """
    points = {name: SpawnPoint(name, offset=offset) for name, offset in BUILT_IN.items()}
    for name, entry in (extra or {}).items():
        points[name] = _read_point(str(name), entry)
    return tuple(points.values())


def spawn_weights(spawns: str | Sequence | Mapping, points: Sequence[SpawnPoint]) -> np.ndarray:
    """Turns `"all"`, names, or `name: weight` into a weight per spawn point, float32 `[S]`.

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
            raise ValueError(f"env.spawns={name}: unknown spawn point; allowed: all, {', '.join(names)}")
        if not np.isfinite(weight) or weight < 0:
            raise ValueError(f"env.spawns.{name}={weight}: a weight must be 0 or more")
    weights = np.array([spawns.get(name, 0.0) for name in names], np.float32)
    if weights.sum() <= 0:
        raise ValueError(f"env.spawns={spawns}: at least one spawn point needs a positive weight")
    return weights


def spawn_table(
    maps: Sequence[OccupancyMap],
    bank: MapBank,
    points: Sequence[SpawnPoint],
    size: tuple[float, float],
    bases: Mapping[str, Sequence[Sequence[float]]],
) -> SpawnTable:
    """Works out where every spawn point puts the cars on every map.

    Base poses (the defender's) are, in this order of preference: those in `bases`, positions
    spread over the map's centreline, positions in its free space. The attacker's lateral
    offset is shrunk until its box is clear of the walls; base poses without room are left out.

    Args:
      maps: the maps of `bank`, in its order.
      bank: their distance fields.
      points: the S spawn points.
      size: length and width of a car in metres.
      bases: map name to base poses `[[x, y, psi], ...]`.

    Raises:
      ValueError: a map has no room for some spawn point.
    """
    tables = [
        _map_table(entry, _Field(bank, index), points, size, bases.get(entry.name))
        for index, entry in enumerate(maps)
    ]
    longest = max(table.shape[0] for table in tables)
    padded = [np.resize(table, (longest, *table.shape[1:])) for table in tables]
    return SpawnTable(
        poses=jnp.asarray(np.stack(padded), jnp.float32),
        count=jnp.asarray([table.shape[0] for table in tables], jnp.int32),
    )


def draw_spawn(key: jax.Array, table: SpawnTable, params) -> Spawn:
    """Draws a map, a base position, a spawn point and a speed.

    Args:
      key: random key.
      table: the poses.
      params: anything with `map_weights [M]`, `spawn_weights [S]`, `spawn_jitter [3]` (half
        widths of a uniform shift of the attacker along x and y, m, and of its heading, rad) and
        `speed_range [2]` (m/s).
    """
    map_key, base_key, task_key, jitter_key, speed_key = jax.random.split(key, 5)
    map_index = jax.random.categorical(map_key, jnp.log(params.map_weights)).astype(jnp.int32)
    task = jax.random.categorical(task_key, jnp.log(params.spawn_weights)).astype(jnp.int32)
    base = jax.random.randint(base_key, (), 0, table.count[map_index])
    shift = params.spawn_jitter * jax.random.uniform(jitter_key, (3,), minval=-1.0, maxval=1.0)
    low, high = params.speed_range[0], params.speed_range[1]
    return Spawn(
        map_index=map_index,
        task=task,
        poses=table.poses[map_index, base, task].at[0].add(shift),
        speed=low + (high - low) * jax.random.uniform(speed_key),
    )


def follow_centerline(line: Centerline, s, d=0.0, turn=0.0) -> np.ndarray:
    """Returns poses `[..., 3]` at arc length `s` and `d` metres to the left of a centreline, on the host.

    `turn` is added to the tangent's heading. Closed lines wrap, open ones end at their ends.
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
    return np.stack([x - d * np.sin(heading), y + d * np.cos(heading), heading + turn], axis=-1)


class _Field:
    """A map's distance field on the host: `field(xy [..., 2])` are metres to the nearest wall."""

    def __init__(self, bank: MapBank, index: int):
        self.values = np.asarray(bank.field[index])
        self.resolution = float(bank.resolution[index])
        self.origin = np.asarray(bank.origin[index], np.float64)

    def __call__(self, xy: np.ndarray) -> np.ndarray:
        offset = xy - self.origin[:2]
        c, s = np.cos(self.origin[2]), np.sin(self.origin[2])
        column = np.floor((c * offset[..., 0] + s * offset[..., 1]) / self.resolution).astype(int)
        row = np.floor((c * offset[..., 1] - s * offset[..., 0]) / self.resolution).astype(int)
        height, width = self.values.shape
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        found = self.values[np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
        return np.where(inside, found, 0.0)

    def center(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        x, y = (column + 0.5) * self.resolution, (row + 0.5) * self.resolution
        c, s = np.cos(self.origin[2]), np.sin(self.origin[2])
        return self.origin[:2] + np.stack([c * x - s * y, s * x + c * y], axis=-1)

    def clear(self, poses: np.ndarray, size: tuple[float, float]) -> np.ndarray:
        """Whether boxes at `poses [..., 3]` keep a margin of a cell and a hand from every wall."""
        ahead, left = (np.linspace(-0.5, 0.5, 9) * extent for extent in size)
        grid = np.stack(np.meshgrid(ahead, left, indexing="ij"), axis=-1).reshape(-1, 2)
        c, s = np.cos(poses[..., 2, None]), np.sin(poses[..., 2, None])
        x = poses[..., 0, None] + c * grid[:, 0] - s * grid[:, 1]
        y = poses[..., 1, None] + s * grid[:, 0] + c * grid[:, 1]
        return self(np.stack([x, y], axis=-1)).min(axis=-1) > self.resolution + _MARGIN

    def reach(self, xy: np.ndarray, heading: np.ndarray, limit: float) -> np.ndarray:
        """Free metres ahead of points `[..., 2]`, at most `limit`, by sphere tracing."""
        direction = np.stack([np.cos(heading), np.sin(heading)], axis=-1)
        travelled = np.zeros(heading.shape)
        for _ in range(64):
            gap = self(xy + travelled[..., None] * direction)
            travelled = np.where(travelled < limit, travelled + gap, travelled)
        return np.minimum(travelled, limit)


def _read_point(name: str, entry: Mapping) -> SpawnPoint:
    keys = set(entry) if isinstance(entry, Mapping) else set()
    if len(keys & {"offset", "pose"}) != 1 or keys - {"offset", "pose", "defender"}:
        allowed = "offset or pose, and optionally defender"
        raise ValueError(f"env.spawn_points.{name}={entry}: allowed keys: {allowed}")
    poses = {}
    for key, value in entry.items():
        numbers = np.asarray(list(value), np.float64)
        if numbers.shape != (3,) or not np.isfinite(numbers).all():
            raise ValueError(f"env.spawn_points.{name}.{key}={value}: needs three finite numbers")
        poses[key] = tuple(float(v) for v in numbers)
    return SpawnPoint(name, poses.get("offset"), poses.get("pose"), poses.get("defender"))


def _map_table(entry, field, points, size, fixed) -> np.ndarray:
    """Returns poses `[P, S, 2, 3]` of one map."""
    if fixed is not None:
        bases, place = np.asarray(fixed, np.float64).reshape(-1, 3), _ahead_of
    elif entry.centerline is not None:
        line = entry.centerline
        reach = max((point.offset[0] for point in points if point.offset), default=0.0)
        end = line.length if line.closed else line.length - max(reach, 0.0) - 1.0
        start = 0.0 if line.closed else 1.0
        arcs = np.linspace(start, max(end, start), _BASES, endpoint=not line.closed)
        bases = follow_centerline(line, arcs)

        def place(bases, offset, factor):
            del bases
            return follow_centerline(line, arcs + offset[0], factor * offset[1], offset[2])
    else:
        bases, place = _free_bases(field, size), _ahead_of

    columns, usable = [], np.ones(len(bases), bool)
    for point in points:
        poses, clear = _place_point(point, bases, place, field, size)
        if not clear.any():
            raise ValueError(f"env.map={entry.name}: no room for spawn point {point.name} on this map")
        columns.append(poses)
        usable &= clear
    if not usable.any():
        raise ValueError(f"env.map={entry.name}: no position has room for all spawn points")
    return np.stack(columns, axis=1)[usable]


def _place_point(point, bases, place, field, size) -> tuple[np.ndarray, np.ndarray]:
    """Returns attacker and defender poses `[P, 2, 3]` of a spawn point and whether both are clear."""
    defender = bases if point.defender is None else np.broadcast_to(np.asarray(point.defender), bases.shape)
    if point.attacker is not None:
        tries = np.broadcast_to(np.asarray(point.attacker), (1, *bases.shape))
    elif point.defender is not None:
        tries = np.stack([_ahead_of(defender, point.offset, factor) for factor in _SHRINK])
    else:
        tries = np.stack([place(bases, point.offset, factor) for factor in _SHRINK])
    clear = field.clear(tries, size)
    first = np.argmax(clear, axis=0)
    attacker = np.take_along_axis(tries, first[None, :, None], axis=0)[0]
    return np.stack([attacker, defender], axis=1), clear.any(axis=0) & field.clear(defender, size)


def _ahead_of(bases, offset, factor) -> np.ndarray:
    ahead, left, turn = offset[0], factor * offset[1], offset[2]
    c, s = np.cos(bases[:, 2]), np.sin(bases[:, 2])
    return np.stack(
        [bases[:, 0] + c * ahead - s * left, bases[:, 1] + s * ahead + c * left, bases[:, 2] + turn], axis=-1
    )


def _free_bases(field: _Field, size: tuple[float, float]) -> np.ndarray:
    """Finds base poses `[P, 3]` in free space, each facing its longest free direction."""
    room = 0.5 * float(np.hypot(*size)) + field.resolution + _MARGIN
    rows, columns = np.nonzero(_indoors(field.values) & (field.values > room))
    rng = np.random.default_rng(0)
    chosen = rng.permutation(rows.size)[:_CANDIDATES]
    xy = field.center(rows[chosen], columns[chosen])
    headings = np.linspace(-np.pi, np.pi, _HEADINGS, endpoint=False)
    reach = field.reach(xy[:, None], np.broadcast_to(headings, (len(xy), _HEADINGS)), 10.0)
    poses = np.column_stack([xy, headings[reach.argmax(axis=1)]])
    # Half of the candidates, those with most room around them, so that few starts hug a wall.
    return poses[np.argsort(-field(xy), kind="stable")[: max(min(_BASES, len(xy)), len(xy) // 8)]]


def _indoors(values: np.ndarray) -> np.ndarray:
    """Marks the largest free region that walls close off from the image's border, if there is one."""
    labels, count = ndimage.label(values > 0)
    border = np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))
    sizes = np.bincount(labels.ravel(), minlength=count + 1)
    sizes[0] = 0
    closed = sizes.copy()
    closed[border] = 0
    best = closed if closed.any() else sizes
    return labels == best.argmax()
